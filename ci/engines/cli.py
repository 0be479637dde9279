"""The options that every command with stages takes."""

from __future__ import annotations

import argparse
import os
from typing import Final, cast, get_args

from ci.engines.jobs import Jobs, fitting_jobs, inherited_pool
from ci.engines.select import EngineName
from opencoti.errors import UsageError

ENGINE_VARIABLE: Final = "OPENCOTI_ENGINE"
_TOOLCHAINS: Final = {"wheels": "zig", "system": "system"}


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add --engine, --toolchain, --jobs and --no-cache."""
    parser.add_argument(
        "--engine",
        choices=get_args(EngineName),
        default=None,
        help=f"what runs the stages (default: ${ENGINE_VARIABLE}, else auto: docker if it works, else host); "
        "none: nothing is compiled, images built all of it before",
    )
    parser.add_argument(
        "--toolchain",
        choices=tuple(_TOOLCHAINS),
        default="wheels",
        help="wheels: the pinned compilers (default); system: what this machine has (host engine only)",
    )
    parser.add_argument(
        "--jobs",
        type=_positive,
        default=None,
        metavar="N",
        help="compilers at the same time (default: by CPUs and memory)",
    )
    parser.add_argument(
        "--no-cache", action="store_true", help="build from scratch, using and leaving no cache of any kind"
    )


def engine_name(args: argparse.Namespace) -> EngineName:
    """Return the engine that was asked for, on the command line or in the environment.

    Raises:
        UsageError: `engine-unknown`, the variable names none.
    """
    name = args.engine or os.environ.get(ENGINE_VARIABLE, "") or "auto"
    if name not in get_args(EngineName):
        raise UsageError(
            "engine-variable",
            f"{ENGINE_VARIABLE} is {name!r}",
            hint=f"set it to one of {', '.join(get_args(EngineName))}, or unset it",
        )
    return cast(EngineName, name)


def toolchain_name(args: argparse.Namespace, *, wheels: str = _TOOLCHAINS["wheels"]) -> str:
    """Return the name of the toolchain of a stage; `wheels` is the pinned one that the stage is made for."""
    return wheels if args.toolchain == "wheels" else _TOOLCHAINS[args.toolchain]


def job_count(args: argparse.Namespace) -> Jobs:
    """Return the number of compilers to run: as asked, else one per CPU as far as the memory goes.

    A command that another one started (`ci.engines.parallel`, or make) shares that one's number.
    """
    if args.jobs:
        return Jobs(args.jobs)
    if pool := inherited_pool():
        return pool.jobs
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Jobs(fitting_jobs(len(os.sched_getaffinity(0)), memory), is_default=True)


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number
