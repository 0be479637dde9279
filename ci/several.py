"""Several backends at the same time: each a `build` command of its own, with one pool of compilers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ci.backend_records import write_skipped
from ci.build import LANE, BuildOptions, prepare_source, target_arch
from ci.context import Context
from ci.engines.endpoint import find_endpoint
from ci.engines.jobs import is_default, shared_pool
from ci.engines.parallel import Ended, run_commands
from ci.toolchains.table import Backend, load_table
from opencoti.errors import BuildError, MissingError, UsageError

_CPU: Final = "cpu"
# What `--toolchain` calls the pinned compilers.
_PINNED: Final = "wheels"


@dataclass(frozen=True, kw_only=True)
class BuiltTogether:
    """What came out.

    Attributes:
        rows: what each command gave as its result, in the order of the names.
        skipped: backends that are not there, with the reason.
    """

    rows: tuple[Mapping[str, Any], ...]
    skipped: Mapping[str, str]


class Run(Protocol):
    """Runs `build` commands by name and returns how each ended."""

    def __call__(
        self, commands: Mapping[str, Sequence[str]], options: BuildOptions, context: Context
    ) -> Mapping[str, Ended]:
        """Run them."""


def build_several(
    context: Context, names: Sequence[str], options: BuildOptions, *, may_skip: bool, run: Run | None = None
) -> BuiltTogether:
    """Build backends at the same time.

    Args:
        context: of this checkout.
        names: backends of the table.
        options: for all of them; `archs` is shared out among those that know the devices.
        may_skip: a GPU backend that fails is skipped with a warning, and the reason is kept for the manifest.
        run: what runs the commands, `run_builds` if not given.

    Raises:
        UsageError: `target-unshared`, `targets-not-shared`: a device stands in no backend's list, or a
            backend has none of those asked for.
        BuildError: `backends-failed`, not all could be built that must be; `no-backend-built`.
    """
    table = load_table(context.layout.table)
    arch = target_arch(options)
    shared, skipped = share_targets([table.backend(name) for name in names], arch, options.archs)
    if skipped and not may_skip:
        name, reason = next(iter(skipped.items()))
        raise UsageError("targets-not-shared", f"--archs leaves nothing for {name}", why=reason)
    commands = {name: _command(name, options, archs, context) for name, archs in shared.items()}
    ended = (run or run_builds)(commands, options, context)
    failed = {name: _reason(result) for name, result in ended.items() if result.code != 0}
    skipped = {**skipped, **failed}
    _tell(context, skipped, arch=arch, may_skip=may_skip)
    _require(names, skipped, may_skip=may_skip)
    rows = [row for name in names if name not in skipped for row in _rows(ended[name])]
    return BuiltTogether(rows=tuple(rows), skipped=skipped)


def share_targets(
    backends: Iterable[Backend], arch: str, asked: Sequence[str] | None
) -> tuple[dict[str, tuple[str, ...] | None], dict[str, str]]:
    """Share the devices of `--archs` out among backends.

    Returns:
        What to ask each backend for, None for everything (Vulkan and the CPU have no list of devices), and
        why others have nothing to do.

    Raises:
        UsageError: `target-unshared`, no backend knows one of the devices; nothing is built then (case B13).
    """
    chosen: dict[str, tuple[str, ...] | None] = {}
    without: dict[str, str] = {}
    known_by_any: set[str] = set()
    for backend in backends:
        known = {name: name for name in backend.targets_for(arch)}
        known |= {name.removesuffix("+ptx"): name for name in known}
        mine = tuple(target for target in asked or () if target in known)
        known_by_any.update(mine)
        if asked is None or not known:
            chosen[backend.name] = None
        elif mine:
            chosen[backend.name] = mine
        else:
            without[backend.name] = f"--archs {','.join(asked)} names none of its devices"
    strangers = [target for target in asked or () if target not in known_by_any]
    if asked == () or strangers:
        raise UsageError(
            "target-unshared",
            f"--archs: no backend that is to be built has {strangers[0][:80]!r}"
            if strangers
            else "--archs names no device",
            hint="see docs/reference/backends.md, or leave --archs out for all devices",
        )
    return chosen, without


def run_builds(
    commands: Mapping[str, Sequence[str]], options: BuildOptions, context: Context
) -> dict[str, Ended]:
    """Run all of them at once with one pool, or one by one where the pool does not reach.

    A pool is a pipe of this machine. On another machine each build takes all processors for itself, so two
    at once would only want twice the memory.
    """
    # Once before all of them, so that what is wrong with the source is told once.
    prepare_source(context)
    if _is_elsewhere(options):
        given = [] if is_default(options.jobs) else ["--jobs", str(int(options.jobs))]
        alone = {name: [*words, *given] for name, words in commands.items()}
        return {
            name: run_commands({name: words}, None, context.console)[name] for name, words in alone.items()
        }
    with shared_pool(options.jobs) as pool:
        return run_commands(commands, pool, context.console)


def _is_elsewhere(options: BuildOptions) -> bool:
    """Tell whether stages would run on another machine; without a daemon they cannot."""
    if options.engine in ("host", "none"):
        return False
    try:
        return not find_endpoint().socket_path
    except MissingError:
        return False


def _command(
    name: str, options: BuildOptions, archs: tuple[str, ...] | None, context: Context
) -> tuple[str, ...]:
    words = [sys.executable, "-m", "ci", "build", name, "--json", "--engine", options.engine]
    words += ["--lane", LANE, "--arch", target_arch(options)]
    words += ["--toolchain", _PINNED if options.toolchain != "system" else "system"]
    words += ["--archs", ",".join(archs)] if archs else []
    words += [] if options.use_cache else ["--no-cache"]
    words += [] if options.has_flash_attention else ["--no-fa"]
    words += ["--quiet"] if context.console.quiet else []
    return tuple(words)


def _reason(ended: Ended) -> str:
    if ended.code < 0:
        return f"its build was ended by signal {-ended.code}"
    with suppress(ValueError, KeyError, TypeError):
        error = json.loads(ended.output)
        return ": ".join(str(error[key]) for key in ("what", "why") if error[key])
    return f"its build ended with exit code {ended.code}"


def _rows(ended: Ended) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = json.loads(ended.output)["backends"]
    return rows


def _tell(context: Context, skipped: Mapping[str, str], *, arch: str, may_skip: bool) -> None:
    for name, reason in skipped.items():
        if may_skip and name != _CPU:
            context.console.warn(f"backend {name} is skipped: {reason}")
            write_skipped(context, name, arch=arch, reason=reason)


def _require(names: Sequence[str], skipped: Mapping[str, str], *, may_skip: bool) -> None:
    gpu = [name for name in names if name != _CPU]
    lost = [name for name in skipped if name == _CPU or not may_skip]
    if lost:
        raise BuildError(
            "backends-failed",
            f"{len(lost)} of {len(names)} backends could not be built",
            why="; ".join(f"{name}: {skipped[name]}" for name in lost),
            hint="what the others gave is kept; mend the cause and run the same command again",
        )
    if gpu and all(name in skipped for name in gpu):
        raise BuildError(
            "no-backend-built",
            "no GPU backend could be built",
            why="; ".join(f"{name}: {reason}" for name, reason in skipped.items()),
            hint="`python -m ci doctor` shows what is missing",
        )
