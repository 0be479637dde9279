#include "ggml.h"
extern const char add_spv[];
extern const char mul_spv[];
extern "C" {
int ggml_backend_vk_init(void) { return ggml_backend_answer() + add_spv[0] + mul_spv[0]; }
int ggml_backend_vk_reg(void) { return 1; }
int ggml_backend_vk_get_device_count(void) { return 0; }
}
