"""The commands that make the planned release, in order, as they are to be typed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from opencoti.manifest import MANIFEST_SUFFIX
from opencoti.trust.comment import INDEX_NAME
from release.planning.model import PLAN_NAME, Phase, PlannedArtifact
from release.planning.request import Request

_CI = ("python", "-m", "ci")
_RELEASE = ("python", "-m", "release")
# Kinds of evidence that a command of the same name makes.
_TESTS = ("smoke", "bench")


def plan_phases(
    request: Request, tag: str, artifacts: Sequence[PlannedArtifact], *, host_arch: str
) -> tuple[Phase, ...]:
    """Return every phase after `plan`. `plan.json` stands for the file that the plan was written to."""
    folder = f"dist/release/{tag}"
    engines = [artifact for artifact in artifacts if artifact.product == "llamafile"]
    steps = [
        *_build(request, engines, host_arch),
        *(step for artifact in artifacts for step in _prove(request, artifact)),
        ("stage", (*_RELEASE, "stage", "--plan", PLAN_NAME)),
        ("provenance", (*_RELEASE, "provenance", folder)),
        ("sign", (*_RELEASE, "sign", *_signed(folder, artifacts))),
        ("sums", (*_RELEASE, "sums", folder, "--sign")),
        (
            "publish",
            (*_RELEASE, "publish", "--tag", tag, "--dir", folder, "--repo", request.repo, "--to",
             request.target, "--yes"),
        ),
        ("check", (*_RELEASE, "check", "--tag", tag, "--repo", request.repo, "--dir", folder,
                   *_check_words(request.target))),
        ("pin", (*_RELEASE, "pin", "--from", folder)),
    ]  # fmt: skip
    return tuple(Phase(name=name, argv=argv) for name, argv in steps)


def _check_words(target: str) -> tuple[str, ...]:
    return () if target == "github" else ("--from", target)


def _build(
    request: Request, engines: Iterable[PlannedArtifact], host_arch: str
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield what compiles, from scratch. `package` compiles the engine itself: a build without caches leaves
    nothing that it could take.
    """
    by_arch: dict[str, list[PlannedArtifact]] = {}
    for artifact in engines:
        by_arch.setdefault(artifact.arch, []).append(artifact)
    for arch, items in by_arch.items():
        words = ("--engine", request.engine, "--no-cache", *(() if arch == host_arch else ("--arch", arch)))
        gpu = dict.fromkeys(name for item in items for name in item.backends if name != "cpu")
        if gpu:
            yield "build", (*_CI, "build", *gpu, *words)
        for item in items:
            flavor = () if item.flavor is None else ("--flavor", item.flavor)
            yield "package", (*_CI, "package", "--backends", ",".join(item.backends), *flavor, *words)


def _prove(request: Request, artifact: PlannedArtifact) -> Iterator[tuple[str, tuple[str, ...]]]:
    path = f"dist/llamafile/{artifact.name}"
    yield "verify", (*_CI, "verify", path)
    for backend in artifact.backends:
        for kind in _TESTS:
            if kind in request.kinds:
                yield kind, (*_CI, kind, path, "--backend", backend)


def _signed(folder: str, artifacts: Iterable[PlannedArtifact]) -> Iterator[str]:
    yield f"{folder}/{INDEX_NAME}"
    yield from (f"{folder}/{artifact.name}{MANIFEST_SUFFIX}" for artifact in artifacts)
