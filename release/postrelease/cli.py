"""The commands `pin` and `wheel`."""

from __future__ import annotations

import argparse
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.context import Context
from opencoti.errors import UsageError
from release.planning.cli import EPOCH_VARIABLE, add_key_options, keys_of, release_time, repository_of

if TYPE_CHECKING:
    from opencoti.index import ReleaseIndex


def register(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the parsers."""
    pin = subparsers.add_parser("pin", parents=[common], help="flip the pins that ship to a release")
    pin.add_argument(
        "--from",
        dest="origin",
        required=True,
        metavar="DIR|URL",
        help="the staged folder, or a web root (then with --tag), or github (with --tag)",
    )
    pin.add_argument("--tag", help="tag of the release, where --from is no folder")
    pin.add_argument("--repo", metavar="OWNER/NAME", help="repository (default: mann1x/opencoti)")
    pin.add_argument("--arch", default="x86_64", metavar="ID", help="host architecture (default x86_64)")
    pin.add_argument("--check", action="store_true", help="only say whether they name the release (code 6)")
    pin.add_argument("--diff", action="store_true", help="print the change instead of writing it")
    add_key_options(pin)
    pin.set_defaults(command=_pin)

    wheel = subparsers.add_parser(
        "wheel", parents=[common], help="build the opencoti wheel, twice the same, and check its content"
    )
    wheel.add_argument("--out", type=Path, metavar="DIR", help="default: dist/wheel")
    wheel.add_argument("--once", action="store_true", help="do not build it a second time to compare")
    wheel.set_defaults(command=_wheel)


def _pin(args: argparse.Namespace, context: Context) -> int:
    from release.postrelease.pins import check_pins, plan_pins, write_pins

    if args.check and args.diff:
        raise UsageError("bad-usage", "--check and --diff exclude each other")
    index = _index(args, context)
    changes = plan_pins(context.layout.root, index, arch=args.arch)
    diff = "".join(change.diff() for change in changes)
    written: tuple[Path, ...] = ()
    if args.check:
        check_pins(changes)
    elif not args.diff:
        written = write_pins(changes)
    data = {"tag": index.tag, "written": [str(path) for path in written], "diff": diff}
    text = diff.rstrip("\n") if args.diff else "\n".join(map(str, written))
    context.console.result(text or f"the pins name {index.tag}", data)
    return 0


def _index(args: argparse.Namespace, context: Context) -> ReleaseIndex:
    """Return the index of a folder, or the verified one of a published release."""
    folder = Path(args.origin.removeprefix("dir:"))
    if folder.is_dir() and args.tag is None:
        from release.postrelease.source import folder_index

        return folder_index(folder, keys=lambda: keys_of(args), console=context.console)
    if args.tag is None:
        raise UsageError("bad-usage", "no release is named", hint="add --tag TAG, or name a staged folder")
    from opencoti.fetch.settings import Settings
    from release.checking.served import base_address
    from release.postrelease.source import published_index

    settings = Settings.from_environ(os.environ)
    with base_address(args.origin, settings) as base_url:
        return published_index(
            base_url,
            repo=repository_of(args),
            tag=args.tag,
            keys=keys_of(args),
            now=datetime.now(UTC),
            settings=settings,
            console=context.console,
        )


def _wheel(args: argparse.Namespace, context: Context) -> int:
    from release.postrelease.wheel import build_wheel, commit_time

    root = context.layout.root
    epoch = int(release_time().timestamp()) if os.environ.get(EPOCH_VARIABLE) else commit_time(root)
    done = build_wheel(root, args.out or context.layout.dist / "wheel", epoch_s=epoch, repeat=not args.once)
    data = {"wheel": str(done.path), "sha256": done.sha256, "files": done.file_count, "epoch": epoch}
    context.console.result(str(done.path), data)
    return 0
