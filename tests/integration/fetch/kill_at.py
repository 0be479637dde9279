"""Runs `python -m opencoti.fetch` and kills it hard just before its N-th change of the file system.

Called as `kill_at.py N WORD…`. Uses the profiling hook of the interpreter, which sees every call of a
built-in function, so nothing in the program is replaced. Exits like the command where it ends before.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

CHANGING = {
    "open", "pwrite", "write", "ftruncate", "truncate", "fchmod", "chmod", "fsync", "rename", "replace",
    "unlink", "remove", "mkdir", "link", "copy_file_range",
}  # fmt: skip


def main() -> None:
    left = int(sys.argv[1])
    from opencoti.fetch import cli

    def watch(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        if event == "c_call" and getattr(argument, "__module__", "") == "posix":
            name = getattr(argument, "__name__", "")
            if name in CHANGING and "opencoti" in frame.f_code.co_filename:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)
    threading.setprofile(watch)
    cli.main(sys.argv[2:])


if __name__ == "__main__":
    main()
