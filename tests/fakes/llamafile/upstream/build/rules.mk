# Stand-in: how objects, archives and programs are made. A fat object is two files, foo.o and .aarch64/foo.o.
#
# The three lines below are upstream's, at upstream's place: the patch about header dependencies changes two of
# them, and is proved on this file.
#
#

LINK.o = $(CXX) $(CCFLAGS) $(LDFLAGS)
COMPILE.c = $(CC) $(CCFLAGS) $(CFLAGS) $(CPPFLAGS_) $(CPPFLAGS) $(TARGET_ARCH) -c
COMPILE.cc = $(CXX) $(CCFLAGS) $(CXXFLAGS) $(CPPFLAGS_) $(CPPFLAGS) $(TARGET_ARCH) -c

o/$(MODE)/%.c.o: %.c $(COSMOCC)
	@mkdir -p $(@D)
	$(COMPILE.c) -o $@ $<

o/$(MODE)/%.a:
	@mkdir -p $(dir $@)/.aarch64
	$(AR) $(ARFLAGS) $@ $^
	$(AR) $(ARFLAGS) $(dir $@)/.aarch64/$(notdir $@) $(foreach x,$^,$(dir $(x)).aarch64/$(notdir $(x)))
