"""Flipping the pins that ship to a release: a change that is generated, and looked at like any other.

| file | names |
|---|---|
| `opencoti/fetch/pin.txt` | the engine that `python -m opencoti.fetch` gets without `--pin` |
| `vendors/pin/engine.txt` | the same, for scripts of a checkout |
| `vendors/pin/embedder.txt` | the engine with the embedding model, if the release has one |
| `vendors/llamafile/USED_TAGS` | every tag that was released: this one is added |

Comment lines of a file stay; its one other line is replaced.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opencoti.errors import ConfigError, VerificationError, storage_error
from opencoti.files import write_atomic
from opencoti.index import ReleasedArtifact, ReleaseIndex
from opencoti.pins import ArtifactPin
from release.planning.used_tags import HEAD, USED_TAGS, read_used_tags

RUNTIME_PIN: Final = "opencoti/fetch/pin.txt"
ENGINE_PIN: Final = "vendors/pin/engine.txt"
EMBEDDER_PIN: Final = "vendors/pin/embedder.txt"
DEFAULT_ARCH: Final = "x86_64"
_HEADS: Final = {
    ENGINE_PIN: "# The released engine. Format: docs/reference/artifact-pins.md\n",
    EMBEDDER_PIN: "# The released engine with its embedding model. Format: docs/reference/artifact-pins.md\n",
}


@dataclass(frozen=True, kw_only=True)
class PinChange:
    """One pin file as it is and as it will be."""

    path: Path
    name: str
    before: str
    after: str

    @property
    def is_needed(self) -> bool:
        """Whether anything differs."""
        return self.before != self.after

    def diff(self) -> str:
        """Return the change as a patch that `git apply` takes; empty where there is none."""
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            f"a/{self.name}" if self.before else "/dev/null",
            f"b/{self.name}",
        )
        return "".join(lines)


def plan_pins(root: Path, index: ReleaseIndex, *, arch: str = DEFAULT_ARCH) -> tuple[PinChange, ...]:
    """Return what would become of the pins. Writes nothing.

    Args:
        root: the checkout.
        index: a release whose signature was checked, or a staged one.
        arch: a pin names one file; this says for which hosts.

    Raises:
        ConfigError: `release-without-engine`, there is no engine without a flavor for this architecture.
        StorageError: a pin cannot be read.
    """
    engine = _find(index.artifacts, "opencoti-llamafile-", arch)
    if engine is None:
        raise ConfigError(
            "release-without-engine",
            f"release {index.tag} has no engine for {arch} that a pin could name",
            why=f"it has {', '.join(item.name for item in index.artifacts)}",
            hint="name another architecture with --arch",
        )
    embedder = _find(index.artifacts, "opencoti-embedder-", arch)
    wanted = {RUNTIME_PIN: engine, ENGINE_PIN: engine}
    if embedder is not None:
        wanted[EMBEDDER_PIN] = embedder
    changes = [_change(root, name, index, artifact) for name, artifact in wanted.items()]
    return (*changes, _use_tag(root, index.tag))


def write_pins(changes: Sequence[PinChange]) -> tuple[Path, ...]:
    """Write what differs; return these files. Raises `StorageError`."""
    needed = [change for change in changes if change.is_needed]
    for change in needed:
        write_atomic(change.path, change.after.encode("utf-8"))
    return tuple(change.path for change in needed)


def check_pins(changes: Sequence[PinChange]) -> None:
    """Refuse pins that name another release.

    Raises:
        VerificationError: `pins-outdated`, names the first file.
    """
    for change in changes:
        if change.is_needed:
            raise VerificationError(
                "pins-outdated",
                f"{change.name} does not name the release",
                hint="run `python -m release pin` without --check, and commit what it wrote",
            )


def _find(artifacts: Sequence[ReleasedArtifact], product: str, arch: str) -> ReleasedArtifact | None:
    fitting = [
        item
        for item in artifacts
        if item.name.startswith(product) and item.flavor is None and item.requires.arch in (arch, "any")
    ]
    return min(fitting, key=lambda item: item.name, default=None)


def _change(root: Path, name: str, index: ReleaseIndex, artifact: ReleasedArtifact) -> PinChange:
    path = root / name
    before = _read(path)
    line = f"{index.repo} {index.tag} {artifact.name} {artifact.sha256}\n"
    ArtifactPin.parse(line, name)  # what is written is what clients can read
    comments = [text for text in before.splitlines(keepends=True) if text.startswith("#")]
    head = "".join(comments) if before else _HEADS.get(name, "")
    return PinChange(path=path, name=name, before=before, after=head + line)


def _use_tag(root: Path, tag: str) -> PinChange:
    """Add the tag to those that no later release may have."""
    path = root / USED_TAGS
    before = _read(path)
    after = before if tag in read_used_tags(root) else f"{before or HEAD}{tag}\n"
    return PinChange(path=path, name=USED_TAGS, before=before, after=after)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as exc:
        if isinstance(exc, OSError):
            raise storage_error(exc, f"cannot read {path}") from exc
        raise ConfigError("pin-not-text", f"cannot read {path}", why="it is not UTF-8") from exc
