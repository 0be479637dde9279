"""The edge of every command: signals, exit codes, and the report of an unexpected error."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from opencoti.console import Console
from opencoti.errors import OpencotiError

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class Terminated(BaseException):
    """SIGTERM arrived. Like `KeyboardInterrupt`, it unwinds through every clean-up."""


def run_command(command: Callable[[], int], console: Console, *, show_traceback: bool = False) -> NoReturn:
    """Run a command and exit with the code of the table in `docs/reference/exit-codes.md`.

    Args:
        command: does the work; its return value is the exit code.
        console: receives the error.
        show_traceback: print the traceback of an unexpected error instead of writing a report.
    """
    signal.signal(signal.SIGTERM, _raise_terminated)
    sys.exit(_guard(command, console, show_traceback))


def _guard(command: Callable[[], int], console: Console, show_traceback: bool) -> int:
    try:
        return command()
    except OpencotiError as error:
        console.error(error)
        return error.exit_code
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
        if show_traceback:
            traceback.print_exc()
        else:
            console.raw_error(
                f"bug in opencoti: {type(exc).__name__}: {exc}; report with details: {write_report(exc)}"
            )
        return 1


def _raise_terminated(signum: int, frame: FrameType | None) -> None:
    raise Terminated


def write_report(exc: BaseException) -> str:
    """Write what a maintainer needs to know about an unexpected error; return the path.

    The report names the command by its program only: arguments may hold secrets.
    """
    import platform

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
