"""A kernel that has no memory when a process asks for it, as long as a file exists.

Stands in for a machine whose other processes took what `MemAvailable` had promised a moment before: a real
one ends processes then, and rarely the one under test. Loaded before the C library (`LD_PRELOAD`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.fakes.preload import Fault, make_fault

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


def scarce_memory(folder: Path) -> Fault:
    """Make the library."""
    return make_fault(_SOURCE, "SCARCE_MEMORY", folder)
