"""Texts into batches, and vectors checked: what the two embedders do alike. Pure but for `pooling_of`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opencoti.errors import UsageError, VerificationError

PROBE_TEXT: Final = "opencoti"


@dataclass(frozen=True, kw_only=True)
class Batching:
    """How much goes into one request."""

    texts: int = 64
    bytes_: int = 1 << 20


def batches_of(texts: Sequence[str], batching: Batching) -> Iterator[list[str]]:
    """Cut texts into batches, in their order; a text that is too long for any goes alone.

    Raises:
        UsageError: `text-empty`, which has no tokens and so no vector.
    """
    batch: list[str] = []
    size = 0
    for number, text in enumerate(texts):
        if not text:
            raise UsageError(
                "text-empty", f"text number {number} is empty", why="no token, no vector", hint="leave it out"
            )
        length = len(text.encode("utf-8", "surrogatepass"))
        if batch and (len(batch) >= batching.texts or size + length > batching.bytes_):
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += length
    if batch:
        yield batch


def check_vectors(vectors: Sequence[Sequence[float]], dimension: int) -> None:
    """Check vectors that are one per text and finite already.

    Raises:
        VerificationError: `embedder-other-dimension`, `embedder-zero-vector`.
    """
    for vector in vectors:
        if len(vector) != dimension:
            raise other_dimension(len(vector), dimension)
        if not any(vector):
            raise VerificationError(
                "embedder-zero-vector", "the engine gave a vector of zeros", why="it points nowhere"
            )


def other_dimension(found: int, wanted: int) -> VerificationError:
    """The vectors are of another width."""
    return VerificationError(
        "embedder-other-dimension",
        f"the engine's vectors have {found} numbers, not {wanted}",
        why="vectors of two models cannot be compared",
        hint="use the model that the other vectors were made with, or make all of them anew",
    )


def require_pooling(wanted: str | None, found: str | None) -> None:
    """Check how token vectors are put together, against what the engine's process was told.

    Raises:
        VerificationError: `embedder-other-pooling`.
    """
    if wanted is None or found == wanted:
        return
    raise VerificationError(
        "embedder-other-pooling",
        f"the engine pools by {found or 'what its model says'}, not by {wanted}",
        why="its own arguments (`.args` in the artifact) decide it",
        hint="ask for the pooling that this artifact has, or for none",
    )


def pooling_of(pid: int) -> str | None:
    """Return the pooling in a live engine's command line, as the kernel has it; None: its model's own."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return None
    return pooling_in(words)


def pooling_in(words: Sequence[str]) -> str | None:
    """Return the pooling that a command line asks for; the last word counts. Pure."""
    found = None
    for word, value in zip(words, [*words[1:], ""], strict=False):
        if word == "--pooling":
            found = value or None
    return found
