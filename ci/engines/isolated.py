"""A small program that runs one command without network, in process namespaces that die with us.

Run by path as `python -I -S isolated.py MODE PARENT_PID COMMAND…`; it uses the standard library only.
MODE is `root` (new network and process namespaces), `user` (the same inside a new user namespace, for
everyone else) or `none`. `python -I -S isolated.py probe` prints the first of these that works here.

Two processes stand between the caller and the command. The outer one waits and passes signals on; the
inner one is process 1 of the new namespace, so that whatever the command started ends with it, by the
kernel, however hard any of the three is killed. The death signal is set after the namespaces are made:
gaining capabilities there clears it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_GRACE_S = 2
_MODES = ("root", "user")
_CANNOT_RUN = 127


def main(words: Sequence[str]) -> int:
    """Run the command named by `words`, or probe."""
    if list(words) == ["probe"]:
        sys.stdout.write(probe() + "\n")
        return 0
    mode, parent, *command = words
    return run_isolated(mode, int(parent), command)


def probe() -> str:
    """Return the first mode that this machine allows, trying each in a child of its own."""
    for mode in _MODES:
        if mode == "root" and os.geteuid() != 0:
            continue
        child = os.fork()
        if child == 0:
            os._exit(_try_mode(mode))
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            return mode
    return "none"


def _try_mode(mode: str) -> int:
    try:
        enter_namespaces(mode)
        # The first process of a new namespace shows whether processes can be made there at all.
        child = os.fork()
    except OSError:
        return 1
    if child == 0:
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_isolated(mode: str, parent: int, command: Sequence[str]) -> int:
    """Run `command` in the namespaces of `mode`; return its exit code, 128 + N for signal N."""
    os.umask(0o022)
    if mode == "none":
        die_with_parent(signal.SIGTERM, parent)
        _exec(command)
    enter_namespaces(mode)
    die_with_parent(signal.SIGTERM, parent)
    ready, go = os.pipe()
    inner = os.fork()
    if inner == 0:
        os.close(go)
        os._exit(_be_first_process(ready, command))
    os.close(ready)
    _pass_signals_to(inner)
    os.write(go, b"x")
    return _exit_code(os.waitpid(inner, 0)[1])


def enter_namespaces(mode: str) -> None:
    """Leave the network and process namespaces of the caller. Raises `OSError`."""
    uid, gid = os.getuid(), os.getgid()
    flags = _CLONE_NEWNET | _CLONE_NEWPID | (_CLONE_NEWUSER if mode == "user" else 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    if mode == "user":
        # Mapped to itself: files belong to the caller, inside and outside.
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def die_with_parent(number: signal.Signals, parent: int | None) -> None:
    """Ask for a signal when the parent dies; leave at once if it already has."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        sys.exit(128 + number)


def _be_first_process(ready: int, command: Sequence[str]) -> int:
    die_with_parent(signal.SIGKILL, None)
    if os.read(ready, 1) != b"x":
        return 128 + signal.SIGKILL
    os.close(ready)
    child = os.fork()
    if child == 0:
        _exec(command)
    _pass_signals_to(child)
    while True:
        pid, status = os.wait()
        if pid == child:
            return _exit_code(status)


def _pass_signals_to(child: int) -> None:
    """Pass a request to end on to `child`, and end it hard two seconds later."""

    def forward(number: int, frame: FrameType | None) -> None:
        os.kill(child, signal.SIGTERM)
        signal.alarm(_GRACE_S)

    def end(number: int, frame: FrameType | None) -> None:
        os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGALRM, end)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _exec(command: Sequence[str]) -> NoReturn:
    # Python ignores SIGPIPE, and an ignored signal stays ignored in the program that is executed.
    for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(command[0], list(command))  # noqa: S606
    except OSError as exc:
        sys.stderr.write(f"cannot run {command[0]}: {exc.strerror}\n")
        os._exit(_CANNOT_RUN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
