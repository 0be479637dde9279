LLAMAFILE_SRCS = llamafile/main.c
o/$(MODE)/llamafile/llamafile: o/$(MODE)/llamafile/main.c.o o/$(MODE)/llama.cpp/llama.cpp.a
	$(LINK.o) $^ -o $@
