"""What artifacts are called, and how large one may be: for Windows, and as one file of a release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from opencoti.files import require_safe_name

OS: Final = "linux"
WINDOWS_MAX_BYTES: Final = 1 << 32
ASSET_MAX_BYTES: Final = (1 << 31) - 1  # a release asset must be smaller than 2 GiB
PART_BYTES: Final = 2047 << 20  # whole chunks and whole pages, below the limit of an asset

Product = Literal["llamafile", "embedder"]
Lane = Literal["ape", "elf"]


@dataclass(frozen=True, kw_only=True)
class PlannedPart:
    """A slice of an artifact that is too large for one release asset."""

    offset: int
    size: int


def artifact_name(*, version_string: str, arch: str, lane: Lane = "elf", flavor: str | None = None) -> str:
    """Return the file name of a bare engine artifact.

    Args:
        version_string: `opencoti-<ver>-<tag>`.
        arch: `x86_64` or `aarch64`.
        lane: the elf lane names its system, since its artifact runs on no other.
        flavor: suffix of a second artifact, `cuda12` for example.
    """
    version = version_string.removeprefix("opencoti-")
    return _name("opencoti-llamafile", version, arch=arch, lane=lane, flavor=flavor)


def embedder_name(
    *, version_string: str, tag: str, arch: str, lane: Lane = "elf", flavor: str | None = None
) -> str:
    """Return the file name of an artifact with an embedding model in it.

    It has no tag, unlike the bare engine: it is the constant name that pins ask for, cut after cut. Which
    cut it is stands in the manifest, and in the engine's `--version`.
    """
    version = version_string.removeprefix("opencoti-").removesuffix(f"-{tag}")
    return _name("opencoti-embedder", version, arch=arch, lane=lane, flavor=flavor)


def _name(product: str, version: str, *, arch: str, lane: Lane, flavor: str | None) -> str:
    parts = [product, version, *([OS] if lane == "elf" else []), arch, *([flavor] if flavor else [])]
    return require_safe_name("-".join(parts) + ".llamafile", "the version, tag and architecture")


def release_parts(size: int) -> tuple[PlannedPart, ...]:
    """Return the slices in which a release carries a file of `size` bytes; none if one asset holds it."""
    if size <= ASSET_MAX_BYTES:
        return ()
    return tuple(
        PlannedPart(offset=offset, size=min(PART_BYTES, size - offset))
        for offset in range(0, size, PART_BYTES)
    )


def size_warnings(name: str, size: int, lane: Lane) -> tuple[str, ...]:
    """Return what a user should know about an artifact of this size, one sentence each."""
    warnings = []
    if parts := release_parts(size):
        warnings.append(
            f"{name} has {size} bytes: a release carries it in {len(parts)} parts below 2 GiB each"
        )
    if size >= WINDOWS_MAX_BYTES:
        never = " (and nothing of lane elf)" if lane == "elf" else ""
        warnings.append(
            f"{name} has {size} bytes: Windows runs no executable of 4 GiB or more{never}; its manifest says "
            '"windows_runnable": false'
        )
    return tuple(warnings)
