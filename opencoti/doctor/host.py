"""The machine: system, C library, processor, memory, and who takes files that begin with `MZ`."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opencoti.doctor.finding import Finding
from opencoti.fetch.choose import parse_version
from opencoti.fetch.host import this_host
from opencoti.hardware import Hardware

_GIB: Final = 1 << 30
_LEAST_GLIBC: Final = "2.27"
_BINFMT: Final = Path("/proc/sys/fs/binfmt_misc")
_CPUINFO: Final = Path("/proc/cpuinfo")
_MZ: Final = "4d5a"
_APE_MAGICS: Final = ("4d5a7146704", "6a617274737")
# Levels of the x86-64 psABI, each with what it adds, in the kernel's words.
_LEVELS: Final = (
    ("x86-64-v2", {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}),
    ("x86-64-v3", {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}),
    ("x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
)
_NOTABLE: Final = (
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "asimd",
    "asimddp",
    "i8mm",
    "sve",
)


def examine_host(*, needed_glibc: str | None, hardware: Hardware) -> Iterator[Finding]:
    """Look at system, C library, processor and memory."""
    yield _system()
    yield _libc(this_host().glibc, needed_glibc or _LEAST_GLIBC)
    yield _processor(_read(_CPUINFO), platform.machine())
    yield _memory(hardware)


def _system() -> Finding:
    host = this_host()
    is_linux = host.os == "linux"
    return Finding(
        topic="host",
        name="system",
        status="ok" if is_linux else "fail",
        found=f"{host.os} {platform.release()}, {host.arch}{_inside()}",
        advice="" if is_linux else "the launcher needs Linux; start the engine by hand",
        exit_code=0 if is_linux else 4,
        data={"os": host.os, "arch": host.arch, "release": platform.release()},
    )


def _inside() -> str:
    if "microsoft" in platform.release().lower():
        return ", inside WSL"
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return ", inside a container"
    return ""


def _libc(found: str | None, needed: str) -> Finding:
    if found is None:
        return Finding(
            topic="host",
            name="C library",
            status="fail",
            found="not glibc",
            advice=f"the engine needs glibc {needed}: use a distribution with it, or a container",
            exit_code=4,
        )
    is_enough = parse_version(found) >= parse_version(needed)
    return Finding(
        topic="host",
        name="C library",
        status="ok" if is_enough else "fail",
        found=f"glibc {found}, the engine needs {needed}",
        advice="" if is_enough else "use a newer distribution, or a container",
        exit_code=0 if is_enough else 4,
        data={"glibc": found, "needed": needed},
    )


def _processor(cpuinfo: str, machine: str) -> Finding:
    """Name the processor and what of it matters for speed."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, separator, value = line.partition(":")
        if separator:
            fields.setdefault(name.strip(), value.strip())
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    level = x86_level(flags) if machine == "x86_64" else machine
    notable = [flag for flag in _NOTABLE if flag in flags]
    name = fields.get("model name") or platform.processor() or machine
    is_slow = machine == "x86_64" and "avx2" not in flags
    return Finding(
        topic="host",
        name="processor",
        status="note" if is_slow else "ok",
        found=f"{name}, {os.cpu_count()} cores, {level} ({', '.join(notable) or 'no extensions'})",
        advice="without AVX2 it computes slowly" if is_slow else "",
        data={"level": level, "flags": notable, "cores": os.cpu_count()},
    )


def x86_level(flags: set[str]) -> str:
    """Return the highest level of the psABI that a processor has."""
    level = "x86-64"
    for name, needed in _LEVELS:
        if not needed <= flags:
            break
        level = name
    return level


def _memory(hardware: Hardware) -> Finding:
    memory = hardware.memory
    return Finding(
        topic="host",
        name="memory",
        status="ok" if memory.total_bytes else "note",
        found=f"{memory.total_bytes / _GIB:.1f} GiB, {memory.available_bytes / _GIB:.1f} GiB available",
        data={"total_bytes": memory.total_bytes, "available_bytes": memory.available_bytes},
    )


def examine_gpus(hardware: Hardware) -> Iterator[Finding]:
    """Look at GPUs and their drivers."""
    for at, gpu in enumerate(hardware.gpus):
        free = "" if gpu.free_bytes is None else f", {gpu.free_bytes / _GIB:.1f} GiB free"
        parts = [gpu.name, f"{gpu.total_bytes / _GIB:.1f} GiB{free}", gpu.architecture]
        driver = f"driver {gpu.driver}" if gpu.driver else f"seen by {gpu.seen_by}"
        yield Finding(
            topic="GPU",
            name=f"{gpu.vendor} {at}",
            status="note" if gpu.is_integrated else "ok",
            found=", ".join(part for part in (*parts, driver) if part),
            data={**vars(gpu)},
        )
    if not hardware.usable_gpus:
        yield Finding(
            topic="GPU",
            name="none",
            status="note",
            found="no GPU with memory of its own; the processor computes"
            + "".join(f"\n{'':<22}{note}" for note in hardware.notes),
            data={"notes": list(hardware.notes)},
        )


@dataclass(frozen=True, kw_only=True)
class BinfmtRule:
    """One rule of the kernel: files that begin with `magic` (hex) are handed to `interpreter`."""

    name: str
    magic: str
    interpreter: str


def binfmt_rules(folder: Path = _BINFMT) -> tuple[BinfmtRule, ...] | None:
    """Return the enabled rules by content; None where the kernel shows none at all."""
    try:
        if not (folder / "status").exists():
            return None
        names = sorted(os.listdir(folder))
    except OSError:
        return None
    found = []
    for name in names:
        lines = _read(folder / name).splitlines()
        fields = {word: value for word, _, value in (line.partition(" ") for line in lines)}
        if name not in ("register", "status") and "enabled" in fields and "magic" in fields:
            found.append(
                BinfmtRule(name=name, magic=fields["magic"], interpreter=fields.get("interpreter", ""))
            )
    return tuple(found)


def examine_binfmt(rules: tuple[BinfmtRule, ...] | None, *, is_ape: bool) -> Finding:
    """Judge who takes an engine of the ape lane, whose file begins with `MZ` (case B51)."""
    if rules is None:
        return Finding(
            topic="host", name="binfmt_misc", status="ok", found="not there, so nobody takes the engine"
        )
    has_ape = any(rule.magic.startswith(_APE_MAGICS) for rule in rules)
    takers = sorted({rule.interpreter or rule.name for rule in rules if rule.magic == _MZ})
    data = {"rules": [vars(rule) for rule in rules]}
    if not takers or has_ape:
        found = (
            "a rule for APE is there" if has_ape else f"{len(rules)} rules, none for files like the engine"
        )
        return Finding(topic="host", name="binfmt_misc", status="ok", found=found, data=data)
    return Finding(
        topic="host",
        name="binfmt_misc",
        status="warn" if is_ape else "note",
        found=f"files that begin with MZ are handed to {', '.join(takers)}",
        advice="start an engine of the ape lane as `sh FILE`, or register a rule for APE"
        if is_ape
        else "it matters for engines of the ape lane only; this one is an ordinary program",
        data=data,
    )


def examine_python() -> Finding:
    """Name the versions of this program and of what it stands on."""
    from importlib import metadata

    from opencoti import __version__

    names = ("httpx", "pydantic", "cryptography", "platformdirs", "rich", "tenacity")
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "missing"
    missing = [name for name, version in versions.items() if version == "missing"]
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Finding(
        topic="versions",
        name="opencoti",
        status="warn" if missing else "ok",
        found=f"{__version__}, Python {sys.version.split()[0]}; {told}",
        advice=f"install {', '.join(missing)}" if missing else "",
        data={"opencoti": __version__, "python": sys.version.split()[0], **versions},
    )


def _read(path: Path) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""
