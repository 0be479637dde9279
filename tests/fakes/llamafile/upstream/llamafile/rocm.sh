#!/bin/bash
# Stand-in: the library for AMD's GPUs, from the CUDA sources.
set -e
HERE="$(cd "$(dirname "$0")" && pwd)"
source "$HERE/build-functions.sh"
parse_build_args "$@"
OUTPUT="${OUTPUT:-${HOME}/ggml-rocm.so}"
HIPCC="${ROCM_PATH:-/opt/rocm}/bin/hipcc"
if [ ! -x "$HIPCC" ]; then
    echo "Error: hipcc not found at $HIPCC"
    exit 1
fi
BUILD_DIR="${HOME}/.cache/llamafile-rocm-build"
setup_build_dir "$BUILD_DIR" "$CLEAN"
cp "$HERE/tinyblas.h" "$HERE/tinyblas.cu" "$BUILD_DIR/"
GGML="$HERE/../llama.cpp/ggml"
compile_gpu_sources "$HIPCC" "-fPIC -I$BUILD_DIR -I$GGML/include" "$BUILD_DIR" "$BUILD_DIR/tinyblas.cu" \
    "$GGML"/src/ggml-cuda/*.cu "$GGML"/src/ggml-cuda/template-instances/*.cu
compile_ggml_core "$HERE/../llama.cpp" "$BUILD_DIR"
link_shared_library "$HIPCC -shared -fPIC" "$BUILD_DIR" "$OUTPUT"
