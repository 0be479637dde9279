"""Many runs of the publisher against a GitHub where calls fail at random, each judged afterwards.

Called as `python -m tests.integration.publish.storm [[FIRST] END]`; prints the figures. Every run, and every
re-run of it, must end published and whole, or unpublished with a message; the last one must end published.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from opencoti.errors import NetworkError, OpencotiError
from release.publish import Outcome
from release.publish_candidate import Candidate
from release.remote.limits import Limits
from tests.fakes.github.faults import Dice
from tests.fakes.github.server import GitHub
from tests.integration.publish.bench import Bench, candidate_of, staged_in

RATE = 0.1
MOST_RUNS = 24
# Few tries and little time, so that giving up happens often enough to be tested.
IMPATIENT = Limits(tries=3, total_wait_s=300.0)


@dataclass
class Figures:
    """What happened in all runs together."""

    seeds: int = 0
    runs: int = 0
    calls: int = 0
    faults: int = 0
    first_try: int = 0
    stopped: Counter[str] = field(default_factory=Counter)
    most_runs: int = 0

    def add(self, runs: int, github: GitHub) -> None:
        """Count one seed."""
        self.seeds += 1
        self.runs += runs
        self.first_try += runs == 1
        self.most_runs = max(self.most_runs, runs)
        self.calls += github.calls
        self.faults += sum(item.fault != "none" for item in github.log)

    def __str__(self) -> str:
        stops = ", ".join(f"{name} {count}" for name, count in sorted(self.stopped.items())) or "none"
        return (
            f"{self.seeds} seeds, {self.runs} runs, {self.calls} calls, {self.faults} faults; "
            f"{self.first_try} published by the first run, the others after at most {self.most_runs} runs; "
            f"stops: {stops}"
        )


def weather(seed: int, github: GitHub) -> Limits:
    """Set the habits of this seed's GitHub; return the patience of the publisher."""
    dice = random.Random(seed * 7919 + 1)
    store = github.store
    store.list_lag_s = dice.choice([0.0, 1.0, 5.0, 10.0])
    store.asset_lag_s = dice.choice([0.0, 0.0, 2.0, 6.0])
    store.digests = dice.random() < 0.8
    store.is_immutable = dice.random() < 0.5
    if dice.random() < 0.25:
        start = dice.randrange(1, 40)
        assert isinstance(github.decide, Dice)
        github.decide.outage = range(start, start + dice.randrange(5, 40))
    return IMPATIENT if dice.random() < 0.5 else Limits()


def run_seed(seed: int, candidate: Candidate, figures: Figures, *, rate: float = RATE) -> None:
    """Publish under the faults of one seed until it is public; check everything after each run."""
    with GitHub(decide=Dice(seed=seed, rate=rate)) as github:
        github.store.commits.add(candidate.commit)
        limits = weather(seed, github)
        bench = Bench(candidate=candidate, github=github, limits=limits)
        runs, outcome = 0, None
        while not isinstance(outcome, Outcome):
            assert runs < MOST_RUNS, f"seed {seed} is not published after {runs} runs: {outcome}"
            runs += 1
            outcome = bench.outcome()
            bench.check()
            if isinstance(outcome, OpencotiError):
                _require_honest(outcome, bench)
                figures.stopped[outcome.error_id] += 1
                github.clock.sleep(120.0)  # whoever starts it again needs a moment, too
        assert bench.is_public
        figures.add(runs, github)


def _require_honest(error: OpencotiError, bench: Bench) -> None:
    """A run that stops does so because the network is bad, and for no other reason."""
    assert isinstance(error, NetworkError), f"{error.error_id}: {error}"
    assert error.error_id in ("remote-failed", "remote-wait-too-long", "asset-never-whole"), str(error)
    assert error.hint
    assert bench.github.token not in str(error.as_dict())


def main() -> None:
    words = [int(word) for word in sys.argv[1:]]
    seeds = range(*words) if words else range(500)
    figures, started = Figures(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        candidate = candidate_of(staged_in(Path(folder)))
        for seed in seeds:
            run_seed(seed, candidate, figures)
            if figures.seeds % 50 == 0 or seed == seeds[-1]:
                sys.stdout.write(f"{figures}; {time.monotonic() - started:.0f} s\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
