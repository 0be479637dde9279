# Stand-in: which objects a header makes stale, as far as mkdeps can follow includes.
SRCS = $(LLAMA_CPP_SRCS) $(LLAMAFILE_SRCS) $(ZIPALIGN_SRCS)

o/$(MODE)/depend: $(SRCS)
	@mkdir -p $(@D)
	$(MKDEPS) -o $@ -r o/$(MODE)/ $(SRCS)

-include o/$(MODE)/depend
