"""Which backends of an artifact the GPUs of a machine can run, and why not. Pure: facts in, words out.

Rules: NVIDIA's machine code (`sm_86`) runs on GPUs of the same major number from that minor one on, its
portable code (`compute_80`) on every GPU from there on; code for one kind only ends in `a`, for one family in
`f`. AMD's code is for one kind (`gfx1100`). Nothing is started; `opencoti.hardware` finds the facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opencoti.fetch.versions import parse_version

if TYPE_CHECKING:
    from opencoti.hardware import Gpu, Hardware
    from opencoti.index import BackendRequirement

_CUDA_CODE = re.compile(r"(sm|compute)_([0-9]{1,3})([0-9])([af]?)")
_CAPABILITY = re.compile(r"([0-9]{1,3})\.([0-9])")
_DRIVER = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}")


@dataclass(frozen=True, kw_only=True)
class Use:
    """Whether a backend can be used here. `rank`: 2 for the maker's own library, 1 for Vulkan, 0 for none."""

    backend: str
    rank: int
    reason: str


def uses_of(needs: Iterable[BackendRequirement], hardware: Hardware) -> tuple[Use, ...]:
    """Return what becomes of each GPU backend on this machine; the CPU's is no question."""
    return tuple(_use(need, hardware.gpus) for need in needs if need.backend != "cpu")


def _use(need: BackendRequirement, gpus: tuple[Gpu, ...]) -> Use:
    if need.backend == "vulkan":
        names = [gpu.name for gpu in gpus]
        return Use(backend=need.backend, rank=min(len(names), 1), reason=_for(names) or "no GPU found")
    vendor, maker = ("amd", "AMD") if need.backend == "rocm" else ("nvidia", "NVIDIA")
    mine = [gpu for gpu in gpus if gpu.vendor == vendor]
    objections = {gpu.name: _objection(need, gpu) for gpu in mine}
    fitting = [name for name, objection in objections.items() if not objection]
    reason = _for(fitting) or "; ".join(objections.values()) or f"no {maker} GPU found"
    return Use(backend=need.backend, rank=2 if fitting else 0, reason=reason)


def _for(names: list[str]) -> str:
    return f"for {', '.join(dict.fromkeys(names))}" if names else ""


def _objection(need: BackendRequirement, gpu: Gpu) -> str:
    """Say why a GPU of the right maker is of no use; empty when it is."""
    if need.min_driver and _is_older(gpu.driver, need.min_driver):
        return f"it needs driver {need.min_driver}, {gpu.name} has {gpu.driver}"
    if need.archs and gpu.architecture and not any(_runs(code, gpu.architecture) for code in need.archs):
        return f"it has no code for {gpu.name} ({gpu.architecture})"
    return ""


def _is_older(driver: str, needed: str) -> bool:
    return _DRIVER.fullmatch(driver) is not None and parse_version(driver) < parse_version(needed)


def _runs(code: str, architecture: str) -> bool:
    """Tell whether code runs on a GPU; `architecture` is `9.0` or `gfx1100`."""
    form, gpu = _CUDA_CODE.fullmatch(code), _CAPABILITY.fullmatch(architecture)
    if form is None or gpu is None:
        return code.partition(":")[0] == architecture
    of_code, of_gpu = (int(form[2]), int(form[3])), (int(gpu[1]), int(gpu[2]))
    if form[4] == "a":
        return of_code == of_gpu
    is_portable = form[1] == "compute" and not form[4]
    return of_code <= of_gpu and (is_portable or of_code[0] == of_gpu[0])
