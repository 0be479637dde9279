"""The commands `check` and `monitor`."""

from __future__ import annotations

import argparse
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.context import Context
from opencoti.errors import UsageError, storage_error
from release.planning.cli import repository_of

if TYPE_CHECKING:
    from opencoti.trust.chain import TrustedRoot
    from release.checking.images import ImageEntry

DEADLINE_S = 600.0
PAUSE_S = 15.0


def register(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the parsers."""
    check = subparsers.add_parser(
        "check", parents=[common], help="fetch a published release as a client does, and compare every asset"
    )
    _add_common(check)
    check.add_argument("--dir", type=Path, metavar="DIR", help="the staged folder, to compare with")
    check.add_argument("--latest", action="store_true", help="it must be the newest release, too")
    check.add_argument("--no-try", action="store_true", help="do not start the fetched engine once")
    check.add_argument(
        "--deadline",
        type=float,
        default=DEADLINE_S,
        metavar="S",
        help="how long it may take to show up (600)",
    )
    check.add_argument("--pause", type=float, default=PAUSE_S, metavar="S", help="between attempts (15)")
    check.set_defaults(command=_check)

    monitor = subparsers.add_parser(
        "monitor", parents=[common], help="is what was released still there, the same, fresh, and buildable"
    )
    _add_common(monitor)
    monitor.add_argument("--quick", action="store_true", help="sizes of the assets instead of their bytes")
    monitor.add_argument(
        "--warn-days", type=int, default=30, metavar="N", help="warn this long before the index expires (30)"
    )
    monitor.add_argument("--images", type=Path, metavar="FILE", help="record of pinned images to look for")
    monitor.set_defaults(command=_monitor)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tag", help="tag of the release (monitor: default the newest)")
    parser.add_argument("--repo", metavar="OWNER/NAME", help="repository (default: mann1x/opencoti)")
    parser.add_argument(
        "--from",
        dest="origin",
        metavar="WHERE",
        help="github (default; OPENCOTI_MIRROR counts), the address of a web root, or dir:PATH",
    )
    parser.add_argument(
        "--trust-root", type=Path, metavar="FILE", help="start from this root instead of the shipped one"
    )


def _check(args: argparse.Namespace, context: Context) -> int:
    from opencoti.fetch.release import Trust
    from opencoti.fetch.settings import Settings
    from release.checking.check import CheckRequest, check_release
    from release.checking.served import base_address
    from release.checking.waiting import Deadline

    if args.tag is None:
        raise UsageError("bad-usage", "no release is named", hint="add --tag TAG")
    if args.deadline < 0 or args.pause <= 0:
        raise UsageError("bad-usage", "--deadline and --pause are numbers of seconds")
    settings = Settings.from_environ(os.environ)
    with base_address(args.origin, settings) as base_url:
        request = CheckRequest(
            repo=repository_of(args),
            tag=args.tag,
            base_url=base_url,
            folder=args.dir,
            must_be_latest=args.latest,
            allow_trial=not args.no_try,
        )
        report = check_release(
            request,
            Trust(folder=Path(), anchor=_root(args.trust_root)),
            settings,
            context.console,
            Deadline(total_s=args.deadline, pause_s=args.pause),
        )
    client = "no file for this host" if report.fetched is None else f"client got {report.fetched.path.name}"
    text = f"release {args.tag} of {request.repo} is good: {len(report.files)} assets compared, {client}"
    context.console.result(text, report.as_dict())
    return 0


def _monitor(args: argparse.Namespace, context: Context) -> int:
    from opencoti.fetch.get import open_real
    from opencoti.fetch.settings import Settings
    from opencoti.trust.comment import render_time
    from release.checking.monitor import Monitor, MonitorReport, MonitorRequest
    from release.checking.registry import Registry
    from release.checking.served import base_address

    settings, now = Settings.from_environ(os.environ), datetime.now(UTC)
    with base_address(args.origin, settings) as base_url:
        request = MonitorRequest(
            repo=repository_of(args),
            base_url=base_url,
            tag=args.tag,
            is_quick=args.quick,
            warn_days=args.warn_days,
            images=_images(args.images),
        )
        with open_real(settings.limits) as tools, Registry() as registry:
            monitor = Monitor(
                request,
                root=_root(args.trust_root),
                now=now,
                tools=tools,
                limits=settings.limits,
                console=context.console,
            )
            report = MonitorReport(
                request=request, checked=render_time(now), findings=tuple(monitor.findings(registry))
            )
    for finding in report.findings:
        if finding.state != "ok":
            context.console.warn(f"{finding.name} {finding.subject}: {finding.detail}")
    context.console.result(report.text(), report.as_dict())
    return report.exit_code


def _root(path: Path | None) -> TrustedRoot:
    from opencoti.trust.chain import anchor
    from opencoti.trust.shipped import shipped_root

    if path is None:
        return shipped_root()
    return anchor(_read(path), f"the trust root {path} that you named")


def _images(path: Path | None) -> tuple[ImageEntry, ...]:
    from release.checking.images import load_images

    return () if path is None else load_images(_read(path), str(path)).images


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
