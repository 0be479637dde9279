"""Who started a container: enough to tell, at the next start, whether that process still lives."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

RUN: Final = "org.opencoti.run"
OWNER_PID: Final = "org.opencoti.owner-pid"
OWNER_START: Final = "org.opencoti.owner-start"
HOST: Final = "org.opencoti.host"


def owner_labels(run_id: str) -> dict[str, str]:
    """Return the labels of a container of this process."""
    return {
        RUN: run_id,
        OWNER_PID: str(os.getpid()),
        OWNER_START: process_start(os.getpid()),
        HOST: host_id(),
    }


def is_orphan(labels: Mapping[str, str]) -> bool:
    """Tell whether the owner named by `labels` is gone for certain.

    Process numbers mean something only on the same boot of the same machine and in the same process
    namespace: a daemon may be shared with other machines and other containers, whose owners look dead
    from here.
    """
    if labels.get(HOST) != host_id() or not labels.get(OWNER_PID, "").isdigit():
        return False
    return process_start(int(labels[OWNER_PID])) != labels.get(OWNER_START)


def process_start(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot, empty when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The second field is the program's name in parentheses and may hold spaces; field 22 is the start.
    return text.rsplit(")", 1)[-1].split()[19]


@cache
def host_id() -> str:
    """Return what identifies this boot and this process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return "unknown"
