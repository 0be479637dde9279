"""What this machine is, in the words of the manifest. Asks the running interpreter only, starts nothing."""

from __future__ import annotations

import os
import platform
import re
import sys

from opencoti.fetch.choose import Host

_MACHINES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}
_SYSTEMS = {"win32": "windows", "cygwin": "windows", "darwin": "macos"}
_GLIBC = re.compile(r"glibc (\d{1,4}(?:\.\d{1,4}){1,2})")


def this_host() -> Host:
    """Return the facts about this machine that choosing needs."""
    machine = platform.machine().lower()
    system = next((name for start, name in _SYSTEMS.items() if sys.platform.startswith(start)), None)
    return Host(
        os=system or sys.platform.rstrip("0123456789"),
        arch=_MACHINES.get(machine, machine),
        glibc=parse_glibc(_libc_text()),
    )


def parse_glibc(text: str | None) -> str | None:
    """Return the version in `glibc 2.36`, the answer of `confstr`; None for another C library."""
    match = _GLIBC.fullmatch(text.strip()) if text else None
    return match[1] if match else None


def _libc_text() -> str | None:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, ValueError, OSError):
        return None
