"""A small program that loads one library, looks one function up, and says as JSON what the kernel has mapped.

Run by path as `python -I -S load_probe.py LIBRARY FUNCTION`; it uses the standard library only. Every name
is resolved at once, constructors run, the function is not called: with stubs of a driver in place it would
find nothing that works. Exit code 3: the library cannot be loaded; 4: it has no such function.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

_NOT_LOADED, _NO_FUNCTION = 3, 4


def main(library: str, function: str) -> int:
    """Load, look up, print."""
    try:
        loaded = ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as exc:
        sys.stderr.write(f"{exc}\n")
        return _NOT_LOADED
    if not hasattr(loaded, function):
        return _NO_FUNCTION
    sys.stdout.write(json.dumps(mapped()) + "\n")
    return 0


def mapped() -> dict[str, int]:
    """Return path and inode of every file that this process has mapped."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        rows = [line.rstrip("\n").split(maxsplit=5) for line in file]
    return {row[5]: int(row[4]) for row in rows if len(row) == 6 and row[5].startswith("/")}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
