"""C sources that are loaded into a process before its own libraries (`LD_PRELOAD`)."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_library(source: str, out: Path) -> Path:
    """Compile a source to a shared library; return its path."""
    command = ("cc", "-shared", "-fPIC", "-pthread", "-x", "c", "-o", str(out), "-")
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)
    return out
