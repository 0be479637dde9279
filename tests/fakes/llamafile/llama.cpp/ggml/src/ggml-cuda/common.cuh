#include "ggml.h"
#define CUDA_ANSWER 11
extern "C" {
int tinyblas_answer(void);
int mmq_answer(void);
}
