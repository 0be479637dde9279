"""What the engine of a smoke test is to compute on, and what its log says that it did compute on. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ci.smoke.mapped import Loaded
from ci.toolchains.table import Kind
from opencoti.errors import VerificationError
from opencoti.evidence import Accelerator, Offload

CPU_NOT_TESTED: Final = ("GPU offload", "models of real size", "answers of real quality")
_GPU_NOT_TESTED: Final = ("models of real size", "answers of real quality", "several devices at once")
_SOFTWARE_NOT_TESTED: Final = ("a GPU and its driver (the device is software)", "speed")
# How the engine calls the devices of each kind of backend: a word and a number.
_PREFIXES: Final[Mapping[Kind, str]] = {"cuda": "CUDA", "hip": "ROCm", "vulkan": "Vulkan"}
# `  Vulkan0: llvmpipe (LLVM 19.1.7, 256 bits) (2048 MiB, 2048 MiB free)`
_DEVICE: Final = re.compile(r"\s+(?P<id>[A-Za-z]+\d+): (?P<name>.*) \(\d+ MiB, \d+ MiB free\)\s*")
# `load_tensors: layer   0 assigned to device Vulkan0, is_swa = 0`
_LAYER: Final = re.compile(r"load_tensors: layer +(?P<layer>\d+) assigned to device (?P<device>[^,\s]+)")
# `tensor 'output.weight' (q8_0) (and 3 others) cannot be used with preferred buffer type Vulkan0, using …`
_REFUSED: Final = re.compile(
    r"tensor '(?P<tensor>[^']*)' .*cannot be used with preferred buffer type (?P<type>\S+),"
)
# `llama_kv_cache:    Vulkan0 KV buffer size =     0.12 MiB`
_KV: Final = re.compile(r"llama_kv_cache: +(?P<device>\S+) KV buffer size")
# `sched_reserve: graph: nodes = 77, splits = 2, …`; ` (pp bs=512, tg bs=1): nodes = …, splits = 3 / 2, …`
_SPLITS: Final = re.compile(r"sched_reserve: graph.*: .*splits = (?P<splits>\d+)(?: / (?P<tokens>\d+))?,")
# The rows of the prompt are looked up on the CPU; all that follows is one part.
MAX_SPLITS: Final = 2


@dataclass(frozen=True, kw_only=True)
class ListedDevice:
    """A device as the engine lists it: `Vulkan0` and what the driver calls it."""

    id: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Target:
    """What the engine computes on.

    Attributes:
        kind: kind of the backend.
        library: file name of the backend's library; empty where it has no single one.
        variables: added to the environment of the engine.
        accelerators: devices of this machine, as the system names them; any where there are none.
        device: the one of the engine's list that is used; empty until the engine was asked.
    """

    kind: Kind = "cpu"
    library: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    accelerators: tuple[Accelerator, ...] = ()
    device: str = ""

    @property
    def is_gpu(self) -> bool:
        """Whether it is anything but the processor."""
        return self.kind != "cpu"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Words of the engine's command line."""
        if not self.is_gpu:
            return ("--device", "none")
        # Only at this level does the log say where each layer is; without it, "offloaded 3/3 layers" is
        # printed even when no device is in use.
        return ("--device", self.device, "--n-gpu-layers", "all", "--fit", "off", "--log-verbosity", "5")

    @property
    def not_tested(self) -> tuple[str, ...]:
        """What a run on it leaves untested even when it passes."""
        if not self.is_gpu:
            return CPU_NOT_TESTED
        is_software = any(item.is_software for item in self.accelerators)
        return (*_GPU_NOT_TESTED, *(_SOFTWARE_NOT_TESTED if is_software else ()))

    def choose(self, listing: str) -> Target:
        """Return this target with the first fitting device of what `--list-devices` printed.

        Raises:
            VerificationError: `smoke-no-backend-device`: the system has a device and the engine shows none.
        """
        prefix = _PREFIXES[self.kind] if self.kind != "cpu" else ""
        found = [item for item in listed_devices(listing) if re.fullmatch(rf"{prefix}\d+", item.id)]
        if not found:
            raise VerificationError(
                "smoke-no-backend-device",
                f"the engine shows no {prefix} device",
                why=f"it lists {[item.id for item in listed_devices(listing)] or 'none'}; "
                f"the system has {', '.join(item.name for item in self.accelerators) or 'one'}",
                hint="its library was not loaded, or it skips this device: see the log",
            )
        chosen = found[0]
        known = [item for item in self.accelerators if item.name == chosen.name]
        return replace(
            self,
            device=chosen.id,
            accelerators=tuple(known[:1]) or (self._unknown(chosen),),
        )

    def _unknown(self, chosen: ListedDevice) -> Accelerator:
        """A device that the system knows under another name: the engine's is shown."""
        first = next(iter(self.accelerators), None)
        return Accelerator(
            name=chosen.name,
            is_software=first.is_software if first else False,
            driver=first.driver if first else None,
        )


CPU: Final = Target()


def listed_devices(text: str) -> tuple[ListedDevice, ...]:
    """Read what `--list-devices` prints."""
    matches = (_DEVICE.fullmatch(line) for line in text.splitlines())
    return tuple(ListedDevice(id=match["id"], name=match["name"].strip()) for match in matches if match)


def check_offload(log: str, device: str, *, layers: int) -> Offload:
    """Return what the device computed if that is everything.

    Args:
        log: what the engine wrote since it was started, at the level of `Target.arguments`.
        device: as the engine names it.
        layers: of the model, the output not counted.

    Raises:
        VerificationError: `smoke-not-offloaded`: a layer, a weight or the cache is elsewhere, parts of the
            graph fell back to the CPU, or the log does not say.
    """
    places = {int(match["layer"]): match["device"] for match in _LAYER.finditer(log)}
    elsewhere = sorted(layer for layer in range(layers + 1) if places.get(layer) != device)
    if elsewhere:
        shown = ", ".join(f"{layer}: {places.get(layer, 'not mentioned')}" for layer in elsewhere)
        raise _not_offloaded(device, f"layers that are not on it: {shown}")
    refused = {match["tensor"] for match in _REFUSED.finditer(log) if match["type"] == device}
    if refused:
        raise _not_offloaded(device, f"weights that it cannot hold: {', '.join(sorted(refused))}")
    caches = {match["device"] for match in _KV.finditer(log)}
    if caches != {device}:
        raise _not_offloaded(device, f"the cache is on {', '.join(sorted(caches)) or 'nothing known'}")
    graphs = (match.groups() for match in _SPLITS.finditer(log))
    splits = max((int(count) for counts in graphs for count in counts if count), default=0)
    if not 1 <= splits <= MAX_SPLITS:
        raise _not_offloaded(device, f"its graph fell into {splits} parts, {MAX_SPLITS} are expected")
    return Offload(device=device, layers=layers + 1, splits=splits)


def require_library(loaded: Loaded, library: str) -> None:
    """Check that the backend's library is mapped; where it came from is checked for all that are.

    Raises:
        VerificationError: `smoke-backend-not-loaded`.
    """
    if not any(file.path.rsplit("/", 1)[-1] == library for file in loaded.files):
        raise VerificationError(
            "smoke-backend-not-loaded",
            f"the engine has not loaded {library}",
            why=f"mapped are {', '.join(file.path for file in loaded.files) or 'no libraries of its own'}",
        )


def _not_offloaded(device: str, why: str) -> VerificationError:
    return VerificationError(
        "smoke-not-offloaded",
        f"not everything was computed on {device}",
        why=why,
        hint="the engine falls back to the CPU without an error: see its log",
    )
