"""The arguments of an embedding server: one table, read by the launcher and by whoever writes an `.args`.

Whether an engine knows an option that exists only with a patch is read from its bytes: option names are
strings in it, in an artifact too, since its members are stored as they are.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from opencoti.errors import UsageError, storage_error

Lane = Literal["ape", "elf"]
Pooling = Literal["last", "mean", "cls"]

DEFAULT_CONTEXT_TOKENS: Final = 16384
DEFAULT_PARALLEL: Final = 2
DEFAULT_POOLING: Final[Pooling] = "last"


@dataclass(frozen=True, kw_only=True)
class EmbedderOption:
    """One option of an embedding server.

    Attributes:
        words: the option and its value.
        lanes: where it belongs.
        needs_patch: left out where the engine does not know it.
    """

    words: tuple[str, ...]
    lanes: tuple[Lane, ...] = ("ape", "elf")
    needs_patch: bool = False


def embedder_table(
    *,
    pooling: Pooling = DEFAULT_POOLING,
    context_tokens: int = DEFAULT_CONTEXT_TOKENS,
    parallel: int = DEFAULT_PARALLEL,
) -> tuple[EmbedderOption, ...]:
    """Return the options of an embedding server, in their order.

    Raises:
        UsageError: `bad-embedder-option`.
    """
    if pooling not in get_args(Pooling):
        raise _bad("pooling", str(pooling), f"one of {', '.join(get_args(Pooling))}")
    if not parallel <= context_tokens <= 1 << 22:
        raise _bad("context", str(context_tokens), "a number of tokens")
    if not 1 <= parallel <= 256:
        raise _bad("parallel", str(parallel), "a number from 1 to 256")
    # Only by `last` can a text be computed in parts; otherwise it has to fit in one.
    whole = (
        ()
        if pooling == "last"
        else (EmbedderOption(words=("--ubatch-size", str(context_tokens // parallel))),)
    )
    return (
        EmbedderOption(words=("--server",), lanes=("ape",)),
        EmbedderOption(words=("--embedding",)),
        EmbedderOption(words=("--pooling", pooling)),
        EmbedderOption(words=("--ctx-size", str(context_tokens))),
        EmbedderOption(words=("--parallel", str(parallel))),
        *whole,
        EmbedderOption(words=("--slot-initial-ctx", "4096"), needs_patch=True),
        EmbedderOption(words=("--slot-shrink-idle-ms", "30000"), needs_patch=True),
    )


def build_embedder_args(
    *,
    lane: Lane = "elf",
    pooling: Pooling = DEFAULT_POOLING,
    context_tokens: int = DEFAULT_CONTEXT_TOKENS,
    parallel: int = DEFAULT_PARALLEL,
    offered: Collection[str] | None = None,
) -> list[str]:
    """Return the command line of an embedding server, without model, address and port.

    Args:
        lane: whose server it is.
        pooling: how the vectors of a text's tokens become one.
        context_tokens: of all slots together.
        parallel: texts at once (slots).
        offered: options that the engine knows (`offered_options`); those that need a patch and are not among
            them are left out. None: the engine has the whole patch series.

    Raises:
        UsageError: `bad-embedder-option`.
    """
    table = embedder_table(pooling=pooling, context_tokens=context_tokens, parallel=parallel)
    return [
        word
        for option in table
        if lane in option.lanes and (not option.needs_patch or offered is None or option.words[0] in offered)
        for word in option.words
    ]


def offered_options(engine: Path, names: Sequence[str]) -> frozenset[str]:
    """Return those of `names` (`--name`) that end a string of the file.

    Raises:
        StorageError: the file cannot be read.
    """
    try:
        with open(engine, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return frozenset(name for name in names if data.find(name.encode() + b"\0") >= 0)
    except ValueError:  # an empty file cannot be mapped
        return frozenset()
    except OSError as exc:
        raise storage_error(exc, f"cannot read {engine}") from exc


def patch_options() -> tuple[str, ...]:
    """Return the names of the options that exist only with a patch."""
    return tuple(option.words[0] for option in embedder_table() if option.needs_patch)


def _bad(option: str, value: str, expected: str) -> UsageError:
    return UsageError(
        "bad-embedder-option", f"{option} {value[:60]!r} is not usable", why=f"expected {expected}"
    )
