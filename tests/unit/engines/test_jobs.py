"""The number of compilers, and the pool that several stages share."""

from __future__ import annotations

import os
import threading

import pytest

from ci.engines.jobs import (
    Jobs,
    fitting_jobs,
    inherited_pool,
    job_pool,
    pool_environment,
    pool_of,
    without_job_words,
)


def test_a_number_of_jobs_is_a_number() -> None:
    jobs = Jobs(4, is_default=True)
    assert (jobs, str(jobs), jobs // 2) == (4, "4", 2)
    assert (pool_of(jobs), pool_of(3)) == (None, None)


@pytest.mark.parametrize(
    ("cpus", "memory", "expected"), [(8, 64 << 30, 8), (8, 3 << 30, 3), (2, 100 << 20, 1)]
)
def test_as_many_compilers_run_as_processors_and_memory_allow(cpus: int, memory: int, expected: int) -> None:
    assert fitting_jobs(cpus, memory) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("ninja", "-C", "{out}", "-j", "{jobs}", "all"), ("ninja", "-C", "{out}", "all")),
        (("cmake", "{src}"), ("cmake", "{src}")),
        (("ninja", "-j", "1"), ("ninja", "-j", "1")),
    ],
)
def test_a_step_that_runs_from_a_pool_names_no_number(
    words: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert without_job_words(words) == expected


def test_a_stage_waits_for_a_place_and_gives_it_back() -> None:
    events = []
    with job_pool(1) as pool:
        with pool.slot():
            waiter = threading.Thread(target=lambda: pool.slot().__enter__() or events.append("in"))
            waiter.start()
            waiter.join(timeout=0.2)
            events.append("left")
        waiter.join()
    assert events == ["left", "in"]


def test_what_a_killed_stage_took_along_is_filled_up_again() -> None:
    with job_pool(3) as pool:
        other = os.open(pool.path, os.O_RDWR | os.O_NONBLOCK)
        assert os.read(other, 2) == b"++"
        os.close(other)
        assert pool.refill() == 2
        assert pool.refill() == 0


def test_a_command_finds_the_pool_of_the_one_that_started_it() -> None:
    with job_pool(5) as pool:
        found = inherited_pool(pool_environment(str(pool.path), pool.size))
        assert found is not None
        assert (found.size, found.path, pool_of(found.jobs)) == (5, pool.path, found)
        found.close()
    assert inherited_pool(pool_environment(str(pool.path), 5)) is None, "it is gone"


@pytest.mark.parametrize("flags", ["", "-j4", "--jobserver-auth=3,4 -j", "--jobserver-auth=fifo:/etc/passwd"])
def test_other_pools_are_left_alone(flags: str) -> None:
    assert inherited_pool({"MAKEFLAGS": flags}) is None
