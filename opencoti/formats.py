"""What kind of executable a file is, by its first bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_APE_MAGIC: Final = (b"MZqFpD", b"jartsr", b"APEDBG")


def is_ape(path: Path) -> bool:
    """Tell whether a file is an "actually portable executable".

    Where the kernel does not know the format (ENOEXEC) it runs through `sh`. No other file does: a damaged
    engine would be read as a shell script, line by line.
    """
    try:
        with open(path, "rb") as file:
            return file.read(8).startswith(_APE_MAGIC)
    except OSError:
        return False
