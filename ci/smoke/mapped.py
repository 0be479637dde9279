"""Which libraries a running engine has mapped, and whether it may."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.smoke.scratch import Scratch
from ci.smoke.watch import OpenWatch
from opencoti import procfs
from opencoti.errors import VerificationError
from opencoti.evidence import MappedFile
from opencoti.hashing import sha256_file
from opencoti.manifest import Manifest

_ENGINE_LIBRARY: Final = re.compile(r"(lib)?(ggml|llama|mtmd)[A-Za-z0-9_.-]*\.(so|dylib)(\.[0-9.]+)?")
_CPU_VARIANT: Final = re.compile(r"libggml-cpu-([a-z0-9_.]+)\.so")


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The engine's own libraries as they are mapped."""

    files: tuple[MappedFile, ...]
    cpu_variant: str | None


def check_mapped(pid: int, scratch: Scratch, watch: OpenWatch, *, manifest: Manifest | None) -> Loaded:
    """Return the libraries of the engine if all of them are its own.

    Raises:
        VerificationError: `smoke-planted-library`, a planted file was opened or mapped;
            `smoke-foreign-library`, a library was mapped from outside the scratch HOME, or is not the one
            of the manifest; `smoke-no-backend-library`, the CPU variants of the manifest were not used.
    """
    mapped = procfs.mapped_files(pid)
    if watch.was_opened() or any(item.path.is_relative_to(scratch.work) for item in mapped):
        raise VerificationError(
            "smoke-planted-library",
            f"the engine opened {scratch.planted.name}, which was planted in its working folder",
            why="it loads libraries from the working folder or from where GGML_BACKEND_PATH points",
            hint="the patch that trusts only the folder of the executable is missing from this build",
        )
    own = [item for item in mapped if _ENGINE_LIBRARY.fullmatch(item.path.name)]
    files = tuple(_record(item, scratch) for item in own)
    if manifest is not None:
        _compare(files, manifest)
    return Loaded(files=files, cpu_variant=_variant(item.path for item in own))


def _record(item: procfs.MappedFile, scratch: Scratch) -> MappedFile:
    if not item.path.is_relative_to(scratch.home):
        raise _foreign(f"{item.path} is mapped, outside the scratch HOME {scratch.home}")
    if not item.is_at_path:
        raise _foreign(f"what is mapped as {item.path} (inode {item.inode}) is not the file that lies there")
    name = "~/" + item.path.relative_to(scratch.home).as_posix()
    return MappedFile(path=name, inode=item.inode, sha256=sha256_file(item.path))


def _compare(files: tuple[MappedFile, ...], manifest: Manifest) -> None:
    digests = {Path(member.name).name: member.sha256 for member in manifest.members}
    for file in files:
        if digests.get(Path(file.path).name) != file.sha256:
            raise _foreign(f"{file.path} is mapped with SHA-256 {file.sha256}, which no member has")
    if manifest.cpu_variants and _variant(Path(file.path) for file in files) is None:
        raise VerificationError(
            "smoke-no-backend-library",
            "the engine mapped no CPU backend library",
            why=f"the artifact holds {len(manifest.cpu_variants)} variants",
        )


def _variant(paths: Iterable[Path]) -> str | None:
    matches = (_CPU_VARIANT.fullmatch(path.name) for path in paths)
    return next((match[1] for match in matches if match), None)


def _foreign(why: str) -> VerificationError:
    return VerificationError(
        "smoke-foreign-library",
        "the engine uses a library that is not its own",
        why=why,
        hint="look for stale libraries that shadow those of the artifact",
    )
