"""What a product of the build may need, offer and contain; comparison of facts with it. Pure.

`check_elf` returns what is wrong and raises nothing: the caller decides whether that is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from ci.dso.elf import ElfFacts, Kind, version_key

Role = Literal["host", "library", "backend", "cpu-variant"]

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

_ROLES: Final[tuple[tuple[re.Pattern[str], Role], ...]] = (
    (re.compile(r"llama-server"), "host"),
    (re.compile(r"libggml-cpu-[a-z0-9_]+\.so"), "cpu-variant"),
    (re.compile(r"libggml-cpu\.so"), "backend"),
    (re.compile(r"libggml(-base)?\.so(\.[0-9.]+)?"), "library"),
)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What one kind of file must be. None for a ceiling means: it must not need that family at all."""

    kinds: frozenset[Kind]
    allowed_needed: frozenset[str] = SYSTEM_LIBRARIES | ENGINE_LIBRARIES
    arch: str | None = None
    glibc_ceiling: str | None = GLIBC_CEILING
    libstdcxx_ceiling: str | None = None
    required_exports: frozenset[str] = frozenset()
    forbidden_exports: frozenset[str] = frozenset()
    allowed_search_paths: frozenset[str] = frozenset({"$ORIGIN"})
    allow_debug_info: bool = False


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One difference from the rules: a kebab-case id, the file, and what was found."""

    problem_id: str
    file: str
    detail: str

    def __str__(self) -> str:
        return f"{self.file}: {self.detail} [{self.problem_id}]"


_LIBRARY: Final[frozenset[Kind]] = frozenset({"dso"})
_INIT: Final = "ggml_backend_init"
_SCORE: Final = "ggml_backend_score"
_BY_ROLE: Final[dict[Role, Rules]] = {
    "host": Rules(kinds=frozenset({"pie"}), forbidden_exports=frozenset({_INIT, _SCORE})),
    "library": Rules(kinds=_LIBRARY, forbidden_exports=frozenset({_INIT, _SCORE})),
    "backend": Rules(
        kinds=_LIBRARY, required_exports=frozenset({_INIT}), forbidden_exports=frozenset({_SCORE})
    ),
    "cpu-variant": Rules(kinds=_LIBRARY, required_exports=frozenset({_INIT, _SCORE})),
}


def role_of(name: str) -> Role | None:
    """Return what a product of the elf lane is, by its file name; None for other files."""
    return next((role for pattern, role in _ROLES if pattern.fullmatch(name)), None)


def rules_for(role: Role) -> Rules:
    """Return the rules of the elf lane's CPU products."""
    return _BY_ROLE[role]


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
    found += _check_versions(facts, rules)
    found += _check_exports(facts, rules)
    found += _check_hygiene(facts, rules)
    return found


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
    if facts.build_paths:
        shown = ", ".join(facts.build_paths[:3])
        found.append(("build-path", f"it holds {len(facts.build_paths)} paths of a build machine: {shown}"))
    return [Problem(problem_id=name, file=facts.path.name, detail=detail) for name, detail in found]


def unresolved(files: Iterable[ElfFacts]) -> list[Problem]:
    """Return the symbols that files loaded together need and none of them exports.

    Symbols that are bound to a version are left out: the library that owns the version has them.
    """
    loaded = tuple(files)
    provided = frozenset[str]().union(*(facts.exports for facts in loaded))
    return [
        Problem(problem_id="symbol-unresolved", file=facts.path.name, detail=f"nothing exports {name}")
        for facts in loaded
        for name in facts.undefined
        if name not in provided
    ]
