"""What the servers of a bench compute on, and the proof that they did.

For the processor there is nothing to prove. A GPU backend lies beside the server as a library; the log must
then say that every layer, every weight and the cache are on the device. A silent fall-back to the processor
is a reason why a figure does not count.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ci import process
from ci.paths import Layout
from ci.pins import SourcePin
from ci.smoke.device import this_device
from ci.smoke.devices import find_target
from ci.smoke.target import CPU, Target, check_offload
from ci.toolchains.table import load_table
from opencoti.errors import MissingError, VerificationError, storage_error

_LIST_TIMEOUT_S: Final = 300


@dataclass(frozen=True, kw_only=True)
class BenchDevice:
    """A device. `library` is the GPU backend's file; `facts` name the device and its driver for keys."""

    target: Target = CPU
    library: Path | None = None
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Words of the server's command line."""
        return self.target.arguments

    @property
    def variables(self) -> Mapping[str, str]:
        """Added to the server's environment."""
        return self.target.variables

    def place(self, binary: Path, folder: Path) -> Path:
        """Return the server to start: for a GPU a copy with the library beside it, where it is looked for."""
        if self.library is None:
            return binary
        return assemble(binary, self.library, folder / "engine")

    def problems(self, log: str, *, layers: int) -> tuple[str, ...]:
        """Say what was not computed on the device, as the log of a server that has answered tells."""
        if not self.target.is_gpu:
            return ()
        try:
            check_offload(log, self.target.device, layers=layers)
        except VerificationError as error:
            return (f"{error.what}: {error.why}",)
        return ()


def assemble(binary: Path, library: Path, folder: Path) -> Path:
    """Copy a server, the libraries beside it and a backend into one folder; return the server's path."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in (binary, *binary.parent.glob("lib*.so*"), library):
            _link_or_copy(path.resolve(), folder / path.name)
    except OSError as exc:
        raise storage_error(exc, f"cannot put a server together in {folder}") from exc
    return folder / binary.name


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def cpu_device() -> BenchDevice:
    """Return the processor of this machine."""
    found = this_device()
    facts = {"device": f"{found.cpu_model}, {len(os.sched_getaffinity(0))} cores", "driver": found.kernel}
    return BenchDevice(facts=facts)


def gpu_device(
    layout: Layout, pin: SourcePin, backend: str, server: Path, *, library: Path | None = None
) -> BenchDevice:
    """Return the device of a GPU backend, asked for by the server that will use it.

    Raises:
        MissingError: `perf-no-device`; `perf-no-backend`, its library is not built.
        VerificationError: `smoke-no-backend-device`, the server does not see it.
        ConfigError: the table cannot be read, or has no such backend.
    """
    row = load_table(layout.table).backend(backend)
    target = find_target(row, os.environ)
    if target is None:
        raise MissingError("perf-no-device", f"this machine has no device for {backend}")
    path = library or layout.dist / "backends" / backend / pin.version / row.library
    if not path.is_file():
        raise MissingError(
            "perf-no-backend",
            f"there is no library {path}",
            hint=f"python -m ci build {backend}, or name it with --backend-library",
        )
    place = layout.build / "perf" / "listing"
    shutil.rmtree(place, ignore_errors=True)
    listing = process.run(
        [assemble(server, path, place), "--list-devices"],
        env=dict(os.environ) | dict(target.variables),
        timeout_s=_LIST_TIMEOUT_S,
    )
    shutil.rmtree(place, ignore_errors=True)
    chosen = target.choose(listing.text)
    first = next(iter(chosen.accelerators))
    facts = {"device": f"{backend}: {first.name}", "driver": first.driver or "unknown"}
    return BenchDevice(target=chosen, library=path, facts=facts)
