"""What a product of the build may need, offer and contain; comparison of facts with it. Pure.

`check_elf` returns what is wrong and raises nothing: the caller decides whether that is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from ci.dso.code_rules import (
    PLAIN_X86_64,
    VARIANT_FEATURES,
    ExpectedTargets,
    instruction_problems,
    target_problems,
)
from ci.dso.elf import ElfFacts, Kind, version_key
from ci.dso.problem import Problem

GpuRole = Literal["cuda", "hip", "vulkan"]
Role = Literal["host", "library", "backend", "cpu-variant"] | GpuRole
Lane = Literal["ape", "elf"]

# What every glibc system has. libstdc++ and libgcc_s are left out on purpose: ours carry their own.
SYSTEM_LIBRARIES: Final = frozenset(
    {
        "libc.so.6",
        "libm.so.6",
        "libdl.so.2",
        "libpthread.so.0",
        "librt.so.1",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
    }
)
ENGINE_LIBRARIES: Final = frozenset({"libggml.so.0", "libggml-base.so.0"})
GLIBC_CEILING: Final = "2.28"
GPU_GLIBC_CEILING: Final = "2.36"
# What a GPU library may need where no row of the table says which.
_GPU_LIBRARIES: Final[dict[GpuRole, frozenset[str]]] = {
    "cuda": frozenset(
        {"libcuda.so.1", *(f"lib{n}.so.{v}" for n in ("cudart", "cublas", "cublasLt") for v in (12, 13))}
    ),
    "hip": frozenset(f"lib{n}.so.{v}" for n in ("amdhip64", "hipblas", "rocblas") for v in range(2, 8)),
    "vulkan": frozenset({"libvulkan.so.1"}),
}
# Libraries of one CUDA toolkit have its major version in their name, the driver's do not.
_CUDA_LIBRARY: Final = re.compile(r"lib(?:cudart|cublas|cublasLt)\.so\.([0-9]+)")
# Kernels for this architecture have pages of 4, 16 or 64 KiB, and refuse a file that is aligned to less.
_PAGE_SIZES: Final = {"aarch64": 1 << 16}

_ROLES: Final[tuple[tuple[re.Pattern[str], Role], ...]] = (
    (re.compile(r"llama-server"), "host"),
    (re.compile(r"libggml-cpu-[a-z0-9_.]+\.so"), "cpu-variant"),
    (re.compile(r"libggml-cpu\.so"), "backend"),
    # The loader of the ape lane looks for names without `lib`, and calls AMD's by another.
    (re.compile(r"(lib)?ggml-cuda\.so"), "cuda"),
    (re.compile(r"libggml-hip\.so|ggml-rocm\.so"), "hip"),
    (re.compile(r"(lib)?ggml-vulkan\.so"), "vulkan"),
    (re.compile(r"libggml(-base)?\.so(\.[0-9.]+)?"), "library"),
)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What one kind of file must be. None for a ceiling means: it must not need that family at all.

    Attributes:
        targets: for which GPUs it must hold code, and no others; None where that is left open.
        allowed_instructions: extensions of x86-64 that its code may use; None where that is left open.
    """

    kinds: frozenset[Kind]
    allowed_needed: frozenset[str] = SYSTEM_LIBRARIES | ENGINE_LIBRARIES
    arch: str | None = None
    glibc_ceiling: str | None = GLIBC_CEILING
    libstdcxx_ceiling: str | None = None
    required_exports: frozenset[str] = frozenset()
    forbidden_exports: frozenset[str] = frozenset()
    allowed_search_paths: frozenset[str] = frozenset({"$ORIGIN"})
    allow_debug_info: bool = False
    targets: ExpectedTargets | None = None
    allowed_instructions: frozenset[str] | None = None


_LIBRARY: Final[frozenset[Kind]] = frozenset({"dso"})
_INIT: Final = "ggml_backend_init"
_SCORE: Final = "ggml_backend_score"
_ENTRY: Final = frozenset({_INIT})
_SCORED: Final = frozenset({_SCORE})
# What the loader of the ape lane looks up; the AMD library is built from the CUDA backend's sources.
_APE_PREFIXES: Final[dict[GpuRole, str]] = {
    "cuda": "ggml_backend_cuda",
    "hip": "ggml_backend_cuda",
    "vulkan": "ggml_backend_vk",
}
_APE_WORDS: Final = ("init", "reg", "get_device_count")


def _gpu_defaults(libraries: frozenset[str]) -> Rules:
    return Rules(
        kinds=_LIBRARY,
        allowed_needed=SYSTEM_LIBRARIES | ENGINE_LIBRARIES | libraries,
        glibc_ceiling=GPU_GLIBC_CEILING,
        required_exports=_ENTRY,
        forbidden_exports=_SCORED,
        allowed_instructions=PLAIN_X86_64,
    )


_BY_ROLE: Final[dict[Role, Rules]] = {
    "host": Rules(
        kinds=frozenset({"pie"}), forbidden_exports=_ENTRY | _SCORED, allowed_instructions=PLAIN_X86_64
    ),
    "library": Rules(kinds=_LIBRARY, forbidden_exports=_ENTRY | _SCORED, allowed_instructions=PLAIN_X86_64),
    "backend": Rules(
        kinds=_LIBRARY,
        required_exports=_ENTRY,
        forbidden_exports=_SCORED,
        allowed_instructions=PLAIN_X86_64,
    ),
    "cpu-variant": Rules(kinds=_LIBRARY, required_exports=_ENTRY | _SCORED),
    **{role: _gpu_defaults(libraries) for role, libraries in _GPU_LIBRARIES.items()},
}


def role_of(name: str) -> Role | None:
    """Return what a product of the elf lane is, by its file name; None for other files."""
    return next((role for pattern, role in _ROLES if pattern.fullmatch(name)), None)


def rules_for(role: Role, arch: str | None = None) -> Rules:
    """Return the rules of a kind of product of the elf lane, for one architecture or for any.

    What a variant may use and for which GPUs a library is needs a name or a row of the table: see
    `rules_for_file` and `gpu_rules`.
    """
    return replace(_BY_ROLE[role], arch=arch)


def rules_for_file(name: str, arch: str | None = None) -> Rules | None:
    """Return the rules of a product of the elf lane by its file name, with what that CPU variant may use."""
    role = role_of(name)
    if role is None:
        return None
    rules = rules_for(role, arch)
    if role == "cpu-variant":
        variant = name.removeprefix("libggml-cpu-").removesuffix(".so")
        return replace(rules, allowed_instructions=VARIANT_FEATURES.get(variant))
    return rules


def gpu_rules(
    role: GpuRole,
    *,
    arch: str,
    targets: Iterable[str],
    needed: Iterable[str],
    glibc_ceiling: str,
    libstdcxx_ceiling: str | None = None,
    lane: Lane = "elf",
) -> Rules:
    """Return the rules of a GPU library from a row of the table of toolchains.

    Args:
        role: which kind of library.
        arch: architecture of its host code.
        targets: the GPUs, as the table has them (`75`, `90+ptx`, `gfx1100`); none for Vulkan.
        needed: libraries it may need besides those of the system and, in the elf lane, ggml's.
        glibc_ceiling: the newest glibc it may need.
        libstdcxx_ceiling: the newest GLIBCXX version it may need; None: it must not need libstdc++.
        lane: the ape lane's libraries stand alone and are entered by other names.
    """
    compiler_libraries = frozenset({"libstdc++.so.6", "libgcc_s.so.1"}) if libstdcxx_ceiling else frozenset()
    engine = ENGINE_LIBRARIES if lane == "elf" else frozenset()
    return replace(
        rules_for(role, arch),
        allowed_needed=SYSTEM_LIBRARIES | engine | compiler_libraries | frozenset(needed),
        glibc_ceiling=glibc_ceiling,
        libstdcxx_ceiling=libstdcxx_ceiling,
        required_exports=_entries(role, lane),
        targets=ExpectedTargets.of(targets),
    )


def _entries(role: GpuRole, lane: Lane) -> frozenset[str]:
    if lane == "elf":
        return _ENTRY
    return frozenset(f"{_APE_PREFIXES[role]}_{word}" for word in _APE_WORDS)


def check_elf(facts: ElfFacts, rules: Rules) -> list[Problem]:
    """Return everything in which a file differs from its rules."""

    def problem(problem_id: str, detail: str) -> Problem:
        return Problem(problem_id=problem_id, file=facts.path.name, detail=detail)

    found: list[Problem] = []
    if facts.kind not in rules.kinds:
        found.append(
            problem("wrong-kind", f"it is of kind {facts.kind}, not {' or '.join(sorted(rules.kinds))}")
        )
    if rules.arch is not None and facts.arch != rules.arch:
        found.append(problem("wrong-arch", f"it is for {facts.arch}, not {rules.arch}"))
    found += [
        problem("needed-not-allowed", f"it needs {library}")
        for library in facts.needed
        if library not in rules.allowed_needed
    ]
    found += [
        problem("search-path", f"it looks for libraries in {path!r}")
        for path in (*facts.rpath, *facts.runpath)
        if path not in rules.allowed_search_paths
    ]
    found += _check_cuda_major(facts)
    found += _check_versions(facts, rules)
    found += target_problems(facts, rules.targets) if rules.targets is not None else []
    if rules.allowed_instructions is not None:
        found += instruction_problems(facts, rules.allowed_instructions)
    found += _check_exports(facts, rules)
    found += _check_hygiene(facts, rules)
    return found


def _check_cuda_major(facts: ElfFacts) -> list[Problem]:
    """Refuse half of one CUDA and half of another."""
    majors = sorted({match[1] for name in facts.needed if (match := _CUDA_LIBRARY.fullmatch(name))})
    if len(majors) < 2:
        return []
    detail = f"it needs libraries of CUDA {' and of CUDA '.join(majors)}"
    return [Problem(problem_id="cuda-mixed", file=facts.path.name, detail=detail)]


def _check_versions(facts: ElfFacts, rules: Rules) -> list[Problem]:
    ceilings = {"GLIBC": rules.glibc_ceiling, "GLIBCXX": rules.libstdcxx_ceiling}
    found: list[Problem] = []
    for need in facts.version_needs:
        if need.family not in ceilings:
            continue
        ceiling = ceilings[need.family]
        if ceiling is not None and version_key(need.version) <= version_key(ceiling):
            continue
        limit = f"more than {ceiling}" if ceiling else "which is not allowed"
        detail = (
            f"it needs {need.family} {need.version}, {limit}: symbol {need.symbol or '?'} of {need.library}"
        )
        found.append(Problem(problem_id="version-too-new", file=facts.path.name, detail=detail))
    for name in facts.private_versions:
        detail = f"it binds to {name}, which changes with every build of that library"
        found.append(Problem(problem_id="version-private", file=facts.path.name, detail=detail))
    return found


def _check_exports(facts: ElfFacts, rules: Rules) -> list[Problem]:
    missing = sorted(rules.required_exports - facts.exports)
    surplus = sorted(rules.forbidden_exports & facts.exports)
    return [
        *(
            Problem(problem_id="export-missing", file=facts.path.name, detail=f"it does not export {name}")
            for name in missing
        ),
        *(
            Problem(problem_id="export-forbidden", file=facts.path.name, detail=f"it exports {name}")
            for name in surplus
        ),
    ]


def _check_hygiene(facts: ElfFacts, rules: Rules) -> list[Problem]:
    found: list[tuple[str, str]] = []
    if facts.has_executable_stack:
        found.append(("executable-stack", "its stack is executable"))
    if facts.has_writable_code:
        found.append(("writable-code", "it has code that is writable, or is changed at load"))
    if facts.has_debug_info and not rules.allow_debug_info:
        found.append(("debug-info", "it holds debug information"))
    needed_bytes = _PAGE_SIZES.get(facts.arch, 0)
    if facts.page_size_max is not None and facts.page_size_max < needed_bytes:
        limit = f"pages of more than {facts.page_size_max} bytes"
        found.append(("page-size", f"it cannot be loaded with {limit}, which {facts.arch} systems may have"))
    if facts.build_paths:
        shown = ", ".join(facts.build_paths[:3])
        found.append(("build-path", f"it holds {len(facts.build_paths)} paths of a build machine: {shown}"))
    return [Problem(problem_id=name, file=facts.path.name, detail=detail) for name, detail in found]


def unresolved(files: Iterable[ElfFacts], *, provided: frozenset[str] = frozenset()) -> list[Problem]:
    """Return the symbols that files loaded together need and none of them exports.

    Symbols that are bound to a version are left out: the library that owns the version has them.

    Args:
        files: everything that is loaded into one process.
        provided: symbols of libraries that are not at hand, such as those of a GPU vendor: the names that
            the stub libraries for linking have.
    """
    loaded = tuple(files)
    known = provided.union(*(facts.exports for facts in loaded))
    return [
        Problem(problem_id="symbol-unresolved", file=facts.path.name, detail=f"nothing exports {name}")
        for facts in loaded
        for name in facts.undefined
        if name not in known
    ]
