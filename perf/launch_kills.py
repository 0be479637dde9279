"""Start and kill engines at random moments, many times: nothing may be left (cases B45 and B47).

Each cycle starts a program that launches an engine, and kills the program, the keeper or the engine with
SIGKILL or SIGTERM after a random part of a launch. Afterwards no process, zombie, port or file of it may be
there. A keeper that was killed hard cannot remove its folder any more; the next launch does that, and the
cycle does what that launch would do.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ci.context import Context
from opencoti import procfs
from opencoti.errors import BuildError
from opencoti.launch.state import State, engines_folder, known_states, sweep
from perf.launch import Case, prepared
from perf.measure import Report

CYCLES = 100
_GONE_S = 30.0
_LAUNCH_S = 0.6
_PROGRAM = """
import signal, sys
from pathlib import Path
from opencoti.launch import launch, LaunchOptions
engine = launch(LaunchOptions(binary=Path(sys.argv[1]), model=Path(sys.argv[2])))
print(engine.port, flush=True)
signal.pause()
"""


@dataclass(frozen=True, kw_only=True)
class Cycle:
    """What was killed, how and when, and what was left of it."""

    victim: str
    signal_name: str
    was_ready: bool
    left: tuple[str, ...]


def run(context: Context, *, runs: int) -> Report:
    """Run `runs` cycles, a hundred and more for a result that means something."""
    with prepared(context.layout) as case:
        cycles = []
        for seed in range(runs):
            cycles.append(one_cycle(case, random.Random(seed)))  # noqa: S311
            context.console.status(f"cycle {seed + 1} of {runs}")
    left = [item for cycle in cycles for item in cycle.left]
    if left:
        raise BuildError("launch-left-something", f"{len(left)} things were left", why="; ".join(left[:5]))
    kills = Counter(f"{cycle.victim} by {cycle.signal_name}" for cycle in cycles)
    facts: dict[str, object] = {
        "cycles": len(cycles),
        "killed before it was ready": sum(not cycle.was_ready for cycle in cycles),
        "left": 0,
        **dict(sorted(kills.items())),
    }
    return Report(title="start, kill, look", samples=[], facts=facts)


def one_cycle(case: Case, dice: random.Random) -> Cycle:
    """Start a program, kill something of it, and look for what is left."""
    argv = [sys.executable, "-c", _PROGRAM, str(case.artifact), str(case.model)]
    with subprocess.Popen(argv, env=dict(case.environ), stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        moment_s = dice.choice((dice.uniform(0, _LAUNCH_S), 60.0))
        is_ready = bool(select.select([program.stdout], [], [], moment_s)[0])
        port = int(program.stdout.readline() or b"0") if is_ready else 0
        state = next(known_states(engines_folder(case.environ)), None)
        victim, pid = _choose(program.pid, state, dice)
        number = dice.choice((signal.SIGKILL, signal.SIGTERM))
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        # Whatever was killed, the program ends too; it may be at any point of a launch or of its clean-up.
        program.kill()
    return Cycle(
        victim=victim, signal_name=number.name, was_ready=bool(port), left=tuple(_left(case, state, port))
    )


def _choose(program: int, state: State | None, dice: random.Random) -> tuple[str, int]:
    choices = [("program", program)]
    if state is not None:
        choices += [("keeper", state.keeper.pid), ("engine", state.engine.pid)]
    return dice.choice(choices)


def _left(case: Case, state: State | None, port: int) -> Iterator[str]:
    """Yield what is still there after a while, as text."""
    end = time.monotonic() + _GONE_S
    while time.monotonic() < end and (_processes(case) or _has_files(case)):
        time.sleep(0.02)
        sweep(engines_folder(case.environ))
    yield from (f"process {pid}" for pid in _processes(case))
    yield from (f"file {path}" for path in engines_folder(case.environ).rglob("*"))
    if port and any(item.port == port for item in procfs.listeners()):
        yield f"port {port}"
    if state is not None:
        for name, process in (("keeper", state.keeper), ("engine", state.engine)):
            if _is_our_zombie(process.pid, process.start):
                yield f"zombie of the {name}"


def _processes(case: Case) -> list[int]:
    """Return live processes of launches of this case, which all have its home."""
    home = f"HOME={case.environ['HOME']}".encode()
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(OSError):
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            if home in environ and procfs.identify(pid) is not None:
                found.append(pid)
    return found


def _has_files(case: Case) -> bool:
    return any(engines_folder(case.environ).rglob("*"))


def _is_our_zombie(pid: int, start: int) -> bool:
    """Tell whether a process has ended and this one has to take note of it; other orphans are init's."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] == "Z" and int(fields[19]) == start and int(fields[1]) == os.getpid()
