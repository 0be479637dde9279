#include "common.cuh"
extern "C" {
int ggml_backend_cuda_init(void) { return CUDA_ANSWER + ggml_backend_answer(); }
int ggml_backend_cuda_reg(void) { return mmq_answer(); }
int ggml_backend_cuda_get_device_count(void) { return 0; }
}
