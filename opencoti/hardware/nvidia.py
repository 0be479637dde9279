"""NVIDIA GPUs, through NVML, the library that comes with every driver."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

from opencoti.hardware import Answer, Gpu

# The second is where Windows puts it for programs inside WSL.
_NAMES: Final = ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
_OK: Final = 0
_TEXT_BYTES: Final = 256
_MAX_GPUS: Final = 64
Load = Callable[[str], Any]


class _MemoryInfo(ctypes.Structure):
    """`nvmlMemory_t`."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _NvmlError(Exception):
    """A call failed; the text names it and its code."""


def ask_nvml(load: Load = ctypes.CDLL) -> Answer:
    """Return the NVIDIA GPUs; a note where the library is missing or refuses."""
    library = _load(load)
    if library is None:
        return Answer(notes=("NVIDIA: no driver library (libnvidia-ml.so.1) on this machine",))
    try:
        _call(library, "nvmlInit_v2")
    except _NvmlError as exc:
        return Answer(notes=(f"NVIDIA: the driver does not answer ({exc})",))
    try:
        return Answer(gpus=tuple(_gpus(library)))
    except _NvmlError as exc:
        return Answer(notes=(f"NVIDIA: the driver does not tell its GPUs ({exc})",))
    finally:
        library.nvmlShutdown()


def _load(load: Load) -> Any:
    for name in _NAMES:
        try:
            return load(name)
        except OSError:
            continue
    return None


def _gpus(library: Any) -> list[Gpu]:
    driver = _text(library, "nvmlSystemGetDriverVersion")
    count = ctypes.c_uint()
    _call(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
    return [_gpu(library, index, driver) for index in range(min(count.value, _MAX_GPUS))]


def _gpu(library: Any, index: int, driver: str) -> Gpu:
    handle = ctypes.c_void_p()
    _call(library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
    memory, major, minor = _MemoryInfo(), ctypes.c_int(), ctypes.c_int()
    name = _text(library, "nvmlDeviceGetName", handle)
    try:
        _call(library, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    except _NvmlError:
        memory = _MemoryInfo()  # systems with one memory for all (Jetson, GB10) do not support the question
    _call(library, "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
    return Gpu(
        vendor="nvidia",
        name=name,
        total_bytes=memory.total,
        free_bytes=memory.free if memory.total else None,
        architecture=f"{major.value}.{minor.value}",
        driver=driver,
        seen_by="nvml",
        is_integrated=not memory.total,
    )


def _text(library: Any, function: str, *arguments: Any) -> str:
    buffer = ctypes.create_string_buffer(_TEXT_BYTES)
    _call(library, function, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES))
    return buffer.value.decode("utf-8", "replace")


def _call(library: Any, function: str, *arguments: Any) -> None:
    try:
        code = getattr(library, function)(*arguments)
    except AttributeError as exc:
        raise _NvmlError(f"it has no {function}") from exc
    if code != _OK:
        raise _NvmlError(f"{function} gives code {code}")
