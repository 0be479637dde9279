"""The facts of ELF files as text and as data."""

from __future__ import annotations

from typing import Any

from ci.dso.elf import ElfFacts
from ci.dso.problem import Problem


def as_dict(facts: ElfFacts, problems: list[Problem]) -> dict[str, Any]:
    """Return what `--json` prints for one file; exported names are counted, not listed."""
    return {
        "file": str(facts.path),
        "kind": facts.kind,
        "static": facts.is_static,
        "arch": facts.arch,
        "needed": list(facts.needed),
        "rpath": list(facts.rpath),
        "runpath": list(facts.runpath),
        "soname": facts.soname,
        "glibcFloor": facts.glibc_floor,
        "libstdcxxFloor": facts.libstdcxx_floor,
        "versions": [
            {"family": need.family, "version": need.version, "library": need.library, "symbol": need.symbol}
            for need in facts.version_needs
        ],
        "privateVersions": list(facts.private_versions),
        "initSymbols": list(facts.init_symbols),
        "exports": len(facts.exports),
        "undefined": list(facts.undefined),
        "executableStack": facts.has_executable_stack,
        "writableCode": facts.has_writable_code,
        "debugInfo": facts.has_debug_info,
        "buildPaths": list(facts.build_paths),
        "cuda": _cuda(facts),
        "hip": None if facts.hip is None else list(facts.hip),
        "instructions": _instructions(facts),
        "problems": [{"id": item.problem_id, "detail": item.detail} for item in problems],
    }


def as_text(facts: ElfFacts, problems: list[Problem]) -> str:
    """Return a few lines about one file."""
    rows = {
        "kind": f"{facts.kind}{', static' if facts.is_static else ''}, {facts.arch}",
        "soname": facts.soname or "",
        "needs": " ".join(facts.needed),
        "looks in": " ".join((*facts.rpath, *facts.runpath)),
        "versions": ", ".join(
            f"{need.family} {need.version} ({need.symbol or need.library})" for need in facts.version_needs
        ),
        "entry points": " ".join(facts.init_symbols),
        "code for": " ".join(facts.gpu_targets),
        "processor": _processor(facts),
        "warnings": ", ".join(_warnings(facts)),
    }
    lines = [f"  {name:<13}{text}" for name, text in rows.items() if text]
    lines += [f"  PROBLEM      {problem.detail} [{problem.problem_id}]" for problem in problems]
    return "\n".join([str(facts.path), *lines])


def _warnings(facts: ElfFacts) -> list[str]:
    marks = {
        "executable stack": facts.has_executable_stack,
        "writable code": facts.has_writable_code,
        "debug information": facts.has_debug_info,
        f"{len(facts.build_paths)} build paths": bool(facts.build_paths),
    }
    return [name for name, is_set in marks.items() if is_set]


def _cuda(facts: ElfFacts) -> dict[str, list[str]] | None:
    if facts.cuda is None:
        return None
    return {"sass": list(facts.cuda.sass), "ptx": list(facts.cuda.ptx), "other": list(facts.cuda.other)}


def _instructions(facts: ElfFacts) -> dict[str, Any] | None:
    found = facts.instructions
    if found is None:
        return None
    uses = {use.feature: {"count": use.count, "functions": list(use.functions)} for use in found.uses}
    return {"total": found.total, "unknown": found.unknown, "uses": uses}


def _processor(facts: ElfFacts) -> str:
    if facts.instructions is None:
        return ""
    words = ["x86-64", *(use.feature for use in facts.instructions.uses)]
    unknown = facts.instructions.unknown
    return " ".join(words) + (f" ({unknown} places not understood)" if unknown else "")
