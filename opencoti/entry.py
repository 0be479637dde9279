"""The edge of every command: signals, exit codes, and the report of an unexpected error."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from opencoti.console import Console
from opencoti.errors import MissingError, OpencotiError, storage_error

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
_OUR_PACKAGES = frozenset({"opencoti", "ci", "release", "perf"})
_STORAGE_NUMBERS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})


class Terminated(BaseException):
    """SIGTERM arrived. Like `KeyboardInterrupt`, it unwinds through every clean-up."""


def run_command(command: Callable[[], int], console: Console, *, show_traceback: bool = False) -> NoReturn:
    """Run a command and exit with the code of the table in `docs/reference/exit-codes.md`.

    Args:
        command: does the work; its return value is the exit code.
        console: receives the error.
        show_traceback: print the traceback of an unexpected error instead of writing a report.
    """
    _fill_standard_descriptors()
    signal.signal(signal.SIGTERM, _raise_terminated)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # set by a `__main__` for the time of its imports
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = _guard(command, console, show_traceback)
    _drop_unwritable_output()
    sys.exit(code)


def _fill_standard_descriptors() -> None:
    """Put the null device where a standard stream is closed.

    The next file opened would take its number, and what a child writes to that stream would end up in it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
            os.set_inheritable(number, True)


def _drop_unwritable_output() -> None:
    """Let go of output that cannot be written; the interpreter would try again, and exit with code 120."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _guard(command: Callable[[], int], console: Console, show_traceback: bool) -> int:
    try:
        return command()
    except OpencotiError as error:
        return _tell(error, console)
    except KeyboardInterrupt:
        console.raw_error("interrupted")
        return EXIT_INTERRUPTED
    except Terminated:
        console.raw_error("terminated")
        return EXIT_TERMINATED
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as exc:
        return _tell_unexpected(exc, console, show_traceback)


def _tell(error: OpencotiError, console: Console) -> int:
    with suppress(OSError):  # with --json it goes to standard output, which may be what failed
        console.error(error)
    return error.exit_code


def _tell_unexpected(exc: Exception, console: Console, show_traceback: bool) -> int:
    if show_traceback:
        import traceback

        traceback.print_exc()
    elif failure := _failure_of_surroundings(exc):
        return _tell(failure, console)
    else:
        console.raw_error(f"bug in opencoti: {type(exc).__name__}: {exc}; {_reported(exc)}")
    return 1


def _failure_of_surroundings(exc: Exception) -> OpencotiError | None:
    """Return what to say of an error that can come from anywhere and is no bug; None if it is one."""
    if isinstance(exc, OSError) and exc.errno in _STORAGE_NUMBERS:
        return storage_error(exc, f"cannot use {exc.filename or 'a file'}")
    if isinstance(exc, ModuleNotFoundError) and (exc.name or "").split(".")[0] not in _OUR_PACKAGES:
        return MissingError(
            "python-module-missing",
            f"this Python has no module {exc.name}",
            why=f"{sys.executable} is not the environment of this command",
            hint="in a checkout use `./noxw -s SESSION` or .nox/pipeline/bin/python; else install opencoti",
        )
    return None


def _reported(exc: BaseException) -> str:
    try:
        return f"report with details: {write_report(exc)}"
    except OSError as why:
        return f"no report could be written ({why.strerror}): --traceback shows the details"


def _raise_terminated(signum: int, frame: FrameType | None) -> None:
    raise Terminated


def write_report(exc: BaseException) -> str:
    """Write what a maintainer needs to know about an unexpected error; return the path.

    The report names the command by its program only: arguments may hold secrets.
    """
    import platform
    import tempfile
    import traceback

    from opencoti import __version__

    text = (
        f"# opencoti {__version__}: unexpected error\n\n"
        f"- program: {os.path.basename(sys.argv[0])}\n"
        f"- python: {sys.version.split()[0]}, system: {platform.platform()}\n\n"
        "```\n" + "".join(traceback.format_exception(exc)) + "```\n"
    )
    handle, path = tempfile.mkstemp(prefix="opencoti-report-", suffix=".md")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    return path
