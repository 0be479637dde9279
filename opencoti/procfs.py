"""What Linux knows about running processes: their files, sockets and relatives. Reads /proc, changes nothing.

The kernel's answers are used instead of what a program says about itself: which file is mapped, by inode;
which process listens on a port; who belongs to a run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opencoti.sockdiag import ListeningSocket

_PROC: Final = Path("/proc")
_LISTENING: Final = "0A"
_ZOMBIE: Final = "Z"
_DELETED: Final = " (deleted)"
# As the kernel prints addresses: words in host byte order. ::1, and ::ffff:127.x.x.x.
_LOOPBACK_6: Final = "00000000000000000000000001000000"
_MAPPED_4: Final = "0000000000000000FFFF0000"


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
    """A TCP socket that waits for connections; `address` is as the kernel prints it."""

    port: int
    inode: int
    is_loopback: bool
    address: str = ""


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


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A process that cannot be mistaken for a later one with the same number.

    `start` counts clock ticks since boot, `boot` names that boot.
    """

    pid: int
    start: int
    boot: str
    executable: str


def identify(pid: int) -> Identity | None:
    """Return who a live process is, None when it is gone or a zombie.

    The executable is empty where it may not be read (another user's process).
    """
    fields = _stat_fields(pid)
    if fields is None or fields[0] == _ZOMBIE:
        return None
    return Identity(pid=pid, start=int(fields[19]), boot=boot_id(), executable=str(executable(pid) or ""))


def is_same_process(known: Identity) -> bool:
    """Tell whether a process is still the one that was identified (case B47).

    The executable is left out: a program may replace itself and stay the same process.
    """
    now = identify(known.pid)
    return now is not None and (now.start, now.boot) == (known.start, known.boot)


def boot_id() -> str:
    """Return the name of this boot, empty where the kernel gives none."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def resident_bytes(pid: int) -> int:
    """Return how much memory a process holds, 0 when it is gone."""
    try:
        pages = int((_PROC / str(pid) / "statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def anonymous_bytes(pid: int) -> int:
    """Return how much memory a process holds that is no file's: heaps, caches, buffers; 0 when it is gone."""
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    # `Anonymous:        12345 kB`
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:")), 0)


def processor_seconds(pid: int) -> float:
    """Return how long the threads of a process have run on processors, those that ended left out.

    On a busy machine it says what a request costs where a clock says how long others were served first.
    """
    total_ns = 0
    try:
        threads = os.listdir(_PROC / str(pid) / "task")
    except OSError:
        return 0.0
    for thread in threads:
        try:
            # `RUNNING_NS WAITING_NS SLICES`
            total_ns += int((_PROC / str(pid) / "task" / thread / "schedstat").read_text().split()[0])
        except (OSError, IndexError, ValueError):
            continue
    return total_ns / 1e9


def _stat_fields(pid: int) -> list[str] | None:
    """Return the fields of `/proc/PID/stat` after the name, None when the process is gone."""
    try:
        # Every process is looked at, many times over: no Path here.
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may hold anything, so what follows is counted from the last one.
            return file.read().rpartition(b")")[2].decode("ascii", "replace").split()
    except OSError:
        return None


def descendants(pid: int) -> tuple[int, ...]:
    """Return a process and those that it and its children started, as far as they are still its family.

    Cheap where `members` looks at every process; one that left its parent is not found.
    """
    found, queue = [], [pid]
    while queue:
        parent = queue.pop()
        found.append(parent)
        queue += _children(parent)
    return tuple(found)


def _children(pid: int) -> Iterator[int]:
    """Read the children of each thread; some kernels do not tell."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                yield from map(int, file.read().split())
    except OSError:
        return


def members(session: int, mark: str) -> tuple[int, ...]:
    """Return the live processes of a run: those in its session, and those with `mark` in their environment.

    The second kind are children that moved to a session of their own. Session 0 stands for every process
    whose session lies outside this namespace, strangers all of them: asking for it gives none by session.
    """
    needle = mark.encode()
    return tuple(pid for pid in _pids() if _is_member(pid, session, needle))


def marked(mark: str) -> tuple[int, ...]:
    """Return the live processes with `mark` in their environment, whatever their session."""
    return members(0, mark)


def _is_member(pid: int, session: int, mark: bytes) -> bool:
    fields = _stat_fields(pid)
    if fields is None or fields[0] == _ZOMBIE:
        return False
    if session > 0 and int(fields[3]) == session:
        return True
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read()
    except OSError:
        return False


def listeners() -> tuple[Listener, ...]:
    """Return every listening TCP socket of this network namespace."""
    from opencoti import sockdiag

    found = sockdiag.listening()
    if found is not None:
        return tuple(map(_as_listener, found))
    return tuple(item for table in ("tcp", "tcp6") for item in _listeners_of(_PROC / "self" / "net" / table))


def _as_listener(item: ListeningSocket) -> Listener:
    # The kernel prints an address as words in host byte order, here as there.
    words = (item.address[at : at + 4] for at in range(0, len(item.address), 4))
    address = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return Listener(port=item.port, inode=item.inode, is_loopback=_is_loopback(address), address=address)


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
            yield Listener(
                port=int(port, 16),
                inode=int(fields[9]),
                is_loopback=_is_loopback(address),
                address=address,
            )


def _is_loopback(address: str) -> bool:
    """Tell whether only programs of this machine reach an address: 127.x.x.x, also as IPv6, or ::1."""
    word = address.removeprefix(_MAPPED_4) if len(address) > 8 else address
    if len(word) == 8:
        first = word[6:8] if sys.byteorder == "little" else word[:2]
        return first == "7F"
    return address == (_LOOPBACK_6 if sys.byteorder == "little" else "0" * 31 + "1")


def sockets_of(pids: Iterable[int]) -> dict[int, int]:
    """Return the sockets that processes hold open: inode to pid."""
    return {inode: pid for pid in pids for inode in _sockets(pid)}


def _sockets(pid: int) -> Iterator[int]:
    try:
        handles = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for handle in handles:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{handle}")
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
