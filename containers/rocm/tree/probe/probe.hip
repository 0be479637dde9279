// Compiled for every device of the table before the image is used, and read back.
#include <cstdint>
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
#include <hipblas/hipblas.h>

static_assert(HIP_VERSION >= 60100000, "ggml needs HIP 6.1 or newer");

__global__ void opencoti_probe(const __half * values, float * sum, std::int32_t count) {
    const std::int32_t at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        atomicAdd(sum, expf(__half2float(values[at])));
    }
}

extern "C" int opencoti_probe_launch(const __half * values, float * sum, std::int32_t count) {
    opencoti_probe<<<(count + 255) / 256, 256>>>(values, sum, count);
    return static_cast<int>(hipGetLastError());
}
