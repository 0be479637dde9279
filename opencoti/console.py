"""The one place that writes to the terminal.

Standard output carries results only (a path, a table, JSON); progress, notices and errors go to
standard error. On GitHub Actions groups fold and warnings become annotations.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

from opencoti.errors import OpencotiError

_CLEAR_LINE = "\r\x1b[2K"
_MIN_STATUS_INTERVAL_S = 0.1
_PLAIN_STATUS_INTERVAL_S = 15.0


class Console:
    """Writer for one run of a command. Holds no thread and needs no closing.

    Args:
        quiet: no progress and no notices; warnings and errors still show.
        as_json: results and errors are printed as JSON.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        as_json: bool = False,
        stdout: IO[str] | None = None,
        stderr: IO[str] | None = None,
    ) -> None:
        self.quiet = quiet
        self.as_json = as_json
        # Python has no stream where the caller closed the descriptor (`2>&-`, some service managers).
        self._out = stdout or sys.stdout or io.StringIO()
        self._err = stderr or sys.stderr or io.StringIO()
        self._on_github = os.environ.get("GITHUB_ACTIONS") == "true"
        self._is_tty = self._err.isatty() and os.environ.get("TERM") != "dumb"
        self._has_color = _wants_color(self._is_tty)
        self._status_shown = False
        self._status_at = 0.0

    def info(self, text: str) -> None:
        """Tell what is being done."""
        if not self.quiet:
            self._line(text)

    def step(self, text: str) -> None:
        """Announce the next named step."""
        if not self.quiet:
            self._line(self._paint("1", f"== {text}"))

    def warn(self, text: str) -> None:
        """Tell what the user should know although the command goes on."""
        if self._on_github:
            self._line(f"::warning::{_escaped(text)}")
        else:
            self._line(self._paint("33", "WARN") + f" {text}")

    def status(self, text: str) -> None:
        """Show a line that the next one replaces; without a terminal, one line per 15 s."""
        if self.quiet:
            return
        now = time.monotonic()
        interval = _MIN_STATUS_INTERVAL_S if self._is_tty else _PLAIN_STATUS_INTERVAL_S
        if now - self._status_at < interval:
            return
        self._status_at = now
        if self._is_tty:
            width = os.get_terminal_size(self._err.fileno()).columns if self._err.isatty() else 80
            self._say(_CLEAR_LINE + text[: max(20, width - 1)])
            self._status_shown = True
        else:
            self._line(text)

    @contextmanager
    def group(self, title: str) -> Iterator[None]:
        """Enclose the output of one phase; folds on GitHub, ends with its duration elsewhere."""
        started = time.monotonic()
        if self._on_github and not self.quiet:
            self._line(f"::group::{title}")
        else:
            self.step(title)
        try:
            yield
        finally:
            if not self.quiet:
                self._line(f"   {title}: {time.monotonic() - started:.1f} s")
                if self._on_github:
                    self._line("::endgroup::")

    def result(self, text: str, data: Any = None) -> None:
        """Print the result of the command: `text`, or `data` as JSON when asked for."""
        self._clear()
        if self.as_json:
            text = json.dumps(data if data is not None else {"result": text}, indent=2, ensure_ascii=False)
        self._out.write(text + "\n")
        self._out.flush()

    def error(self, error: OpencotiError) -> None:
        """Print a failure: one line that says what and why, and one that says what to do."""
        if self.as_json:
            self.result("", error.as_dict())
        if self._on_github:
            self._line(f"::error::{_escaped(str(error))}")
        self._line(self._paint("31", "error") + f" [{error.error_id}] {error}")
        if error.hint:
            self._line(f"  next: {error.hint}")

    def relay(self, name: str, line: str) -> None:
        """Print a line that a command of ours wrote, named after that command; quiet or not is its affair."""
        self._line(f"{self._paint('2', f'{name:>8} |')} {line}")

    def raw_error(self, text: str) -> None:
        """Print a line for a failure that is no `OpencotiError`."""
        self._line(self._paint("31", "error") + f" {text}")

    def _line(self, text: str) -> None:
        self._clear()
        self._say(text + "\n")

    def _clear(self) -> None:
        if self._status_shown:
            self._say(_CLEAR_LINE)
            self._status_shown = False

    def _say(self, text: str) -> None:
        """Write to standard error. That its disk is full, or nobody reads it, does not stop the work."""
        with suppress(OSError):
            self._err.write(text)
            self._err.flush()

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._has_color else text


def _escaped(text: str) -> str:
    """Escape what would end a workflow command of GitHub Actions, or start another one."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _wants_color(is_tty: bool) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    return is_tty or bool(os.environ.get("FORCE_COLOR"))
