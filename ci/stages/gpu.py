"""The stages of the elf lane's GPU backends: one library each, from the `ggml` folder of the source alone.

A change of the server or of anything else above ggml leaves their keys as they are. Each library is linked
against stubs of the vendor's libraries, so no toolchain has to hold those; a function that a stub lacks
ends the build.

Pure description: nothing here runs or reads anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ci.stages.model import Stage, Step
from ci.toolchains.table import Backend

# Folder of the source tree that a GPU backend is compiled from, a CMake project of its own.
SUBTREE: Final = "ggml"
BASE_LIBRARY: Final = "libggml-base.so.0"

_COMMON: Final = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DGGML_BACKEND_DL=ON",
    "-DGGML_CPU=OFF",
    "-DGGML_NATIVE=OFF",
    "-DGGML_OPENMP=OFF",
    "-DGGML_CCACHE=OFF",
    "-DCMAKE_DISABLE_FIND_PACKAGE_Git=ON",
    "-DGIT_EXECUTABLE=OFF",
    "-DGIT_EXE=OFF",
    "-DGGML_BUILD_NUMBER=0",
    "-DGGML_BUILD_COMMIT=pinned",
)
# Only the C interface of a backend may be seen from outside: the C++ runtime is linked into it, and another
# one into the engine.
_LINK: Final = "-s -Wl,--no-undefined"
# zig links its C++ runtime statically and hidden by itself, and knows none of these words.
_HIDDEN: Final = " -Wl,--exclude-libs,ALL"
_STATIC_RUNTIME: Final = " -static-libstdc++ -static-libgcc"


def gpu_stage(
    backend: Backend,
    *,
    arch: str,
    targets: tuple[str, ...],
    has_flash_attention: bool,
    source_tree: str,
) -> Stage:
    """Describe the build of one backend library.

    Args:
        backend: row of the table.
        arch: architecture of the machines that it is for.
        targets: devices to compile for, as the table writes them.
        has_flash_attention: False leaves these kernels out, for a quick trial.
        source_tree: git tree id of the `ggml` folder.
    """
    # The Vulkan backend has no such kernels to leave out.
    is_partial = targets != backend.targets_for(arch) or not (has_flash_attention or backend.kind == "vulkan")
    stubs = tuple(soname for soname in backend.needed if soname not in _REAL)
    target = backend.library.removeprefix("lib").removesuffix(".so")
    return Stage(
        name=f"{backend.name}-{arch}" + ("-partial" if is_partial else ""),
        toolchain=backend.toolchain,
        steps=(
            *(Step(title=f"stub of {soname}", argv=_stub(soname)) for soname in stubs),
            Step(
                title="configure",
                argv=(
                    *_configure(backend),
                    *_BY_KIND[backend.kind](backend, targets),
                    *_attention(backend, has_flash_attention),
                ),
            ),
            Step(title="compile", argv=("{tools}/ninja", "-C", "{out}", "-j", "{jobs}", target)),
        ),
        # Upstream compiles its shader generator in a project of its own, which looks for a compiler itself.
        env={"CC": "{tools}/cc", "CXX": "{tools}/c++"},
        source_tree=source_tree,
        inputs={},
        outputs=(f"bin/{backend.library}",),
    )


# What toolchains hold for real: small, and CMake's own checks run programs linked with it.
_REAL: Final = ("libcudart.so.12", "libcudart.so.13", "libamdhip64.so.6")


def _stub(soname: str) -> tuple[str, ...]:
    return (
        "{tools}/cc",
        "-shared",
        "-nostdlib",
        "-fPIC",
        f"-Wl,-soname,{soname}",
        "-o",
        f"{{out}}/{soname}",
        f"{{tools}}/../stubs/{soname}.c",
    )


def _configure(backend: Backend) -> tuple[str, ...]:
    hidden, runtime = ("", "") if backend.kind == "vulkan" else (_HIDDEN, _STATIC_RUNTIME)
    return (
        "{tools}/cmake",
        "-G",
        "Ninja",
        "-S",
        "{tools}/../cmake/backend",
        "-B",
        "{out}",
        "-DCMAKE_MAKE_PROGRAM={tools}/ninja",
        "-DCMAKE_C_COMPILER={tools}/cc",
        "-DCMAKE_CXX_COMPILER={tools}/c++",
        "-DCMAKE_AR={tools}/ar",
        "-DCMAKE_RANLIB={tools}/ranlib",
        "-DCMAKE_C_FLAGS=-g0",
        "-DCMAKE_CXX_FLAGS=-g0",
        f"-DCMAKE_MODULE_LINKER_FLAGS={_LINK}{hidden}{runtime}",
        # Without hiding it, ggml's own library would lend its C++ runtime to the backend at this link, and
        # the engine's has none to lend.
        f"-DCMAKE_SHARED_LINKER_FLAGS=-s{hidden}{runtime}",
        "-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={out}/bin",
        "-DCMAKE_RUNTIME_OUTPUT_DIRECTORY={out}/bin",
        "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
        "-DCMAKE_INSTALL_RPATH=$ORIGIN",
        "-DOPENCOTI_GGML={src}",
        *_COMMON,
        *backend.definitions,
    )


def _attention(backend: Backend, has_flash_attention: bool) -> tuple[str, ...]:
    if backend.kind == "vulkan":
        return ()
    # Without ALL_QUANTS whole families of kernels are missing: a KV cache of mixed types is slow.
    return (
        ("-DGGML_CUDA_FA=ON", "-DGGML_CUDA_FA_ALL_QUANTS=ON")
        if has_flash_attention
        else ("-DGGML_CUDA_FA=OFF",)
    )


def _vulkan(backend: Backend, targets: tuple[str, ...]) -> tuple[str, ...]:
    return (
        "-DVulkan_INCLUDE_DIR={tools}/../vulkan/usr/include",
        "-DVulkan_LIBRARY={out}/libvulkan.so.1",
        "-DVulkan_GLSLC_EXECUTABLE={tools}/glslc",
        "-DSPIRV-Headers_DIR={tools}/../cmake",
    )


def _cuda(backend: Backend, targets: tuple[str, ...]) -> tuple[str, ...]:
    cublas = next(name for name in backend.needed if name.startswith("libcublas."))
    return (
        "-DCMAKE_CUDA_COMPILER={tools}/nvcc",
        "-DCMAKE_CUDA_RUNTIME_LIBRARY=Shared",
        f"-DCMAKE_CUDA_ARCHITECTURES={';'.join(cmake_target(target) for target in targets)}",
        f"-DCUDA_cublas_LIBRARY={{out}}/{cublas}",
        "-DCUDA_cuda_driver_LIBRARY={out}/libcuda.so.1",
    )


def _hip(backend: Backend, targets: tuple[str, ...]) -> tuple[str, ...]:
    return (
        "-DCMAKE_HIP_COMPILER={tools}/hip-clang",
        f"-DCMAKE_HIP_ARCHITECTURES={';'.join(targets)}",
        # Unset, HIP's own configuration looks for devices of this machine.
        f"-DGPU_TARGETS={';'.join(targets)}",
        *(
            f"-D{name}_DIR={{tools}}/../cmake"
            for name in ("amd_comgr", "hsa-runtime64", "rocblas", "hipblas")
        ),
        "-DOPENCOTI_STUBS={out}",
    )


_BY_KIND: Final[Mapping[str, Callable[[Backend, tuple[str, ...]], tuple[str, ...]]]] = {
    "vulkan": _vulkan,
    "cuda": _cuda,
    "hip": _hip,
}


def cmake_target(target: str) -> str:
    """Return a target of the table as CMake writes it: `75` is machine code alone, `90+ptx` has both."""
    return target.removesuffix("+ptx") if target.endswith("+ptx") else f"{target}-real"
