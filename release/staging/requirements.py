"""What a host must have for an artifact, from what was measured in it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from opencoti.fetch.choose import parse_version
from opencoti.index import BackendRequirement, Requirements
from opencoti.manifest import Dso, Manifest
from release.planning.local import backends_of


def requirements_of(manifest: Manifest) -> Requirements:
    """Return the requirements of an artifact, for choosing.

    The C library must be new enough for the executable and the CPU libraries. What a GPU library needs
    beyond that keeps only this library from being loaded, and is not counted.
    """
    host = manifest.host_binary.glibc_floor if manifest.host_binary else None
    cpu = [dso.glibc_floor for dso in manifest.dsos if dso.backend == "cpu"]
    return Requirements(
        os=manifest.os,
        arch=manifest.arch,
        glibc=_highest([host, *cpu]),
        backends=tuple(_backend(name, manifest.dsos) for name in backends_of(manifest)),
    )


def _backend(name: str, dsos: Iterable[Dso]) -> BackendRequirement:
    mine = [dso for dso in dsos if dso.backend == name]
    return BackendRequirement(
        backend=name,
        archs=tuple(sorted({arch for dso in mine for arch in dso.archs})),
        min_driver=_highest(dso.min_driver for dso in mine),
    )


def _highest(versions: Iterable[str | None]) -> str | None:
    known = [version for version in versions if version is not None]
    return max(known, key=parse_version) if known else None
