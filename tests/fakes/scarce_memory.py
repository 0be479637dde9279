"""A kernel that has no memory when a process asks for it, as long as a file exists.

Stands in for a machine whose other processes took what `MemAvailable` had promised a moment before: a real
one ends processes then, and rarely the one under test. Loaded before the C library (`LD_PRELOAD`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.fakes.preload import make_library

_SOURCE: Final = """
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int madvise(void * begin, size_t size, int advice) {
    const int populate_write = 23;
    const char * file = getenv("SCARCE_MEMORY");
    if (advice == populate_write && file != NULL && access(file, F_OK) == 0) {
        errno = ENOMEM;
        return -1;
    }
    return (int) syscall(SYS_madvise, begin, size, advice);
}
"""


@dataclass(frozen=True, kw_only=True)
class ScarceMemory:
    """The library, and the file that makes memory scarce while it exists."""

    library: Path
    file: Path

    @property
    def variables(self) -> dict[str, str]:
        """What a process gets in its environment."""
        return {"LD_PRELOAD": str(self.library), "SCARCE_MEMORY": str(self.file)}

    def begin(self) -> None:
        """From now on, there is none."""
        self.file.touch()

    def end(self) -> None:
        """From now on, there is as much as the machine has."""
        self.file.unlink()


def scarce_memory(folder: Path) -> ScarceMemory:
    """Make the library."""
    library = make_library(_SOURCE, folder / "scarce-memory.so")
    return ScarceMemory(library=library, file=folder / "memory-is-scarce")
