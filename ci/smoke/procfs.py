"""What Linux knows about running processes: their files, sockets and relatives. Reads /proc, changes nothing.

The kernel's answers are used instead of what a program says about itself: which file is mapped, by inode;
which process listens on a port; who belongs to a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_LISTENING: Final = "0A"
_ZOMBIE: Final = "Z"
_DELETED: Final = " (deleted)"
_LOOPBACK: Final = frozenset({"0100007F", "00000000000000000000000001000000"})


@dataclass(frozen=True, kw_only=True)
class MappedFile:
    """A file in the memory map of a process, as the kernel identifies it."""

    path: Path
    inode: int
    is_deleted: bool

    @property
    def is_at_path(self) -> bool:
        """Whether the file that now lies at `path` is the one that is mapped.

        The device number is left out: on btrfs and overlayfs the one in the map is not that of `stat`.
        """
        try:
            return not self.is_deleted and self.path.stat().st_ino == self.inode
        except OSError:
            return False


@dataclass(frozen=True, kw_only=True)
class Listener:
    """A TCP socket that waits for connections."""

    port: int
    inode: int
    is_loopback: bool


def mapped_files(pid: int) -> tuple[MappedFile, ...]:
    """Return the distinct files that a process has mapped; empty when it is gone."""
    try:
        lines = (_PROC / str(pid) / "maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ()
    found = {item.path: item for item in map(_parse_mapping, lines) if item}
    return tuple(found.values())


def _parse_mapping(line: str) -> MappedFile | None:
    """Parse `7f1c…-7f1c… r-xp 00002000 fd:01 1234   /lib/x.so`; lines without a file give None."""
    fields = line.split(maxsplit=5)
    if len(fields) < 6 or not fields[5].startswith("/") or fields[4] == "0":
        return None
    name = fields[5]
    return MappedFile(
        path=Path(name.removesuffix(_DELETED)), inode=int(fields[4]), is_deleted=name.endswith(_DELETED)
    )


def executable(pid: int) -> Path | None:
    """Return the program that a process runs, None when it is gone."""
    try:
        return Path(os.readlink(_PROC / str(pid) / "exe"))
    except OSError:
        return None


def members(session: int, mark: str) -> tuple[int, ...]:
    """Return the live processes of a run: those in its session, and those with `mark` in their environment.

    The second kind are children that moved to a session of their own.
    """
    needle = mark.encode()
    return tuple(pid for pid in _pids() if _is_member(pid, session, needle))


def _is_member(pid: int, session: int, mark: bytes) -> bool:
    try:
        # The name in parentheses may hold anything, so what follows is counted from the last one.
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    if fields[0] == _ZOMBIE:
        return False
    if int(fields[3]) == session:
        return True
    try:
        return mark in (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False


def listeners() -> tuple[Listener, ...]:
    """Return every listening TCP socket of this network namespace."""
    return tuple(item for table in ("tcp", "tcp6") for item in _listeners_of(_PROC / "self" / "net" / table))


def _listeners_of(table: Path) -> Iterator[Listener]:
    """Parse lines like `0: 0100007F:1F90 00000000:0000 0A … uid timeout inode …`."""
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTENING:
            address, _, port = fields[1].partition(":")
            yield Listener(port=int(port, 16), inode=int(fields[9]), is_loopback=address in _LOOPBACK)


def sockets_of(pids: Iterable[int]) -> dict[int, int]:
    """Return the sockets that processes hold open: inode to pid."""
    return {inode: pid for pid in pids for inode in _sockets(pid)}


def _sockets(pid: int) -> Iterator[int]:
    try:
        handles = os.listdir(_PROC / str(pid) / "fd")
    except OSError:
        return
    for handle in handles:
        try:
            target = os.readlink(_PROC / str(pid) / "fd" / handle)
        except OSError:
            continue
        if target.startswith("socket:["):
            yield int(target[8:-1])


def owner_of(listener: Listener) -> str:
    """Name the process that holds a socket, as far as this user may know."""
    pid = sockets_of(_pids()).get(listener.inode)
    if pid is None:
        return "a process of another user"
    try:
        name = (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        name = "?"
    return f"process {pid} ({name})"


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(_PROC) if name.isdigit())
