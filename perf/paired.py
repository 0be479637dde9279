"""What the benches of two servers share: their options, the servers, the model, and the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.context import Context
from ci.paths import Layout
from ci.pins import SourcePin
from ci.smoke.model import SMALL_VOCABULARY, VOCABULARY, WIDE, Shape, cached_model
from ci.sources.lanes import find_lane
from opencoti.errors import UsageError
from opencoti.hashing import sha256_file
from perf.devices import cpu_device, gpu_device
from perf.sides import Side, Sides, default_server

MODELS: Final = ("tiny", "wide")
BENCH_VERSION: Final = 1
"""Raised when something else is measured: figures of two versions are not to be compared."""


@dataclass(frozen=True, kw_only=True)
class PairedOptions:
    """The words of a bench of two servers.

    Attributes:
        server: ours; the newest build if not given.
        stock: the one to compare with; that of `build cpu --series-until` if not given.
        backend: what both compute on.
        library: file of a GPU backend, if not the one that was built here.
        models: names of `MODELS`.
        contexts: lengths in tokens, for benches that go through several; each has its own default.
        sessions: numbers of conversations at once, likewise.
        shares: percent of a prompt that all sessions have in common, likewise.
        runs: measured runs, after a warm-up that never counts.
        threads: of each server, its own choice if 0.
    """

    server: Path | None = None
    stock: Path | None = None
    backend: str = "cpu"
    library: Path | None = None
    models: tuple[str, ...] = ("tiny",)
    contexts: tuple[int, ...] = ()
    sessions: tuple[int, ...] = ()
    shares: tuple[int, ...] = ()
    runs: int = 7
    threads: int = 0

    @property
    def flags(self) -> tuple[str, ...]:
        """Words for both servers that a baseline depends on."""
        return ("--threads", str(self.threads)) if self.threads else ()


@dataclass(frozen=True, kw_only=True)
class BenchModel:
    """A generated model: noise with a real vocabulary. `shape` says what it costs."""

    name: str
    path: Path
    shape: Shape

    def arguments(self, context: int, *, slots: int = 1) -> tuple[str, ...]:
        """Return the arguments for a context of this length in each slot, whatever the model was made for."""
        return (
            *("--model", str(self.path), "--ctx-size", str(context * slots), "--parallel", str(slots)),
            *("--override-kv", f"qwen2.context_length=int:{context}", "--no-kv-unified"),
        )


def find_sides(context: Context, options: PairedOptions) -> Sides:
    """Return both servers and the device.

    Raises:
        MissingError: `perf-no-server`; and as `gpu_device`.
    """
    layout = context.layout
    pin = SourcePin.load(find_lane(layout, "elf").pin)
    ours = Side.look("ours", options.server or default_server(layout, pin, is_stock=False))
    stock = Side.look("stock", options.stock or default_server(layout, pin, is_stock=True))
    if options.backend == "cpu":
        device = cpu_device()
    else:
        device = gpu_device(layout, pin, options.backend, ours.binary, library=options.library)
    sides = Sides(stock=stock, ours=ours, device=device)
    for note in sides.notes():
        context.console.warn(f"{note}: it is measured as it is")
    return sides


def find_model(layout: Layout, name: str, *, is_gpu: bool = False) -> BenchModel:
    """Return a model of the benches, made if it is not in the build cache.

    Raises:
        UsageError: `perf-model`.
        ConfigError: `vocabulary-missing`.
    """
    if name not in MODELS:
        raise UsageError(
            "perf-model", f"there is no model {name[:40]!r}", hint=f"models are {', '.join(MODELS)}"
        )
    # A Vulkan device may refuse tensors of more than 128 MiB.
    vocabulary = layout.sources / "llama.cpp" / (SMALL_VOCABULARY if is_gpu else VOCABULARY)
    shape = WIDE if name == "wide" else None
    return BenchModel(name=name, path=cached_model(layout, vocabulary, shape=shape), shape=shape or Shape())


def report_key(
    bench: str, sides: Sides, models: tuple[BenchModel, ...], flags: Mapping[str, str]
) -> dict[str, str]:
    """Return what a baseline is kept under: device, driver, model and flags (case B59)."""
    return {
        "bench": bench,
        "version": str(BENCH_VERSION),
        **sides.device.facts,
        "models": ", ".join(f"{model.name} {sha256_file(model.path)[:16]}" for model in models),
        **flags,
    }
