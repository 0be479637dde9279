"""Running several commands of ours at the same time, with one pool of compilers between them.

Each is a process of its own, so that each looks after its own containers and signals as always. When we are
interrupted or one is to be ended, all of them are asked to end and waited for.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Final

from ci import process
from ci.engines.jobs import JobPool, pool_environment
from opencoti.console import Console

# A container is given a moment to be removed before its command is ended the hard way.
_GRACE_S: Final = 30.0
# Its folds and annotations would mix; what there is to tell GitHub, we tell.
_ON_GITHUB: Final = "GITHUB_ACTIONS"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A command that ended.

    Attributes:
        code: its exit code, negative for a signal.
        output: what it wrote to its standard output.
    """

    code: int
    output: bytes


def run_commands(
    commands: Mapping[str, Sequence[str]], pool: JobPool | None, console: Console
) -> dict[str, Ended]:
    """Run commands at the same time and return how each ended, under its name.

    What one writes to its standard error is shown line by line with its name. A command that fails ends none
    of the others.

    Raises:
        OSError: one cannot be started; those before it are ended.
    """
    env = {**os.environ, **(pool_environment(str(pool.path), pool.size) if pool else {})}
    env.pop(_ON_GITHUB, None)
    lock = threading.Lock()
    with ExitStack() as kept:
        outputs = {name: kept.enter_context(tempfile.TemporaryFile()) for name in commands}
        started = kept.enter_context(_all_or_none())
        for name, argv in commands.items():
            child = process.spawn(argv, log=outputs[name], env=env, errors=subprocess.PIPE)
            started[child] = threading.Thread(target=_relay, args=(name, child.stderr, console, lock))
            started[child].start()
        codes = [child.wait() for child in started]
        if pool:
            pool.refill()
        return {
            name: Ended(code=code, output=_content(outputs[name]))
            for name, code in zip(commands, codes, strict=True)
        }


@contextmanager
def _all_or_none() -> Iterator[dict[subprocess.Popen[bytes], threading.Thread]]:
    """Give a place for children and the readers of their output; when the block fails, all children end."""
    started: dict[subprocess.Popen[bytes], threading.Thread] = {}
    try:
        yield started
    except BaseException:
        for child in started:
            child.terminate()
        for child in started:
            process.terminate(child, grace_s=_GRACE_S)
        raise
    finally:
        for reader in started.values():
            reader.join()


def _relay(name: str, lines: IO[bytes] | None, console: Console, lock: threading.Lock) -> None:
    assert lines is not None
    with lines:
        for line in lines:
            with lock:
                console.relay(name, line.decode("utf-8", "replace").rstrip())


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
