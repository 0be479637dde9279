"""What an embedding server is asked for, and how it is launched: one file, or model and engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opencoti.embedder.arguments import (
    DEFAULT_CONTEXT_TOKENS,
    DEFAULT_PARALLEL,
    DEFAULT_POOLING,
    Pooling,
    build_embedder_args,
    offered_options,
    patch_options,
)
from opencoti.errors import MissingError, UsageError
from opencoti.formats import is_ape
from opencoti.launch.binary import Binary, Product, Search, checkout_root, find_binary, find_named
from opencoti.launch.options import LaunchOptions

if TYPE_CHECKING:
    from opencoti.console import Console

EMBEDDER: Final = Product(
    label="embedder",
    stem="opencoti-embedder",
    variable="OPENCOTI_EMBEDDER_LOCAL",
    programs=("opencoti-embedder",),
    pin_package="opencoti.embedder",
)
# The launcher says these itself.
_LAUNCHERS: Final = ("--server", "--embedding", "--parallel")


@dataclass(frozen=True, kw_only=True)
class EmbedderOptions:
    """One wanted embedding server.

    Without a model, an artifact that holds one is looked for: `binary`, `OPENCOTI_EMBEDDER_LOCAL`, the pin
    and its cache, the newest `opencoti-embedder-*` of a checkout, `opencoti-embedder` on PATH.

    Attributes:
        model: GGUF file for a plain engine; None: the artifact holds its own.
        binary: the artifact or engine, instead of the one that is found.
        pooling: how the vectors of a text's tokens become one. With a model it is set (`last` if None); an
            artifact decides it itself, and is refused if it decides otherwise.
        dimension: width that the vectors must have; None takes what comes.
        context_tokens: of all slots together, where a model is given.
        parallel: texts at once, where a model is given.
        gpu: as in `LaunchOptions`.
        batch_texts: most texts in one request.
        batch_bytes: most bytes of text in one request (a longer text goes alone).
        timeout_s: how long the start may take, in seconds; None: as in `LaunchOptions`.
        allow_fetch: download the pinned artifact where it is not here yet.
        pin: pin file instead of the shipped one.
        arguments: more arguments for the engine, as they are.
    """

    model: Path | None = None
    binary: Path | None = None
    pooling: Pooling | None = None
    dimension: int | None = None
    context_tokens: int = DEFAULT_CONTEXT_TOKENS
    parallel: int = DEFAULT_PARALLEL
    gpu: str = "auto"
    batch_texts: int = 64
    batch_bytes: int = 1 << 20
    timeout_s: float | None = None
    allow_fetch: bool = False
    pin: Path | None = None
    arguments: tuple[str, ...] = ()

    def require_valid(self) -> None:
        """Raise `UsageError` (`bad-embedder-option`) for a number that cannot be meant."""
        for name, value in (
            ("dimension", self.dimension),
            ("batch_texts", self.batch_texts),
            ("batch_bytes", self.batch_bytes),
        ):
            if value is not None and value < 1:
                raise UsageError("bad-embedder-option", f"{name} {value} is below 1")


def embedder_launch_options(
    options: EmbedderOptions, console: Console, *, environ: Mapping[str, str] | None = None
) -> LaunchOptions:
    """Find what is to be started, and return it as options of a launch (or of a `LocalTier`).

    Raises:
        UsageError: `bad-embedder-option`, `engine-path-wrong`.
        MissingError: `embedder-not-found`, `engine-not-found`.
        VerificationError: `hash-mismatch`, a named file is not the pinned one.
        OpencotiError: as `opencoti.launch.binary.find_binary`.
    """
    options.require_valid()
    given = os.environ if environ is None else environ
    binary = _find(options, console, given)
    common = LaunchOptions(
        binary=binary.path,
        model=options.model,
        gpu=options.gpu,
        purpose="embedding",
        timeout_s=options.timeout_s,
        arguments=options.arguments,
    )
    if options.model is None:
        return common
    words = build_embedder_args(
        lane="ape" if is_ape(binary.path) else "elf",
        pooling=options.pooling or DEFAULT_POOLING,
        context_tokens=options.context_tokens,
        parallel=options.parallel,
        offered=offered_options(binary.path, patch_options()),
    )
    return replace(common, parallel=options.parallel, arguments=(*_passed_on(words), *options.arguments))


def _passed_on(words: list[str]) -> list[str]:
    """Leave out what the launcher says itself, with its value."""
    result: list[str] = []
    is_kept = True
    for word in words:
        if word.startswith("--"):
            is_kept = word not in _LAUNCHERS
        if is_kept:
            result.append(word)
    return result


def _find(options: EmbedderOptions, console: Console, environ: Mapping[str, str]) -> Binary:
    search = Search(
        environ=environ,
        explicit=options.binary,
        pin=options.pin,
        checkout=checkout_root(),
        allow_fetch=options.allow_fetch,
    )
    if options.model is not None or options.binary is not None:
        return find_binary(search, console)
    found, tried = find_named(replace(search, product=EMBEDDER), console)
    if found is None:
        raise MissingError(
            "embedder-not-found",
            "no artifact with an embedding model was found on this machine",
            why="; ".join(tried),
            hint="name a GGUF file as model, which any engine can serve, or an artifact as binary",
        )
    return found
