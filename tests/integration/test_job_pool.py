"""Two builds at the same time with one pool of compilers: real ninja, on this machine and in containers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ci.engines.jobs import job_pool
from ci.engines.parallel import Ended, run_commands
from ci.paths import Layout
from ci.stages.model import Stage, Step
from opencoti import procfs
from tests.conftest import ROOT, RecordedConsole

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
    engine: str,
    tmp_path: Path,
    real_layout: Layout,
    recorded: RecordedConsole,
    request: pytest.FixtureRequest,
) -> None:
    if engine == "docker":
        request.getfixturevalue("docker_daemon")
    roots = [prepare(tmp_path / name) for name in ("one", "two")]
    for root in roots:
        rules = root / "source" / "rules"
        work = "/src/work" if engine == "docker" else str(root / "source" / "work")
        rules.write_text(f"work = {work}\n{rules.read_text()}")
    commands = {
        root.name: [
            sys.executable,
            "-c",
            PROGRAM.format(root=str(ROOT), checkout=str(root), cache=str(real_layout.cache), engine=engine),
        ]
        for root in roots
    }
    with job_pool(POOL) as pool:
        ended = run_commands(commands, pool, recorded.console)
        assert [item.code for item in ended.values()] == [0, 0], recorded.text
        assert pool.refill() == 0, "every byte came back"
    assert running_at_once([root / "log" for root in roots]) == POOL


def test_a_command_that_fails_ends_none_of_the_others(recorded: RecordedConsole) -> None:
    program = "import sys; print('out'); print('first\\nlast', file=sys.stderr); raise SystemExit({})"
    commands = {name: [sys.executable, "-c", program.format(code)] for name, code in (("a", 3), ("b", 0))}
    with job_pool(POOL) as pool:
        ended = run_commands(commands, pool, recorded.console)
    assert ended == {"a": Ended(code=3, output=b"out\n"), "b": Ended(code=0, output=b"out\n")}
    assert sorted(line.split() for line in recorded.text.splitlines()) == sorted(
        [name, "|", word] for name in commands for word in ("first", "last")
    )


def test_a_command_that_cannot_start_ends_those_before(recorded: RecordedConsole, tmp_path: Path) -> None:
    waiting = tmp_path / "waits"
    os.mkfifo(waiting)
    # It would wait for ever: nobody opens the pipe for writing.
    commands = {
        "waits": ["env", f"WAITS={waiting}", "cat", str(waiting)],
        "missing": [str(tmp_path / "nothing")],
    }
    with job_pool(POOL) as pool, pytest.raises(FileNotFoundError):
        run_commands(commands, pool, recorded.console)
    assert not [pid for pid in procfs.marked(str(waiting)) if pid != os.getpid()]


def test_what_is_wrong_with_each_of_several_builds_is_told(tmp_path: Path) -> None:
    env = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/no.sock"}
    words = [sys.executable, "-m", "ci", "build", "vulkan", "rocm", "--engine", "docker", "--json"]
    ended = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    error = json.loads(ended.stdout)
    assert (ended.returncode, error["error"]) == (5, "backends-failed")
    for name in ("vulkan", "rocm"):
        assert f"{name}: " in error["why"]
        assert re.search(rf"^ *{name} \| error \[docker-", ended.stderr, re.MULTILINE)
    assert "no.sock" in error["why"]
