"""A program of its own that prints the GPUs that Vulkan sees, one JSON line each. Standard library only.

It is run by its path: what a driver does to this process (crash, hang, print) stays here.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any, Final

_NAMES: Final = ("libvulkan.so.1", "libvulkan.1.dylib", "vulkan-1.dll")
NO_LIBRARY: Final = 3
REFUSED: Final = 4
_MAX_GPUS: Final = 64
_PROCESSOR: Final = 4
_DEVICE_LOCAL: Final = 1
# VkPhysicalDeviceProperties: vendorID at 8, deviceType at 16, deviceName[256] at 20; about 830 bytes in all.
_PROPERTIES_BYTES: Final = 4096
# VkPhysicalDeviceMemoryProperties: count, 32 types of 8 bytes, count of heaps, 16 heaps of 16 bytes.
_HEAP_COUNT_AT: Final = 260
_HEAPS_AT: Final = 264
_HEAP_BYTES: Final = 16


class _InstanceInfo(ctypes.Structure):
    """`VkInstanceCreateInfo`."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("flags", ctypes.c_uint),
        ("application", ctypes.c_void_p),
        ("layer_count", ctypes.c_uint),
        ("layers", ctypes.c_void_p),
        ("extension_count", ctypes.c_uint),
        ("extensions", ctypes.c_void_p),
    )


def list_devices() -> int:
    """Print one JSON line per GPU; return the exit code."""
    library = _load()
    if library is None:
        return NO_LIBRARY
    instance = ctypes.c_void_p()
    info = _InstanceInfo(type=1)
    if library.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(instance)) != 0:
        return REFUSED
    count = ctypes.c_uint(_MAX_GPUS)
    handles = (ctypes.c_void_p * _MAX_GPUS)()
    if library.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), handles) != 0:
        return REFUSED
    for handle in handles[: count.value]:
        told = _describe(library, ctypes.c_void_p(handle))
        if told["kind"] != _PROCESSOR:  # a driver that computes on the CPU is no GPU
            sys.stdout.write(json.dumps(told) + "\n")
    return 0


def _describe(library: Any, handle: ctypes.c_void_p) -> dict[str, Any]:
    properties = ctypes.create_string_buffer(_PROPERTIES_BYTES)
    library.vkGetPhysicalDeviceProperties(handle, properties)
    memory = ctypes.create_string_buffer(_PROPERTIES_BYTES)
    library.vkGetPhysicalDeviceMemoryProperties(handle, memory)
    heaps = min(_unsigned(memory.raw, _HEAP_COUNT_AT, 4), 16)
    starts = [_HEAPS_AT + at * _HEAP_BYTES for at in range(heaps)]
    own = sum(
        _unsigned(memory.raw, at, 8) for at in starts if _unsigned(memory.raw, at + 8, 4) & _DEVICE_LOCAL
    )
    name = properties.raw[20:276].split(b"\0", 1)[0].decode("utf-8", "replace")
    return {
        "vendor": _unsigned(properties.raw, 8, 4),
        "kind": _unsigned(properties.raw, 16, 4),
        "name": name,
        "bytes": own,
    }


def _unsigned(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], sys.byteorder)


def _load() -> Any:
    for name in _NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


if __name__ == "__main__":
    sys.exit(list_devices())
