// Compiled for every device of the table before the image is used, and read back: half precision, a warp shuffle and
// an atomic, so that headers, libdevice and the host compiler are all needed.
#include <cstdint>
#include <cuda_fp16.h>
#include <cublas_v2.h>

static_assert(CUBLAS_VER_MAJOR == CUDART_VERSION / 1000, "cuBLAS and the CUDA runtime are of two generations");

__global__ void opencoti_probe(const __half * values, float * sum, std::int32_t count) {
    const std::int32_t at = blockIdx.x * blockDim.x + threadIdx.x;
    float part = at < count ? expf(__half2float(values[at])) : 0.0f;
    for (int step = 16; step > 0; step /= 2) {
        part += __shfl_xor_sync(0xffffffff, part, step);
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd(sum, part);
    }
}

extern "C" int opencoti_probe_launch(const __half * values, float * sum, std::int32_t count) {
    opencoti_probe<<<(count + 255) / 256, 256>>>(values, sum, count);
    return static_cast<int>(cudaGetLastError());
}
