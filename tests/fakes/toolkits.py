"""GPU toolkits without compilers in them: scripts that print what real programs print, headers, libraries.

The printed forms were taken from nvcc 13.0 and 13.5, gcc 12 and shaderc 2023.2; that of AMD's clang is
assumed. Each script answers only what the probes ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

CUDA_12_ARCHS = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90)
CUDA_13_ARCHS = (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


def write_file(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def cuda_toolkit(
    root: Path,
    version: str,
    *,
    headers: str = "",
    cublas: str = "",
    newest_gcc: int = 13,
    archs: Sequence[int] = CUDA_12_ARCHS,
    top: Path | None = None,
) -> Path:
    """A toolkit as NVIDIA's installer leaves it; `headers` and `cublas` differ from `version` when given."""
    major, minor, _ = version.split(".")
    listing = "\n".join(f"compute_{arch}" for arch in archs)
    write_program(
        root / "bin" / "nvcc",
        f"""here=${{0%/*}}
case "$1" in
--version) echo 'nvcc: NVIDIA (R) Cuda compiler driver'
  echo 'Cuda compilation tools, release {major}.{minor}, V{version}' ;;
--dryrun) printf '#$ TOP=%s\\n' "{top or "$here/.."}" >&2 ;;
--list-gpu-arch) echo '{listing}' ;;
esac
""",
    )
    cuda_headers(root / "include", headers or f"{major}.{minor}", newest_gcc=newest_gcc)
    blas = cublas or f"{major}.1.0"
    numbers = zip(("MAJOR", "MINOR", "PATCH"), blas.split("."), strict=True)
    write_file(root / "include" / "cublas_v2.h")
    write_file(
        root / "include" / "cublas_api.h", "".join(f"#define CUBLAS_VER_{n} {v}\n" for n, v in numbers)
    )
    write_file(root / "lib64" / f"libcudart.so.{version}")
    return root


def cuda_headers(folder: Path, version: str, *, newest_gcc: int = 13) -> None:
    major, minor = version.split(".")
    number = int(major) * 1000 + int(minor) * 10
    write_file(folder / "cuda.h", f"/**\n * CUDA API version number\n */\n#define CUDA_VERSION {number}\n")
    write_file(folder / "cuda_runtime_api.h", f"/** version */\n#define CUDART_VERSION  {number}\n")
    write_file(
        folder / "crt" / "host_config.h",
        f"#if defined(__GNUC__)\n#if __GNUC__ > {newest_gcc}\n#error -- unsupported GNU version!\n",
    )


def compiler(folder: Path, version: str, *, suffix: str = "", names: Sequence[str] = ("g++", "gcc")) -> None:
    """A gcc under some names on PATH."""
    numbers = zip(("__GNUC__", "__GNUC_MINOR__", "__GNUC_PATCHLEVEL__"), version.split("."), strict=True)
    lines = "".join(f"echo '#define {name} {value}'\n" for name, value in numbers)
    for name in names:
        write_program(folder / f"{name}{suffix}", lines)


def rocm_toolkit(
    root: Path,
    version: str,
    *,
    clang: str = "",
    runtime: int | None = None,
    devices: Sequence[str] = ("gfx906", "gfx90a", "gfx1100"),
) -> Path:
    """An installation as AMD's packages leave it; `clang` is the release that its clang says it is of."""
    major, minor, patch = version.split(".")
    write_file(
        root / "include" / "hip" / "hip_version.h",
        f"#define HIP_VERSION_MAJOR {major}\n#define HIP_VERSION_MINOR {minor}\n"
        f"#define HIP_VERSION_PATCH {patch}\n",
    )
    write_file(root / "include" / "rocblas" / "rocblas.h")
    write_file(root / "include" / "hipblas" / "hipblas.h")
    write_file(root / "lib" / f"libamdhip64.so.{major if runtime is None else runtime}")
    llvm = root / "llvm" / "bin"
    for name in ("clang", "llvm-ar", "llvm-ranlib", "llvm-objcopy", "clang-offload-bundler"):
        write_program(llvm / name, "")
    listing = "\n".join(f"\t{name}" for name in devices)
    write_program(
        llvm / "clang++",
        f"""case "$1" in
--version) echo 'AMD clang version 18.0.0git (roc-{clang or version} 25012)' ;;
*) printf 'Available CPUs for this target:\\n\\n%s\\n' '{listing}' >&2 ;;
esac
""",
    )
    return root


def vulkan_sdk(root: Path, *, version: str = "2025.2", unknown: str = "", is_old: bool = False) -> Path:
    """glslc and headers; `unknown` is an extension that this glslc refuses."""
    refuse = f"*{unknown}*" if unknown else "nothing"
    write_program(
        root / "bin" / "glslc",
        f"""case "$1" in
--version) echo 'shaderc v{version}'; echo 'Target: SPIR-V 1.0'; exit ;;
esac
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
case "$1" in {refuse}) exit 1 ;; esac
: > "$out"
""",
    )
    include = root / "include"
    declared = "" if is_old else "typedef struct VkLayerSettingEXT {} VkLayerSettingEXT;\n"
    write_file(include / "vulkan" / "vulkan.hpp")
    write_file(
        include / "vulkan" / "vulkan_core.h",
        "#define VK_HEADER_VERSION 309\n#define VK_HEADER_VERSION_COMPLETE "
        f"VK_MAKE_API_VERSION(0, 1, 4, VK_HEADER_VERSION)\n{declared}",
    )
    write_file(include / "vk_video" / "vulkan_video_codecs_common.h")
    write_file(include / "spirv" / "unified1" / "spirv.hpp")
    return root
