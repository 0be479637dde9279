"""The engine that would be started: which one, whether it starts, and what it holds."""

from __future__ import annotations

import re
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opencoti.console import Console
from opencoti.doctor.finding import Finding
from opencoti.doctor.libraries import EngineFacts
from opencoti.errors import MissingError, OpencotiError
from opencoti.fetch.choose import parse_version
from opencoti.formats import is_ape
from opencoti.hashing import is_sha256, sha256_bytes
from opencoti.launch.binary import Binary, Search, checkout_root, find_binary

_INDEX: Final = ".opencoti/index"
_MAX_INDEX_BYTES: Final = 4 << 20
_FOLDER_DIGITS: Final = 12
_UPSTREAM_VERSION: Final = re.compile(r"opencoti-(\d+\.\d+\.\d+)")


@dataclass(frozen=True, kw_only=True)
class EngineExamination:
    """What was found about the engine. `facts` is None where there is none."""

    findings: tuple[Finding, ...]
    facts: EngineFacts | None
    named_by: str
    glibc: str | None


@dataclass(frozen=True, kw_only=True)
class _Index:
    """The index inside an artifact: version and members."""

    version: str
    sha256: str
    members: Mapping[str, str]


def examine_engine(
    environ: Mapping[str, str], *, explicit: Path | None = None, allow_try: bool = True
) -> EngineExamination:
    """Find the engine, look into it, and start it once with `--version`."""
    search = Search(environ=environ, explicit=explicit, checkout=checkout_root())
    try:
        binary = find_binary(search, Console(quiet=True))
    except OpencotiError as error:
        return EngineExamination(
            findings=(Finding.of_error("engine", "engine", error),), facts=None, named_by="", glibc=None
        )
    index = read_index(binary.path)
    facts = EngineFacts(
        path=binary.path,
        is_ape=is_ape(binary.path),
        members=index.members if index else None,
        own_folder=_own_folder(index, environ, for_ape=is_ape(binary.path)),
    )
    findings = [_describe(binary, index)]
    if allow_try:
        findings.append(_tried(binary.path))
    return EngineExamination(
        findings=tuple(findings), facts=facts, named_by=binary.named_by, glibc=_needed_glibc(binary.path)
    )


def _describe(binary: Binary, index: _Index | None) -> Finding:
    inside = f", {index.version}, {len(index.members)} members" if index else ", without an index of members"
    return Finding(
        topic="engine",
        name="engine",
        status="ok" if index else "note",
        found=f"{binary.path} (named by {binary.named_by}){inside}",
        data={
            "path": str(binary.path),
            "named_by": binary.named_by,
            "version": index.version if index else "",
            "is_ape": is_ape(binary.path),
        },
    )


def _tried(path: Path) -> Finding:
    from opencoti.fetch.trial import try_engine

    try:
        try_engine(path)
    except MissingError as error:
        return Finding.of_error("engine", "start", error)
    return Finding(topic="engine", name="start", status="ok", found="it starts on this machine (--version)")


# What `zipfile` raises over bytes that are damaged or hostile: fuzzing found each of them.
_UNREADABLE = (
    OSError,
    EOFError,
    KeyError,
    ValueError,
    RuntimeError,
    OverflowError,
    zipfile.BadZipFile,
    struct.error,
)


def read_index(path: Path) -> _Index | None:
    """Return the index inside an artifact; None where there is none, or it is not in order."""
    try:
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo(_INDEX)
            if info.file_size > _MAX_INDEX_BYTES or info.compress_type != zipfile.ZIP_STORED:
                return None
            data = archive.read(info)
    except _UNREADABLE:
        return None
    return _parse_index(data)


def _parse_index(data: bytes) -> _Index | None:
    """Parse lines like `version X`, `entry NAME` and `file|part <sha256> <size> <mode> <name>`."""
    lines = [line.split(" ") for line in data.decode("utf-8", "replace").splitlines()]
    if not lines or lines[0] != ["opencoti-index", "1"]:
        return None
    versions = [words[1] for words in lines if words[0] == "version" and len(words) == 2]
    files = [
        words for words in lines if words[0] in ("file", "part") and len(words) == 5 and is_sha256(words[1])
    ]
    if len(versions) != 1:
        return None
    return _Index(
        version=versions[0], sha256=sha256_bytes(data), members={words[4]: words[1] for words in files}
    )


def _own_folder(index: _Index | None, environ: Mapping[str, str], *, for_ape: bool) -> Path | None:
    """Return where an artifact unpacks itself: our loader's rule, or upstream's for the ape lane."""
    if index is None:
        return None
    extract, home = environ.get("OPENCOTI_EXTRACT_DIR", ""), environ.get("HOME", "")
    name = f"{index.version}-{index.sha256[:_FOLDER_DIGITS]}"
    if for_ape:
        found = _UPSTREAM_VERSION.match(index.version)
        extract, name = "", found[1] if found else ""
    if not name or not (extract or home):
        return None
    return (Path(extract) if extract else Path(home) / ".llamafile" / "v") / name


def _needed_glibc(path: Path) -> str | None:
    """Return the C library that the manifest beside an artifact asks for, where there is one."""
    from opencoti.manifest import MANIFEST_SUFFIX, load_manifest

    try:
        manifest = load_manifest(path.with_name(path.name + MANIFEST_SUFFIX).read_bytes())
    except (OSError, OpencotiError):
        return None
    parts = [manifest.host_binary, *manifest.dsos]
    floors = [part.glibc_floor for part in parts if part is not None and part.glibc_floor is not None]
    return max(floors, key=parse_version, default=None)
