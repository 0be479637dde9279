"""A small program that prints the Vulkan devices of this machine as JSON; a driver that crashes ends only it.

Run by path as `python -I -S vulkan_query.py`; it uses the standard library only, and the loader of Vulkan.
One object per device, in the order in which every program sees them: name, type (the number of
VkPhysicalDeviceType), driver. Exit code 3: there is no loader, or it makes no instance.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from typing import Any

_NO_VULKAN = 3
_MAX_DEVICES = 64
_API_1_2 = 1 << 22 | 2 << 12
# vulkan_core.h: VkStructureType
_APPLICATION_INFO = 0
_INSTANCE_CREATE_INFO = 1
_PROPERTIES_2 = 1000059001
_DRIVER_PROPERTIES = 1000196000
# VkPhysicalDeviceProperties2: type, pointer, then VkPhysicalDeviceProperties of 824 bytes.
_PROPERTIES_AT, _PROPERTIES_BYTES = 16, 824
_TYPE_AT, _NAME_AT, _NAME_BYTES = 16, 20, 256
# VkPhysicalDeviceDriverProperties: type, pointer, id, then two texts.
_DRIVER_NAME_AT, _DRIVER_BYTES = 20, 544


class _Application(ctypes.Structure):
    """VkApplicationInfo."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("version", ctypes.c_uint32),
        ("engine", ctypes.c_char_p),
        ("engine_version", ctypes.c_uint32),
        ("api", ctypes.c_uint32),
    )


class _Instance(ctypes.Structure):
    """VkInstanceCreateInfo."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("application", ctypes.POINTER(_Application)),
        ("layer_count", ctypes.c_uint32),
        ("layers", ctypes.c_void_p),
        ("extension_count", ctypes.c_uint32),
        ("extensions", ctypes.c_void_p),
    )


def main() -> int:
    """Print the devices."""
    try:
        devices = query(ctypes.CDLL("libvulkan.so.1"))
    except OSError as exc:
        sys.stderr.write(f"{exc}\n")
        return _NO_VULKAN
    sys.stdout.write(json.dumps(devices) + "\n")
    return 0


def query(vulkan: ctypes.CDLL) -> list[dict[str, Any]]:
    """Return what each device says about itself. Raises `OSError` when no instance can be made."""
    application = _Application(type=_APPLICATION_INFO, api=_API_1_2)
    info = _Instance(type=_INSTANCE_CREATE_INFO, application=ctypes.pointer(application))
    instance = ctypes.c_void_p()
    code = vulkan.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(instance))
    if code != 0:
        raise OSError(f"vkCreateInstance returns {code}")
    count = ctypes.c_uint32(_MAX_DEVICES)
    handles = (ctypes.c_void_p * _MAX_DEVICES)()
    code = vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), handles)
    if code < 0:
        raise OSError(f"vkEnumeratePhysicalDevices returns {code}")
    return [_describe(vulkan, handles[number]) for number in range(count.value)]


def _describe(vulkan: ctypes.CDLL, handle: int | None) -> dict[str, Any]:
    driver = ctypes.create_string_buffer(_DRIVER_BYTES)
    struct.pack_into("<iiQ", driver, 0, _DRIVER_PROPERTIES, 0, 0)
    properties = ctypes.create_string_buffer(_PROPERTIES_AT + _PROPERTIES_BYTES)
    struct.pack_into("<iiQ", properties, 0, _PROPERTIES_2, 0, ctypes.addressof(driver))
    vulkan.vkGetPhysicalDeviceProperties2(ctypes.c_void_p(handle), properties)
    own = properties.raw[_PROPERTIES_AT:]
    names = (driver.raw[at : at + _NAME_BYTES] for at in (_DRIVER_NAME_AT, _DRIVER_NAME_AT + _NAME_BYTES))
    return {
        "name": _text(own[_NAME_AT : _NAME_AT + _NAME_BYTES]),
        "type": struct.unpack_from("<i", own, _TYPE_AT)[0],
        "driver": " ".join(text for text in map(_text, names) if text),
    }


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main())
