ZIPALIGN_SRCS = third_party/zipalign/zipalign.c
o/$(MODE)/third_party/zipalign/zipalign: o/$(MODE)/third_party/zipalign/zipalign.c.o
	$(LINK.o) $^ -o $@
