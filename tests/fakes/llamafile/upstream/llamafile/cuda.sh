#!/bin/bash
# Stand-in: the CUDA library.
set -e
HERE="$(cd "$(dirname "$0")" && pwd)"
source "$HERE/build-functions.sh"
parse_build_args "$@"
OUTPUT="${OUTPUT:-${HOME}/ggml-cuda.so}"
NVCC="${CUDA_PATH:-/usr/local/cuda}/bin/nvcc"
if [ ! -x "$NVCC" ]; then
    echo "Error: nvcc not found at $NVCC"
    exit 1
fi
BUILD_DIR="${HOME}/.cache/llamafile-cuda-build"
setup_build_dir "$BUILD_DIR" "$CLEAN"
cp "$HERE/tinyblas.h" "$HERE/tinyblas.cu" "$BUILD_DIR/"
GGML="$HERE/../llama.cpp/ggml"
compile_gpu_sources "$NVCC" "-I$BUILD_DIR -I$GGML/include" "$BUILD_DIR" "$BUILD_DIR/tinyblas.cu" \
    "$GGML"/src/ggml-cuda/*.cu "$GGML"/src/ggml-cuda/template-instances/*.cu
compile_ggml_core "$HERE/../llama.cpp" "$BUILD_DIR"
link_shared_library "$NVCC --shared" "$BUILD_DIR" "$OUTPUT"
