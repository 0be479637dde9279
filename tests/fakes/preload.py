"""C sources that are loaded into a process before its own libraries (`LD_PRELOAD`)."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


def make_library(source: str, out: Path) -> Path:
    """Compile a source to a shared library; return its path."""
    command = ("cc", "-shared", "-fPIC", "-pthread", "-x", "c", "-o", str(out), "-")
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)
    return out


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A library that makes something fail as long as a file exists, whose path it finds in a variable."""

    library: Path
    variable: str
    file: Path

    @property
    def variables(self) -> dict[str, str]:
        """What a process gets in its environment."""
        return {"LD_PRELOAD": str(self.library), self.variable: str(self.file)}

    def begin(self) -> None:
        """From now on, it fails."""
        self.file.touch()

    def end(self) -> None:
        """From now on, all is as the machine has it."""
        self.file.unlink()


def make_fault(source: str, variable: str, folder: Path) -> Fault:
    """Make the library, with nothing failing yet."""
    name = variable.lower().replace("_", "-")
    library = make_library(source, folder / f"{name}.so")
    return Fault(library=library, variable=variable, file=folder / f"{name}-is-on")
