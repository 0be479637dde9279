"""Which backends an artifact is to have, and what follows from those that cannot be had. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ci.toolchains.names import backend_names
from opencoti.errors import BuildError, UsageError
from opencoti.manifest import SkippedBackend

KNOWN: Final = backend_names()
_CUDA: Final = ("cuda12", "cuda13")


@dataclass(frozen=True, kw_only=True)
class BackendChoice:
    """What goes in, beside the CPU variants, which always do.

    Attributes:
        gpu: backends to embed.
        skipped: asked for, and left out.
        is_cpu_only: nobody wants a GPU backend in it.
    """

    gpu: tuple[str, ...] = ()
    skipped: tuple[SkippedBackend, ...] = ()
    is_cpu_only: bool


def parse_backends(text: str) -> tuple[str, ...]:
    """Read a list such as `cpu,vulkan`.

    Raises:
        UsageError: `backend-unknown`; `cuda-twice`, the engine's loader knows one CUDA library only.
    """
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        # Without a table that can be read nothing is known: who reads it next says what is wrong with it.
        if KNOWN and name not in KNOWN:
            close = difflib.get_close_matches(name, KNOWN, n=1)
            hint = f"did you mean {close[0]}?" if close else f"backends are {', '.join(KNOWN)}"
            raise UsageError("backend-unknown", f"there is no backend {name[:80]!r}", hint=hint)
    if set(_CUDA) <= set(names):
        raise UsageError(
            "cuda-twice",
            f"an artifact cannot hold both {' and '.join(_CUDA)}",
            why="the engine loads one library of the name ggml-cuda",
            hint="make two artifacts, the second one with --flavor cuda12",
        )
    return tuple(dict.fromkeys(names))


def choose_backends(
    asked: Sequence[str] | None,
    *,
    built: Sequence[str],
    is_cpu_only: bool,
    reasons: Mapping[str, str] | None = None,
    flavor: str | None = None,
) -> BackendChoice:
    """Decide on the GPU backends.

    Args:
        asked: what `--backends` named, None if it was not given.
        built: backends that are there to be embedded.
        is_cpu_only: `--cpu-only` was given. Naming no backend counts as this too as long as there is no
            GPU backend to embed.
        reasons: why a backend is not among `built`, by name.
        flavor: what `--flavor` named. Of two generations of CUDA it picks the one that goes in; without it
            that is the newer one.

    Raises:
        UsageError: `cpu-only-contradicted`; `flavor-contradicted`, the flavor names a generation of CUDA
            that was not asked for.
        BuildError: `no-gpu-backend`, GPU backends were asked for and there would be none;
            `flavor-not-built`, the generation of CUDA that the flavor names would be missing.
    """
    gpu = [name for name in asked or () if name != "cpu"]
    if is_cpu_only and gpu:
        raise UsageError(
            "cpu-only-contradicted", f"--cpu-only and --backends {','.join(gpu)} exclude each other"
        )
    if flavor in _CUDA and (is_cpu_only or (asked is not None and flavor not in asked)):
        raise UsageError(
            "flavor-contradicted",
            f"--flavor {flavor} names an artifact with {flavor}, which the other options leave out",
            hint=f"add {flavor} to --backends, or choose another name for the flavor",
        )
    possible = [name for name in built if name != "cpu"]
    left_out = {} if asked is not None else _second_generation(possible, flavor)
    wanted = gpu if asked is not None else ([] if is_cpu_only else possible)
    found = tuple(name for name in wanted if name in possible and name not in left_out)
    why = {**(reasons or {}), **left_out}
    if flavor in _CUDA and flavor not in found:
        raise BuildError(
            "flavor-not-built",
            f"--flavor {flavor} names an artifact with {flavor}, and there is none",
            why=why.get(flavor, "it was not built"),
            hint=f"`python -m ci build {flavor}`",
        )
    missing = [name for name in wanted if name not in found]
    if found and asked is None:
        missing += [name for name in why if name not in missing and name not in found]
    skipped = tuple(
        SkippedBackend(backend=name, reason=why.get(name, "it was not built")) for name in missing
    )
    if wanted and not found:
        raise BuildError(
            "no-gpu-backend",
            "the artifact would have no GPU backend",
            why="; ".join(f"{item.backend}: {item.reason}" for item in skipped),
            hint="give --cpu-only if that is what you want",
        )
    return BackendChoice(gpu=found, skipped=skipped, is_cpu_only=not wanted)


def _second_generation(possible: Sequence[str], flavor: str | None) -> dict[str, str]:
    """Return the generation of CUDA that stays out, with the reason; nothing while there is one at most."""
    both = [name for name in possible if name in _CUDA]
    if len(both) < len(_CUDA):
        return {}
    chosen = flavor if flavor in both else max(both)
    return {
        name: f"an artifact holds one generation of CUDA; this one holds {chosen}"
        for name in both
        if name != chosen
    }
