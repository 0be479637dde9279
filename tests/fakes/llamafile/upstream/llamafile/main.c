// Stand-in for the program: prints its version, and what the library computes.
#include "llamafile/version.h"
#include "llama.cpp/ggml/include/ggml.h"

// No headers of a C library: the cross compiler of the tests comes without one.
int printf(const char *, ...);
int strcmp(const char *, const char *);

const char *llama_answer(void);
int llama_context_size(void);

const char *kOptions[] = {"--server",   "--embedding", "--pooling",
                                 "--ctx-size", "--parallel",  "--mmproj"};

int main(int argc, char **argv) {
  if (argc > 1 && !strcmp(argv[1], "--version")) {
    printf("llamafile v%s\n", LLAMAFILE_VERSION_STRING);
    return 0;
  }
  printf("%s %d %d %d\n", llama_answer(), llama_context_size(), ggml_type_size(1),
         (int)(sizeof(kOptions) / sizeof(kOptions[0])));
  return 0;
}
