"""How long the commands take before they do anything, beside Python's own start."""

from __future__ import annotations

import sys
from pathlib import Path

from ci.context import Context
from perf.measure import Report, time_command


def run(context: Context, *, runs: int) -> Report:
    """Measure `--help` of the commands and nox's menu."""
    root = context.layout.root
    commands: dict[str, list[str | Path]] = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "python -m opencoti.fetch --help": [sys.executable, "-m", "opencoti.fetch", "--help"],
        "python -m ci --help": [sys.executable, "-m", "ci", "--help"],
        "./noxw -l": [root / "noxw", "-l"],
    }
    samples = [time_command(name, argv, runs=runs, cwd=root) for name, argv in commands.items()]
    return Report(title="start-up", samples=samples)
