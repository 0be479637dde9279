"""The argument list of an engine. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opencoti.launch.options import LaunchOptions, parse_gpu


def engine_arguments(
    options: LaunchOptions,
    *,
    alias: str,
    devices: Sequence[str],
    slots_folder: Path,
    for_ape: bool,
    knows_origins: bool = True,
) -> list[str]:
    """Return the words after the program.

    Args:
        options: what is wanted.
        alias: name of the model, empty for the engine's own.
        devices: the engine's names of the GPUs to use (elf lane, explicit `--gpu` only).
        slots_folder: private folder that makes the engine offer the erasing of slots.
        for_ape: the engine is of the ape lane.
        knows_origins: the engine can be told which web pages may use it; then those of this machine only.
    """
    words = ["--server"] if for_ape else []
    if knows_origins and not for_ape:
        words += ["--cors-origins", "localhost"]
    if options.model is not None:
        words += ["--model", str(options.model.absolute())]
    if alias:
        words += ["--alias", alias]
    words += _gpu_words(options, devices, for_ape=for_ape)
    if options.purpose == "embedding":
        words.append("--embedding")
    if options.parallel is not None:
        words += ["--parallel", str(options.parallel)]
    if options.api_key_file is not None:
        words += ["--api-key-file", str(options.api_key_file.absolute())]
    if options.is_isolated:
        words += _isolation_words(slots_folder)
    # Ours come last: with these the engine takes the last value, and what it really did is checked later.
    return [*words, *options.arguments, "--host", options.host, "--port", str(options.port)]


def _gpu_words(options: LaunchOptions, devices: Sequence[str], *, for_ape: bool) -> list[str]:
    gpu = parse_gpu(options.gpu)
    if gpu == "auto":
        return []
    if for_ape:
        return ["--gpu", gpu]
    if gpu == "disable":
        return ["--device", "none"]
    return ["--device", ",".join(devices)]


def _isolation_words(slots_folder: Path) -> list[str]:
    """Turn off what conversations share: the prompt cache in memory, and choosing a slot by its content."""
    return [
        *("--cache-ram", "0", "--no-cache-idle-slots", "--slot-prompt-similarity", "0"),
        *("--no-kv-unified", "--slot-save-path", str(slots_folder)),
    ]
