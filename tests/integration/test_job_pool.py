"""Two builds at the same time with one pool of compilers: real ninja, on this machine and in containers."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ci.engines.jobs import job_pool
from ci.engines.parallel import run_commands
from ci.paths import Layout
from ci.stages.model import Stage, Step
from tests.conftest import ROOT

EDGES = 12
POOL = 2
PROGRAM = """
import argparse, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from ci.engines import select_engine
from ci.engines.cli import job_count
from opencoti.console import Console
from opencoti.entry import run_command
from tests.integration.test_engines import SharedLayout
from tests.integration.test_job_pool import STAGE
layout = SharedLayout(root=Path({checkout!r}), cache=Path({cache!r}))
console = Console(quiet=True)
def build():
    engine = select_engine({engine!r}, layout, console)
    engine.prepare("zig", console)
    places = {{name: layout.root / name for name in ("source", "out", "tool_cache")}}
    jobs = job_count(argparse.Namespace(jobs=None))
    engine.run(STAGE, **places, jobs=jobs, log=layout.root / "log", console=console)
    return 0
run_command(build, console)
"""
# Counts for a while, and says when it began and ended, by the clock that all processes share.
WORK = """read began rest < /proc/uptime
n=0; while [ $n -lt 40000 ]; do n=$((n+1)); done
read ended rest < /proc/uptime
echo "ran $began $ended"
"""
STAGE = Stage(
    name="work",
    toolchain="zig",
    steps=(Step(title="work", argv=("{tools}/ninja", "-C", "{out}", "-f", "{src}/rules", "-j", "{jobs}")),),
    env={},
    source_tree="1" * 40,
    inputs={},
    outputs=("f0",),
)


def prepare(root: Path) -> Path:
    for name in ("source", "out", "tool_cache"):
        (root / name).mkdir(parents=True)
    (root / "source" / "work").write_text(WORK)
    script = "/bin/sh $work && echo > $out"
    rules = [f"build f{number}: run\n" for number in range(EDGES)]
    (root / "source" / "rules").write_text(f"rule run\n  command = {script}\n" + "".join(rules))
    return root


def running_at_once(logs: list[Path]) -> int:
    """The largest number of commands that ran at the same time."""
    events = []
    for log in logs:
        for began, ended in re.findall(r"ran (\S+) (\S+)", log.read_text()):
            events += [(float(began), 1), (float(ended), -1)]
    assert len(events) == 2 * EDGES * len(logs)
    now = most = 0
    # The clock counts hundredths: an end and a start in the same one did not overlap.
    for _, change in sorted(events):
        now += change
        most = max(most, now)
    return most


@pytest.mark.parametrize("engine", ["host", pytest.param("docker", marks=pytest.mark.docker)])
def test_two_builds_together_run_no_more_compilers_than_one(
    engine: str, tmp_path: Path, real_layout: Layout, request: pytest.FixtureRequest
) -> None:
    if engine == "docker":
        request.getfixturevalue("docker_daemon")
    roots = [prepare(tmp_path / name) for name in ("one", "two")]
    for root in roots:
        rules = root / "source" / "rules"
        work = "/src/work" if engine == "docker" else str(root / "source" / "work")
        rules.write_text(f"work = {work}\n{rules.read_text()}")
    commands = [
        [
            sys.executable,
            "-c",
            PROGRAM.format(root=str(ROOT), checkout=str(root), cache=str(real_layout.cache), engine=engine),
        ]
        for root in roots
    ]
    with job_pool(POOL) as pool:
        assert run_commands(commands, pool) == [0, 0]
        assert pool.refill() == 0, "every byte came back"
    assert running_at_once([root / "log" for root in roots]) == POOL


def test_a_command_that_fails_ends_none_of_the_others() -> None:
    with job_pool(POOL) as pool:
        codes = run_commands([[sys.executable, "-c", f"raise SystemExit({code})"] for code in (3, 0)], pool)
    assert codes == [3, 0]
