"""The main job again: with nothing changed, and with one source file changed by a patch."""

from __future__ import annotations

import os
import sys

from ci.build import BuildOptions, make
from ci.context import Context
from perf.measure import Report, Sample, time_call, time_command


def run(context: Context, *, runs: int) -> Report:
    """Measure; the quickstart must have run once before.

    The changed file is `tools/server/server-context.cpp` of the working tree, one of the slowest to compile.
    It gets a comment line that is taken out again.
    """
    root = context.layout.root
    again = time_command(
        "quickstart, nothing changed (python -m ci)",
        [sys.executable, "-m", "ci", "quickstart", "--quiet"],
        runs=runs,
        cwd=root,
    )
    whole = time_command(
        "quickstart, nothing changed (./noxw)",
        [root / "noxw", "-s", "quickstart", "--", "--quiet"],
        runs=runs,
        cwd=root,
    )
    return Report(title="quickstart", samples=[again, whole, _one_file(context)])


def _one_file(context: Context) -> Sample:
    source = context.layout.build / "src" / "elf" / "tools" / "server" / "server-context.cpp"
    original = source.read_bytes()
    lines = iter(range(1_000_000))

    def once() -> None:
        source.write_bytes(original + f"// {next(lines)}\n".encode())
        make(context, BuildOptions(engine="host", toolchain="zig", jobs=os.cpu_count() or 1))

    try:
        return time_call("make, one .cpp changed", once, runs=1)
    finally:
        source.write_bytes(original)
