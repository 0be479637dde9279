"""How many compilers run at the same time, alone or shared by several stages.

Several stages share one number through a job pool: a pipe with a name that holds one byte per compiler, which
is the jobserver of GNU make (since 4.4) and ninja (since 1.13). A stage takes one byte for itself when it
starts; its build tool takes one more for each further compiler, and puts it back.
"""

from __future__ import annotations

import os
import re
import select
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

from opencoti.errors import storage_error

_TOKEN: Final = b"+"
_FLAG: Final = "--jobserver-auth=fifo:"
_ARGUMENT: Final = re.compile(r"--jobserver-auth=fifo:(\S+)")
_JOBS: Final = re.compile(r"(?:^|\s)-j(\d+)")
# The words of a step that give a build tool its number of jobs; they would keep it from using the pool.
_JOB_WORDS: Final = ("-j", "{jobs}")


# A C++ file of the engine needs about this much while it is compiled.
_BYTES_PER_JOB: Final = 1 << 30


class Jobs(int):
    """A number of compilers; everything that takes an `int` takes it.

    Args:
        is_default: nobody asked for this number: an engine on another machine may choose its own.
        pool: the pool that the number belongs to, None when a stage has it for itself.
    """

    is_default: bool
    pool: JobPool | None

    def __new__(cls, number: int, *, is_default: bool = False, pool: JobPool | None = None) -> Self:
        """Make one; see the class."""
        made = super().__new__(cls, number)
        made.is_default = is_default
        made.pool = pool
        return made


class JobPool:
    """A pool of compilers for several stages, in this process or in others.

    Whoever makes it (`job_pool`) fills it; others open it by its path (`inherited_pool`). A stage that is
    killed takes its bytes along, so the pool is filled up again whenever no stage is at work.
    """

    def __init__(self, path: Path, size: int, *, is_owner: bool) -> None:
        self.path = path
        self.size = size
        self._is_owner = is_owner
        # For reading and writing: opening blocks on nobody, and the bytes stay while nobody else has it open.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        if is_owner:
            os.write(self._pipe, _TOKEN * size)

    @property
    def jobs(self) -> Jobs:
        """The number for stages that run from this pool."""
        return Jobs(self.size, pool=self)

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold the byte of one stage while the block runs; waits until there is one."""
        token = self._take()
        try:
            yield
        finally:
            os.write(self._pipe, token)

    def refill(self) -> int:
        """Fill the pool again when no stage is at work; return how many bytes were missing.

        A pool that somebody else made may have stages at work that we do not know of, and is left alone.
        """
        if not self._is_owner:
            return 0
        held = 0
        with suppress(BlockingIOError):
            while os.read(self._pipe, 1):
                held += 1
        os.write(self._pipe, _TOKEN * self.size)
        return self.size - held

    def close(self) -> None:
        """Close it; the bytes stay for others."""
        os.close(self._pipe)

    def _take(self) -> bytes:
        while True:
            with suppress(BlockingIOError):
                return os.read(self._pipe, 1)
            select.select([self._pipe], [], [])


@contextmanager
def job_pool(size: int) -> Iterator[JobPool]:
    """Make a pool of `size` compilers that lives while the block runs.

    Raises:
        StorageError: there is no place for the pipe.
    """
    with tempfile.TemporaryDirectory(prefix="opencoti-jobs-") as folder:
        path = Path(folder) / "jobs"
        try:
            os.mkfifo(path, 0o600)
        except OSError as exc:
            raise storage_error(exc, f"cannot make {path}") from exc
        pool = JobPool(path, size, is_owner=True)
        try:
            yield pool
        finally:
            pool.close()


@contextmanager
def shared_pool(jobs: int) -> Iterator[JobPool]:
    """Give the pool that a number of jobs belongs to, or make one of that size.

    Raises:
        StorageError: see `job_pool`.
    """
    if pool := pool_of(jobs):
        yield pool
    else:
        with job_pool(jobs) as made:
            yield made


def inherited_pool(env: Mapping[str, str] | None = None) -> JobPool | None:
    """Return the pool of the command that started us, as MAKEFLAGS names it; None when there is none."""
    flags = (os.environ if env is None else env).get("MAKEFLAGS", "")
    named = _ARGUMENT.search(flags)
    if named is None or not Path(named[1]).is_fifo():
        return None
    number = _JOBS.search(flags)
    try:
        return JobPool(Path(named[1]), int(number[1]) if number else 1, is_owner=False)
    except OSError:
        return None


def pool_environment(path: str, size: int) -> dict[str, str]:
    """Return what tells build tools of the pool at `path`, as they see it."""
    return {"MAKEFLAGS": f" -j{size} {_FLAG}{path}"}


def fitting_jobs(cpus: int, memory_bytes: int) -> int:
    """Return how many compilers a machine can run: one per CPU, as far as the memory goes."""
    return max(1, min(cpus, memory_bytes // _BYTES_PER_JOB))


def pool_of(jobs: int) -> JobPool | None:
    """Return the pool that a number of jobs belongs to."""
    return jobs.pool if isinstance(jobs, Jobs) else None


def is_default(jobs: int) -> bool:
    """Tell whether nobody asked for a number of jobs."""
    return isinstance(jobs, Jobs) and jobs.is_default


def without_job_words(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of a step without `-j {jobs}`."""
    for start in range(len(argv) - 1):
        if argv[start : start + 2] == _JOB_WORDS:
            return argv[:start] + argv[start + 2 :]
    return argv
