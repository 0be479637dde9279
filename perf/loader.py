"""Start-up of the packaged engine against starting the extracted engine by hand."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from ci import process
from ci.artifacts import newest_artifact
from ci.context import Context
from ci.stages.elf import SERVER
from perf.measure import Report, Sample, time_call, time_command


def run(context: Context, *, runs: int) -> Report:
    """Measure `--version` three ways: directly, through the loader, and with everything to extract."""
    artifact = newest_artifact(context.layout)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        env = {"HOME": scratch, "PATH": os.environ["PATH"]}
        process.run([artifact, "--version"], env=env)
        server = next(home.rglob(SERVER))
        direct = time_command("engine started directly", [server, "--version"], runs=runs, cwd=home, env=env)
        warm = time_command("through the loader", [artifact, "--version"], runs=runs, cwd=home, env=env)
        cold = _first_start(artifact, home, env, runs=runs)
    extra_ms = (warm.median - direct.median) * 1000
    facts = {"loader adds": f"{extra_ms:.1f} ms", "artifact": f"{artifact.stat().st_size / 1e6:.1f} MB"}
    return Report(title="loader", samples=[direct, warm, cold], facts=facts)


def _first_start(artifact: Path, home: Path, env: dict[str, str], *, runs: int) -> Sample:
    def once() -> None:
        shutil.rmtree(home / ".llamafile")
        process.run([artifact, "--version"], env=env)

    return time_call("first start, everything extracted", once, runs=runs)
