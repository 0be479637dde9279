"""What the host engine uses for each GPU toolchain: from what was found to scripts and links.

Describes only; `ci.toolchains.probed` writes it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ci.paths import Layout
from ci.toolchains.hostcc import Accepted, HostCompiler, find_host_compiler
from ci.toolchains.machine import Machine, Version, dotted, parse_version
from ci.toolchains.recipe import Recipe
from ci.toolchains.table import Backend
from ci.toolchains.toolkit_cuda import (
    VARIABLE,
    CudaToolkit,
    cuda_missing,
    find_cuda,
    is_generation_of,
    read_cuda,
    require_generation,
)
from ci.toolchains.toolkit_rocm import RocmToolkit, read_rocm, require_runtime
from ci.toolchains.toolkit_vulkan import measure_features, read_vulkan
from ci.toolchains.wrappers import system_wrapper

# gcc that every nvcc 13 takes; the wheels' own header is asked once they are there.
_WHEELS_ACCEPT: Final = Accepted(gcc=15)
_SYSTEM_PATH: Final = ("/usr/bin", "/bin")
_BUILD_PROGRAMS: Final = ("cmake", "ninja")
_ZIG_PROGRAMS: Final = ("cc", "c++", "ar", "ranlib", "objcopy", "uname")
# The compiler cache takes a whole call of nvcc, not the host compiler's calls inside it.
_NVCC: Final = '#!/bin/sh\nlauncher="$OPENCOTI_LAUNCHER"\nunset OPENCOTI_LAUNCHER\n'
_BINUTILS: Final = ("ar", "ranlib", "objcopy")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a GPU toolchain is put together on this machine.

    Attributes:
        base: toolchain from wheels that lies below it.
        description: what was found, one line.
        record: what a manifest says about it.
        scripts: from the folder of the toolchain to the programs of its `bin`.
        links: paths below that folder → what they lead to.
        notices: what the user should know before waiting for a build.
        nvcc, nvcc_version, clang: the compiler that lists its devices.
        compiler: what compiles the host code beside nvcc.
        nvcc_header: header with nvcc's check of the host compiler, where only the wheels have it.
    """

    base: Recipe
    description: str
    record: Mapping[str, str]
    scripts: Callable[[Path], dict[str, str]]
    links: Mapping[str, Path] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    extra_path: tuple[str, ...] = _SYSTEM_PATH
    nvcc: Path | None = None
    nvcc_version: Version = ()
    clang: Path | None = None
    compiler: HostCompiler | None = None
    nvcc_header: Path | None = None


def find_setup(backend: Backend, layout: Layout, machine: Machine) -> Setup:
    """Look for what a GPU backend needs on this machine.

    Raises:
        ConfigError: a recipe or lock is malformed.
        MissingError: something is not there, does not fit, or is half of another version.
    """
    if backend.kind == "cuda":
        return _cuda(backend, layout, machine)
    if backend.kind == "hip":
        return _rocm(backend, layout, machine)
    return _vulkan(backend, layout, machine)


def tools_folder(recipe: Recipe, layout: Layout) -> Path:
    """Return where the host engine unpacks a toolchain from wheels."""
    return layout.toolchains / recipe.id[:16]


def _cuda(backend: Backend, layout: Layout, machine: Machine) -> Setup:
    recipe = Recipe.load(layout.containers / backend.toolchain)
    has_wheels = any("bin/nvcc" in rule.executables for rule in recipe.rules)
    notices: tuple[str, ...] = ()
    is_named = bool(machine.named(VARIABLE))
    if is_named or not has_wheels:
        folder = find_cuda(machine)
        if folder is None:
            raise cuda_missing(machine, f"backend {backend.name} needs a CUDA toolkit on this machine")
        toolkit = read_cuda(folder, machine)
        if is_generation_of(toolkit, backend) or not has_wheels:
            require_generation(toolkit, backend)
            return _cuda_toolkit(backend, layout, machine, toolkit)
        notices = (f"{VARIABLE} names {toolkit}: for {backend.name} NVIDIA's wheels are used instead",)
    return _cuda_wheels(backend, layout, machine, recipe, notices)


def _cuda_toolkit(backend: Backend, layout: Layout, machine: Machine, toolkit: CudaToolkit) -> Setup:
    compiler = find_host_compiler(machine, toolkit.accepted, wanted_by=f"nvcc {dotted(toolkit.version)}")
    base = Recipe.load(layout.containers / "base")
    others = () if dotted(toolkit.version[:2]) == backend.toolkit else (
        f"CUDA {dotted(toolkit.version[:2])} of this machine is used; images have {backend.toolkit}",
    )  # fmt: skip
    return Setup(
        base=base,
        description=f"{toolkit}, {compiler}",
        record={"toolkit": toolkit.label, "host_compiler": compiler.label},
        scripts=_cuda_scripts(tools_folder(base, layout), toolkit.nvcc, compiler, machine),
        notices=(*others, *_glibc_notice(backend, machine)),
        nvcc=toolkit.nvcc,
        nvcc_version=toolkit.version,
        compiler=compiler,
    )


def _cuda_wheels(
    backend: Backend, layout: Layout, machine: Machine, recipe: Recipe, notices: tuple[str, ...]
) -> Setup:
    rule = next(rule for rule in recipe.rules if "bin/nvcc" in rule.executables)
    root = tools_folder(recipe, layout) / rule.target
    compiler = find_host_compiler(machine, _WHEELS_ACCEPT, wanted_by=f"nvcc {rule.version}")
    place = f"in {root}" if root.is_dir() else "that are fetched when they are first used"
    toolkit = f"CUDA {rule.version} from NVIDIA's wheels {place}"
    return Setup(
        base=recipe,
        description=f"{toolkit}, {compiler}",
        record={"toolkit": f"{rule.name} {rule.version}", "host_compiler": compiler.label},
        scripts=_cuda_scripts(tools_folder(recipe, layout), root / "bin" / "nvcc", compiler, machine),
        notices=(*notices, *_glibc_notice(backend, machine)),
        nvcc=root / "bin" / "nvcc",
        nvcc_version=parse_version(rule.version),
        compiler=compiler,
        nvcc_header=root / "include" / "crt" / "host_config.h",
    )


def _cuda_scripts(
    base: Path, nvcc: Path, compiler: HostCompiler, machine: Machine
) -> Callable[[Path], dict[str, str]]:
    binutils = {name: machine.which(name) or Path("/usr/bin", name) for name in _BINUTILS}

    def scripts(folder: Path) -> dict[str, str]:
        call = shlex.join([str(nvcc), "-ccbin", str(folder / "bin" / "c++")])
        return {
            **_build_programs(base),
            "cc": system_wrapper("cc", str(compiler.cc)),
            "c++": system_wrapper("c++", str(compiler.cxx)),
            **{name: system_wrapper(name, str(path)) for name, path in binutils.items()},
            "nvcc": f'{_NVCC}exec $launcher {call} "$@"\n',
            "cuobjdump": system_wrapper("cuobjdump", str(nvcc.with_name("cuobjdump"))),
        }

    return scripts


def _rocm(backend: Backend, layout: Layout, machine: Machine) -> Setup:
    toolkit = read_rocm(machine)
    require_runtime(toolkit, backend)
    base = Recipe.load(layout.containers / "base")
    return Setup(
        base=base,
        description=str(toolkit),
        record={"toolkit": toolkit.label},
        scripts=_rocm_scripts(tools_folder(base, layout), toolkit),
        notices=_glibc_notice(backend, machine),
        clang=toolkit.llvm / "clang++",
    )


def _rocm_scripts(base: Path, toolkit: RocmToolkit) -> Callable[[Path], dict[str, str]]:
    llvm, root = toolkit.llvm, shlex.quote(str(toolkit.root))
    # CMake's search and ggml's own file read these; a stage has no other variables of the machine.
    cmake = (
        f"#!/bin/sh\nexport ROCM_PATH={root} HIP_PATH={root} CMAKE_PREFIX_PATH={root}\n"
        f'exec {shlex.quote(str(base / "bin" / "cmake"))} "$@"\n'
    )

    def scripts(folder: Path) -> dict[str, str]:
        return {
            **_build_programs(base),
            "cmake": cmake,
            "cc": system_wrapper("cc", str(llvm / "clang")),
            "c++": system_wrapper("c++", str(llvm / "clang++")),
            "hip-clang": system_wrapper("hip-clang", str(llvm / "clang++"), f"--rocm-path={toolkit.root}"),
            "offload-bundler": system_wrapper("offload-bundler", str(llvm / "clang-offload-bundler")),
            **{name: system_wrapper(name, str(llvm / f"llvm-{name}")) for name in _BINUTILS},
        }

    return scripts


def _vulkan(backend: Backend, layout: Layout, machine: Machine) -> Setup:
    toolkit = read_vulkan(machine)
    probes = _probes(Recipe.load(layout.containers / backend.toolchain))
    features = measure_features(toolkit.glslc, backend, probes, machine)
    lacking = [name for name in backend.features if name not in features]
    base = Recipe.load(layout.containers / "zig")
    folder = tools_folder(base, layout)
    programs = {name: system_call(folder / "bin" / name) for name in (*_BUILD_PROGRAMS, *_ZIG_PROGRAMS)}
    programs["glslc"] = system_wrapper("glslc", str(toolkit.glslc))
    return Setup(
        base=base,
        description=f"{toolkit}, zig from wheels",
        record={"toolkit": toolkit.label, "features": ",".join(features)},
        scripts=lambda _: programs,
        # Only these folders: the C library's own headers beside them would get before zig's.
        links={f"vulkan/usr/include/{name}": path.resolve() for name, path in toolkit.folders.items()},
        notices=(f"{toolkit.glslc} lacks {', '.join(lacking)}: slower on some GPUs",) if lacking else (),
        extra_path=(),
    )


def system_call(program: Path) -> str:
    """Return a script that does nothing but call a wrapper which finds everything from its own place."""
    return f'#!/bin/sh\nexec {shlex.quote(str(program))} "$@"\n'


def _build_programs(base: Path) -> dict[str, str]:
    return {name: system_call(base / "bin" / name) for name in _BUILD_PROGRAMS}


def _probes(recipe: Recipe) -> dict[str, Path]:
    return {
        Path(file.path).stem: file.source
        for file in recipe.overlay
        if file.path.startswith("probe/") and file.path.endswith(".comp")
    }


def _glibc_notice(backend: Backend, machine: Machine) -> tuple[str, ...]:
    """The C library that host code is compiled against decides on which systems a library loads."""
    ceiling = tuple(int(part) for part in backend.glibc.split("."))
    if machine.glibc <= ceiling:
        return ()
    return (
        f"the host code of {backend.name} is compiled against this machine's glibc {dotted(machine.glibc)}; "
        f"{backend.glibc} is the newest that a release may need (--engine docker keeps it)",
    )
