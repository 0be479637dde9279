"""A disk on which nothing gets whole, as long as a file exists.

Stands in for one that lags behind: `fsync` does not return before the file is gone. Loaded before the C
library (`LD_PRELOAD`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.fakes.preload import Fault, make_fault

_SOURCE: Final = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int fsync(int file) {
    const char * lag = getenv("SLOW_DISK");
    while (lag != NULL && access(lag, F_OK) == 0) {
        usleep(5000);
    }
    return (int) syscall(SYS_fsync, file);
}
"""


def slow_disk(folder: Path) -> Fault:
    """Make the library."""
    return make_fault(_SOURCE, "SLOW_DISK", folder)
