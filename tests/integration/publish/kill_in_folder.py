"""Runs `python -m release` and kills it hard just before its N-th change of a file system.

Called as `kill_in_folder.py N WORD…`. The interpreter's profiling hook sees every call of a built-in
function. Pauses are left out.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType

CHANGING = {"open", "fchmod", "fsync", "rename", "replace", "unlink", "mkdir", "symlink", "rmdir"}


def main() -> None:
    left = int(sys.argv[1])
    time.sleep = lambda seconds: None
    from release import cli

    def watch(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        if event == "c_call" and getattr(argument, "__module__", "") == "posix":
            where = frame.f_code.co_filename
            if getattr(argument, "__name__", "") in CHANGING and (
                "pathlib" in where or "opencoti" in where or "release" in where
            ):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)
    cli.main(sys.argv[2:])


if __name__ == "__main__":
    main()
