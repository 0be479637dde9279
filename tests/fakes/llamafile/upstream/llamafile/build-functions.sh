#!/bin/bash
# Stand-in: what the GPU scripts share. Sets JOBS, CLEAN, OUTPUT.

parse_build_args() {
    JOBS=$(nproc)
    CLEAN=0
    while [ $# -gt 0 ]; do
        case "$1" in
            -j*) JOBS="${1#-j}" ;;
            --clean) CLEAN=1 ;;
            --output) shift; OUTPUT="$1" ;;
            --output=*) OUTPUT="${1#--output=}" ;;
            *) echo "Unknown option: $1"; exit 1 ;;
        esac
        shift
    done
}

setup_build_dir() {
    [ "$2" = 1 ] && rm -rf "$1"
    mkdir -p "$1"
}

# $1 compiler, $2 flags, $3 build folder, the rest: sources
compile_gpu_sources() {
    local compiler="$1" flags="$2" build="$3" count=0 src base obj
    shift 3
    echo "Compiling $# files with $JOBS parallel jobs..."
    for src in "$@"; do
        count=$((count + 1))
        base=$(basename "$src" .cu)
        obj="$build/$base.o"
        case "$src" in */template-instances/*) obj="$build/ti-$base.o" ;; esac
        if [ "$obj" -nt "$src" ]; then
            echo "[$count/$#] Skipping: $base.cu (up to date)"
            continue
        fi
        echo "[$count/$#] Compiling: $base.cu"
        $compiler -c $flags -o "$obj" "$src" &
        while [ "$(jobs -r | wc -l)" -ge "$JOBS" ]; do sleep 0.01; done
    done
    wait
}

# $1 llama.cpp, $2 build folder
compile_ggml_core() {
    local ggml_core_sources="\
        $1/ggml/src/ggml.c \
        $1/ggml/src/ggml-alloc.c \
        $1/ggml/src/ggml-backend.cpp"
    local src base obj
    echo "Compiling core GGML sources..."
    for src in $ggml_core_sources; do
        base=$(basename "$src")
        obj="$2/ggml-core-${base%.*}.o"
        if [ "$obj" -nt "$src" ]; then
            echo "  Skipping: $base (up to date)"
            continue
        fi
        echo "  Compiling: $base"
        case "$src" in
            *.c) gcc -c -fPIC -O2 -DGGML_COMMIT="\"$GGML_COMMIT\"" -I"$1/ggml/include" -o "$obj" "$src" ;;
            *) g++ -c -fPIC -O2 -I"$1/ggml/include" -o "$obj" "$src" ;;
        esac
    done
}

# $1 linker and its flags, $2 build folder, $3 output, the rest: libraries
link_shared_library() {
    local linker="$1" build="$2" output="$3" objects
    shift 3
    objects=$(find "$build" -name '*.o' -type f)
    echo "Linking..."
    echo "  Linking $(echo "$objects" | wc -l) object files..."
    $linker -o "$output" $objects "$@"
    echo "Successfully built: $output"
}
