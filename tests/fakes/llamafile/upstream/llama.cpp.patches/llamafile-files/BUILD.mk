# Stand-in: what of llama.cpp is linked into the program. Headers are found in folders that -iquote names.
GGML_SRCS_C = \
	llama.cpp/ggml/src/ggml.c \
	llama.cpp/ggml/src/ggml-alloc.c

LLAMA_CPP_SRCS = $(GGML_SRCS_C) llama.cpp/src/llama.c
LLAMA_CPP_OBJS = $(LLAMA_CPP_SRCS:%=o/$(MODE)/%.o)

$(LLAMA_CPP_OBJS): CPPFLAGS += -iquote llama.cpp/src -iquote llama.cpp/ggml/include

o/$(MODE)/llama.cpp/llama.cpp.a: $(LLAMA_CPP_OBJS)
