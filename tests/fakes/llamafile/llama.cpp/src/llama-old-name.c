// Stand-in for a translation unit whose two halves differ.
#include "llama-context.h"
#ifdef __aarch64__
#include "llama-arm.h"
static int llama_arch_extra(void) { return LLAMA_ARM_EXTRA; }
#else
static int llama_arch_extra(void) { return 1; }
#endif

// One answer, which upstream's own patch changes.
const char *llama_answer(void) {
  return "vanilla";
}

int llama_context_size(void) { return LLAMA_CONTEXT_SIZE + llama_arch_extra(); }
