"""Killed hard before, within and after every call: the next run needs no help, and nothing is there twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from release.publish import Outcome
from tests.conftest import ROOT
from tests.fakes.github.server import GitHub
from tests.fakes.github.state import FakeClock
from tests.fakes.staged_release import StagedRelease
from tests.integration.publish.bench import Bench, candidate_of, github_for, staged_in

LAG_S = 3.0
RUNNER = Path(__file__).with_name("publish_at.py")
CALLS = 28  # of an undisturbed run, counted below
CREATE, FIRST_UPLOAD, FLIP = 7, 12, 27


@dataclass
class Killer:
    """Kills the process `pid` at one call. Each call takes a second of the clock."""

    at: int
    phase: str
    clock: FakeClock
    pid: int | None = None
    was_done: bool = False
    seen: set[tuple[int, str]] = field(default_factory=set)

    def __call__(self, number: int, phase: str) -> None:
        self.seen.add((number, phase))
        if phase == "before":
            self.clock.at += 1.0
        if (number, phase) == (self.at, self.phase) and self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
            self.was_done = True


def command(staged: StagedRelease, *words: str) -> list[str]:
    return [
        sys.executable, str(RUNNER), "--tag", staged.tag, "--dir", str(staged.folder), "--yes",
        "--allow-development-key", "--pubkey", staged.key.public.text, *words,
    ]  # fmt: skip


def start(staged: StagedRelease, github: GitHub) -> subprocess.Popen[bytes]:
    env = {**os.environ, **github.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command(staged), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def killed_run(staged: StagedRelease, github: GitHub, killer: Killer) -> int:
    github.on_call = killer
    with start(staged, github) as process:
        killer.pid = process.pid
        process.communicate(timeout=300)
        killer.pid = None
    return process.returncode


# All of them by hand: OPENCOTI_TEST_KILLS=all. Otherwise the ends of the phases and the middle of uploads.
PLACES = (
    [(number, phase) for number in range(1, CALLS + 1) for phase in ("before", "middle", "after")]
    if os.environ.get("OPENCOTI_TEST_KILLS") == "all"
    else [(1, "after"), (CREATE, "before"), (CREATE, "after"), (11, "after"), (FIRST_UPLOAD + 3, "middle"),
          (23, "after"), (FLIP, "before"), (FLIP, "after")]
)  # fmt: skip


@pytest.mark.parametrize(("at", "phase"), PLACES)
def test_killed_hard_at_a_call_the_next_run_completes_it(tmp_path: Path, at: int, phase: str) -> None:
    staged = staged_in(tmp_path)
    with github_for(staged) as github:
        github.store.list_lag_s = LAG_S
        killer = Killer(at=at, phase=phase, clock=github.clock)
        code = killed_run(staged, github, killer)
        if not killer.was_done:
            assert phase == "middle"  # not every call has a body
            assert code == 0
        else:
            assert code in (-signal.SIGKILL, 0)
        bench = Bench(candidate=candidate_of(staged), github=github)
        bench.check()
        github.on_call = lambda number, phase: None
        outcome = bench.publish()
        assert isinstance(outcome, Outcome)
        bench.check()
        assert bench.is_public


def test_an_undisturbed_run_makes_the_calls_that_are_killed_at(tmp_path: Path) -> None:
    staged = staged_in(tmp_path)
    with github_for(staged) as github:
        github.store.list_lag_s = LAG_S
        killer = Killer(at=0, phase="", clock=github.clock)
        assert killed_run(staged, github, killer) == 0
        assert max(number for number, _ in killer.seen) == CALLS
        operations = [item.operation.partition("/")[2] for item in github.log]
        assert operations[CREATE - 1] == "create-release"
        assert operations[FIRST_UPLOAD - 2 : FIRST_UPLOAD] == ["list-release-assets", "upload-release-asset"]
        assert operations[FLIP - 1] == "update-release"
        assert (FIRST_UPLOAD, "middle") in killer.seen
