"""A disk on which nothing gets whole, as long as a file exists.

Stands in for one that lags behind: `fsync` does not return before the file is gone. Loaded before the C
library (`LD_PRELOAD`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.fakes.preload import make_library

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


@dataclass(frozen=True, kw_only=True)
class SlowDisk:
    """The library, and the file that holds everything up while it exists."""

    library: Path
    file: Path

    @property
    def variables(self) -> dict[str, str]:
        """What a process gets in its environment."""
        return {"LD_PRELOAD": str(self.library), "SLOW_DISK": str(self.file)}

    def begin(self) -> None:
        """From now on, nothing gets whole."""
        self.file.touch()

    def end(self) -> None:
        """From now on, it is as fast as the machine's."""
        self.file.unlink()


def slow_disk(folder: Path) -> SlowDisk:
    """Make the library."""
    library = make_library(_SOURCE, folder / "slow-disk.so")
    return SlowDisk(library=library, file=folder / "disk-is-slow")
