#!/bin/bash
# Stand-in: the Vulkan library. Shaders become C++ files first, then objects.
set -e
HERE="$(cd "$(dirname "$0")" && pwd)"
source "$HERE/build-functions.sh"
parse_build_args "$@"
OUTPUT="${OUTPUT:-${HOME}/ggml-vulkan.so}"
GLSLC="${GLSLC:-$(command -v glslc || true)}"
if [ -z "$GLSLC" ]; then
    echo "Error: glslc not found. Please install the Vulkan SDK."
    exit 1
fi
BUILD_DIR="${HOME}/.cache/llamafile-vulkan-build"
setup_build_dir "$BUILD_DIR" "$CLEAN"
mkdir -p "$BUILD_DIR/shaders"
GGML="$HERE/../llama.cpp/ggml"
echo "Phase 3: Compiling shaders..."
echo "  Found $(ls "$GGML"/src/ggml-vulkan/vulkan-shaders/*.comp | wc -l) shader files"
for shader in "$GGML"/src/ggml-vulkan/vulkan-shaders/*.comp; do
    name=$(basename "$shader")
    echo "  [1/1] Compiling: $name"
    "$GLSLC" -o "$BUILD_DIR/$name.spv" "$shader" &&
        echo "extern const char ${name%.comp}_spv[]; const char ${name%.comp}_spv[] = \"$name\";" \
            > "$BUILD_DIR/shaders/$name.cpp" &
done
wait
echo "Phase 4: Compiling shader C++ files..."
FILES=$(find "$BUILD_DIR/shaders" -name '*.cpp' -type f)
echo "  Found $(echo "$FILES" | wc -l) shader C++ files"
for src in $FILES; do
    base=$(basename "$src" .cpp)
    echo "  [1/1] Compiling: $base"
    $CXX -c -fPIC -O2 -o "$BUILD_DIR/shader-$base.o" "$src" &
done
wait
echo "Phase 5: Compiling ggml-vulkan.cpp..."
echo "  Compiling ggml-vulkan.cpp..."
$CXX -c -fPIC -O2 -I"$GGML/include" -o "$BUILD_DIR/ggml-vulkan.o" "$GGML/src/ggml-vulkan/ggml-vulkan.cpp"
echo "Phase 6: Compiling core GGML sources..."
compile_ggml_core "$HERE/../llama.cpp" "$BUILD_DIR"
echo "Phase 7: Linking..."
link_shared_library "$CXX -shared -fPIC -static-libstdc++ -static-libgcc" "$BUILD_DIR" "$OUTPUT"
