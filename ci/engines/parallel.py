"""Running several commands of ours at the same time, with one pool of compilers between them.

Each is a process of its own, so that each looks after its own containers and signals as always. When we are
interrupted or one is to be ended, all of them are asked to end and waited for.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Final

from ci import process
from ci.engines.jobs import JobPool, pool_environment

# A container is given a moment to be removed before its command is ended the hard way.
_GRACE_S: Final = 30.0
_STDERR: Final = 2


def run_commands(commands: Sequence[Sequence[str]], pool: JobPool) -> list[int]:
    """Run commands at the same time; return their exit codes in the same order, negative for a signal.

    Whatever they print goes to our standard error, results too: they are in files. A command that fails
    ends none of the others.

    Raises:
        OSError: one cannot be started; those before it are ended.
    """
    env = {**os.environ, **pool_environment(str(pool.path), pool.size)}
    started: list[subprocess.Popen[bytes]] = []
    try:
        with os.fdopen(os.dup(_STDERR), "wb") as output:
            # One by one, so that those before a failing one are known and ended.
            for command in commands:
                child = process.spawn(command, log=output, env=env)
                started.append(child)
        return [child.wait() for child in started]
    except BaseException:
        for child in started:
            child.terminate()
        for child in started:
            process.terminate(child, grace_s=_GRACE_S)
        raise
    finally:
        pool.refill()
