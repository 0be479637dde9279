"""The commands `plan` and `freeze`."""

from __future__ import annotations

import argparse
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.context import Context
from ci.sources.lanes import add_lane_option
from opencoti.errors import ConfigError, UsageError
from opencoti.trust.comment import MAX_SEQUENCE

if TYPE_CHECKING:
    from opencoti.trust.keys import TrustedKeys
    from release.planning.model import Plan, PlannedLimits
    from release.planning.request import Request

EPOCH_VARIABLE = "SOURCE_DATE_EPOCH"
_MAX_DAYS = 3650


def register(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the parsers."""
    plan = subparsers.add_parser(
        "plan", parents=[common], help="say what a release will be and do, before anything is compiled"
    )
    add_plan_options(plan)
    plan.set_defaults(command=_plan)

    freeze = subparsers.add_parser(
        "freeze", parents=[common], help="write the tarball of this commit that all jobs of a release build"
    )
    freeze.add_argument("--out", type=Path, metavar="FILE", help="default: dist/opencoti-COMMIT.tar.gz")
    freeze.set_defaults(command=_freeze)


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Add what decides on a release; `stage` takes the same words where it makes the plan itself."""
    parser.add_argument("--tag", help="tag of the release (default: that of OPENCOTI_TAG)")
    parser.add_argument("--repo", metavar="OWNER/NAME", help="repository (default: mann1x/opencoti)")
    parser.add_argument(
        "--remote",
        default="github",
        metavar="WHERE",
        help="what is released already: github (default), dir:PATH, an address, or none",
    )
    parser.add_argument(
        "--backends", metavar="LIST", help="of the main artifact (default: what is packaged, else cpu)"
    )
    parser.add_argument(
        "--flavor", action="append", default=[], metavar="NAME", help="another artifact, such as cuda12"
    )
    parser.add_argument(
        "--arch", action="append", metavar="ID", help="host architecture (default: what is packaged)"
    )
    parser.add_argument(
        "--waive",
        action="append",
        default=[],
        metavar="KIND:BACKEND=REASON",
        help="release without this proof; stands in the public index",
    )
    parser.add_argument(
        "--require",
        default="smoke,bench",
        metavar="LIST",
        help="kinds of evidence per backend (default: smoke,bench)",
    )
    parser.add_argument("--engine", default="auto", help="engine of the build commands in the plan")
    parser.add_argument(
        "--to", default="github", metavar="WHERE", help="where it will be published: github or dir:PATH"
    )
    parser.add_argument("--sequence", type=int, metavar="N", help="number (default: the next one)")
    parser.add_argument("--expires-days", type=int, metavar="N", help="how long it counts as fresh (365)")
    parser.add_argument("--asset-limit", type=int, metavar="BYTES", help="largest asset (default: GitHub's)")
    parser.add_argument("--part-size", type=int, metavar="BYTES", help="of what is larger than an asset")
    add_lane_option(parser)
    add_key_options(parser)


def add_key_options(parser: argparse.ArgumentParser) -> None:
    """Add what says whose signatures on a remote count."""
    parser.add_argument(
        "--root", type=Path, metavar="DIR", help="folder of trust roots (default: the root that ships)"
    )
    parser.add_argument("--pubkey", metavar="KEY", help="a .pub file or its RW line, instead of the root")
    parser.add_argument(
        "--allow-development", action="store_true", help="with --pubkey: take a one-time key too"
    )


def keys_of(args: argparse.Namespace) -> TrustedKeys:
    """Return whose signatures count.

    Raises:
        UsageError: `bad-usage`.
        OpencotiError: as `release.sign_cli.trusted_keys` and `read_public_key`.
    """
    from opencoti.trust.keys import only_key
    from release.keysource import read_public_key
    from release.sign_cli import trusted_keys

    if args.pubkey is not None and args.root is not None:
        raise UsageError("bad-usage", "--pubkey and --root exclude each other")
    if args.pubkey is not None:
        return only_key(read_public_key(args.pubkey), allow_development=args.allow_development)
    return trusted_keys(args.root)


def repository_of(args: argparse.Namespace) -> str:
    """Return whose releases are meant. Raises `UsageError` (`bad-usage`)."""
    from opencoti.fetch.release import DEFAULT_REPOSITORY
    from opencoti.pins import is_repository

    repo = args.repo or DEFAULT_REPOSITORY
    if not is_repository(repo):
        raise UsageError("bad-usage", f"--repo {repo[:80]!r} is not <owner>/<name>")
    return str(repo)


def plan_of(args: argparse.Namespace, context: Context) -> Plan:
    """Make the plan that the words ask for. Raises as `make_plan`, `survey` and `open_remote`."""
    from opencoti.fetch.documents import Reader
    from opencoti.fetch.get import open_real
    from opencoti.fetch.settings import Settings
    from release.planning.make import make_plan, release_tag
    from release.planning.remote_readers import open_remote
    from release.planning.remote_view import survey

    request = _request(args, context)
    limits = Settings.from_environ(os.environ).limits
    tag = release_tag(context, request)
    with open_real(limits) as tools:
        reader = Reader(tools, limits, context.console)
        with open_remote(args.remote, repo=request.repo, tag=tag, reader=reader) as view:
            facts = survey(view, repo=request.repo, tag=tag, keys=keys_of(args), now=datetime.now(UTC))
    return make_plan(context, request, facts)


def release_time() -> datetime:
    """Return the time of the release: that of SOURCE_DATE_EPOCH where it is set, else now.

    Raises:
        ConfigError: `epoch-malformed`.
    """
    given = os.environ.get(EPOCH_VARIABLE, "")
    if not given:
        return datetime.now(UTC)
    try:
        time = datetime.fromtimestamp(int(given), UTC)
        time + timedelta(days=_MAX_DAYS)  # so late that a release could not expire
        return time
    except (ValueError, OverflowError, OSError) as exc:
        raise ConfigError(
            "epoch-malformed",
            f"{EPOCH_VARIABLE} is {given[:40]!r}",
            why="it is no number of seconds since 1970",
            hint="correct or unset it",
        ) from exc


def _request(args: argparse.Namespace, context: Context) -> Request:
    from ci.package.backends import parse_backends
    from ci.sources.lanes import find_lane
    from release.planning.request import DEFAULT_DAYS, Request, parse_kinds, parse_waivers

    days = DEFAULT_DAYS if args.expires_days is None else args.expires_days
    _check_numbers(days, args.sequence)
    _check_words(args)
    return Request(
        repo=repository_of(args),
        lane="ape" if find_lane(context.layout, args.lane).name == "ape" else "elf",
        now=release_time(),
        tag=_tag(args.tag),
        sequence=args.sequence,
        days=days,
        backends=None if args.backends is None else parse_backends(args.backends),
        flavors=tuple(dict.fromkeys(args.flavor)),
        archs=None if args.arch is None else tuple(dict.fromkeys(args.arch)),
        kinds=parse_kinds(args.require),
        waivers=parse_waivers(args.waive),
        engine=args.engine,
        target=args.to,
        limits=_limits(args),
    )


def _check_numbers(days: int, sequence: int | None) -> None:
    if not 1 <= days <= _MAX_DAYS or not 1 <= (1 if sequence is None else sequence) <= MAX_SEQUENCE:
        raise UsageError(
            "bad-usage", f"--expires-days is from 1 to {_MAX_DAYS}, --sequence from 1 to {MAX_SEQUENCE}"
        )


def _check_words(args: argparse.Namespace) -> None:
    from ci.toolchains.recipe import DEBIAN_ARCHS

    for arch in args.arch or ():
        if arch not in DEBIAN_ARCHS:
            raise UsageError("bad-usage", f"--arch {arch[:80]!r} is none of {', '.join(DEBIAN_ARCHS)}")
    if args.to != "github" and not (args.to.startswith("dir:") and len(args.to) > len("dir:")):
        raise UsageError("bad-usage", f"--to {args.to[:80]!r} is neither github nor dir:PATH")


def _tag(tag: str | None) -> str | None:
    from opencoti.pins import is_tag

    if tag is not None and not is_tag(tag):
        raise UsageError(
            "bad-usage", f"--tag {tag[:80]!r} holds other characters than letters, digits, . _ + -"
        )
    return tag


def _limits(args: argparse.Namespace) -> PlannedLimits:
    from release.planning.limits import GITHUB

    asset = GITHUB.asset_max_bytes if args.asset_limit is None else args.asset_limit
    part = min(GITHUB.part_bytes, asset) if args.part_size is None else args.part_size
    if min(asset, part) < 1:
        raise UsageError("bad-usage", "--asset-limit and --part-size are numbers of bytes")
    return GITHUB.model_copy(update={"asset_max_bytes": asset, "part_bytes": part})


def _plan(args: argparse.Namespace, context: Context) -> int:
    from release.planning.render import render_plan

    plan = plan_of(args, context)
    context.console.result(render_plan(plan), plan.model_dump(mode="json", by_alias=True))
    for problem in plan.problems:
        context.console.warn(f"stops the release [{problem.error}]: {problem.what}")
    return plan.problems[0].exit_code if plan.problems else 0


def _freeze(args: argparse.Namespace, context: Context) -> int:
    from release.planning.freeze import freeze

    done = freeze(context.layout.root, args.out, default_folder=context.layout.dist)
    data = {"tarball": str(done.path), "sha256": done.sha256, "commit": done.commit, "files": done.file_count}
    context.console.result(str(done.path), data)
    return 0
