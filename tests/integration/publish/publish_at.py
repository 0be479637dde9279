"""Runs `python -m release publish` with a clock that does not wait. Called as `publish_at.py WORD…`.

The time that a fake GitHub shows passes by itself there; here a pause is simply left out.
"""

from __future__ import annotations

import argparse
import sys
import time

from ci.context import Context
from ci.paths import Layout
from ci.program import make_parser
from opencoti.console import Console
from opencoti.entry import run_command
from release import publish_cli
from release.remote.limits import Clock


class _Skipped:
    """A clock that jumps instead of waiting."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s

    def now(self) -> float:
        return time.time() + self.ahead_s

    def sleep(self, seconds: float) -> None:
        self.ahead_s += seconds


def main() -> None:
    words = sys.argv[1:]
    console = Console(as_json="--json" in words)
    skipped = _Skipped()
    clock = Clock(monotonic=skipped.monotonic, now=skipped.now, sleep=skipped.sleep)

    def command() -> int:
        args: argparse.Namespace = make_parser("publish", "", (publish_cli,)).parse_args(["publish", *words])
        return publish_cli.run_publish(args, Context(layout=Layout.find(), console=console), clock)

    run_command(command, console)


if __name__ == "__main__":
    main()
