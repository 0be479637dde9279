"""A small program that runs a command where the kernel starts programs of another processor in an emulator.

Run by path as `python -I -S emulated.py EMULATOR MACHINE COMMAND…`; it uses the standard library only.
MACHINE is the number that ELF headers give the processor. The emulator is registered with binfmt_misc in a
user namespace of its own, which Linux allows from 6.7 on: nothing of this machine changes, no other program
sees it, and it is gone with the command. So the command is started the way its own machine would start it,
and so is whatever it executes in turn. COMMAND takes the place of this program and keeps its process id;
without one it is only tried whether the kernel lets us.

Exit codes of its own: 125, it does not; 126, the command cannot be started.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_NEW_MOUNTS = 0x00020000
_NEW_USERS = 0x10000000
_PR_SET_PDEATHSIG = 1
_REFUSED, _CANNOT_RUN = 125, 126
_FOLDER = "/proc/sys/fs/binfmt_misc"
# 64 bits, least significant byte first, version 1, any system; a program with or without a fixed address.
_MAGIC = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00"
_MASK = b"\xff" * 7 + b"\x00" + b"\xff" * 8 + b"\xfe\xff" + b"\xff\xff"


def main(words: Sequence[str]) -> int:
    """Register the emulator and become the command."""
    emulator, machine, *command = words
    parent = os.getppid()
    try:
        register_alone(emulator, int(machine))
    except OSError as exc:
        sys.stderr.write(f"the kernel lets nobody register an emulator here: {exc.strerror}\n")
        return _REFUSED
    if not command:
        return 0
    die_with_parent(parent)
    # Python ignores SIGPIPE, and an ignored signal stays ignored in the program that is executed.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execv(command[0], command)  # noqa: S606
    except OSError as exc:
        sys.stderr.write(f"cannot run {command[0]}: {exc.strerror}\n")
    return _CANNOT_RUN


def register_alone(emulator: str, machine: int) -> None:
    """Register the emulator for this process and its children. Raises `OSError`."""
    uid, gid = os.geteuid(), os.getegid()
    # Only root of the namespace may register; the command runs as the user that we were, in a further one.
    _enter_namespaces(_NEW_MOUNTS, users=f"0 {uid} 1", groups=f"0 {gid} 1")
    register(emulator, machine)
    _enter_namespaces(0, users=f"{uid} 0 1", groups=f"{gid} 0 1")


def _enter_namespaces(flags: int, *, users: str, groups: str) -> None:
    _check(ctypes.CDLL(None, use_errno=True).unshare(_NEW_USERS | flags))
    for name, text in (("setgroups", "deny"), ("uid_map", users), ("gid_map", groups)):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def die_with_parent(parent: int) -> None:
    """Ask for SIGTERM when the parent dies; gaining capabilities in a namespace has cleared that wish."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)


def register(emulator: str, machine: int) -> None:
    """Let the kernel start ELF programs for `machine` in `emulator`, in this namespace. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.mount(b"binfmt_misc", _FOLDER.encode(), b"binfmt_misc", 0, None))
    magic = _MAGIC + machine.to_bytes(2, "little")
    # P keeps the first argument as it was given; F opens the emulator now, so it is found from anywhere.
    line = f":opencoti:M::{_escaped(magic)}:{_escaped(_MASK)}:{emulator}:PF"
    with open(f"{_FOLDER}/register", "w") as file:
        file.write(line)


def _escaped(data: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in data)


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
