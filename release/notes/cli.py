"""The command `notes`."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.context import Context
from opencoti.errors import storage_error
from release.planning.cli import add_key_options, keys_of

if TYPE_CHECKING:
    from release.notes.make import Before


def register(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the parser."""
    parser = subparsers.add_parser(
        "notes", parents=[common], help="write the generated part of a release's text anew, and nothing else"
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the staged release")
    add_previous_option(parser)
    add_key_options(parser)
    parser.add_argument(
        "--body", type=Path, metavar="FILE", help="text whose generated part is rewritten (DIR/NOTES.md)"
    )
    parser.add_argument("--check", action="store_true", help="only say whether it would change (code 6)")
    parser.set_defaults(command=_notes)


def add_previous_option(parser: argparse.ArgumentParser) -> None:
    """Add what the text of a release compares it with."""
    parser.add_argument(
        "--previous",
        metavar="WHERE",
        help="the release before, to compare with: a folder, or the newest of github, dir:PATH or an address",
    )


def previous_of(args: argparse.Namespace, context: Context, *, repo: str, tag: str) -> Before | None:
    """Return the release that `--previous` names. Raises as `read_previous`."""
    from release.notes.before import read_previous

    if args.previous is None:
        return None
    return read_previous(
        args.previous,
        repo=repo,
        tag=tag,
        keys=lambda: keys_of(args),
        now=datetime.now(UTC),
        console=context.console,
    )


def _notes(args: argparse.Namespace, context: Context) -> int:
    from opencoti.errors import VerificationError
    from opencoti.files import write_atomic
    from opencoti.trust.shipped import shipped_root
    from release.notes.before import read_before
    from release.notes.body import NOTES_NAME, merge_body
    from release.notes.make import make_notes
    from release.planning.local import read_evidence

    release = read_before(args.folder)
    generated = make_notes(
        release.index,
        release.manifests,
        evidence=[read_evidence(args.folder / item.name).evidence for item in release.index.evidence],
        before=previous_of(args, context, repo=release.index.repo, tag=release.index.tag),
        keys=shipped_root(),
    )
    path = args.body or args.folder / NOTES_NAME
    existing = _read(path)
    text = merge_body(existing, generated)
    if args.check and text != existing:
        raise VerificationError(
            "notes-outdated",
            f"the generated part of {path} is not that of the release",
            hint=f"run `python -m release notes {args.folder}`",
        )
    if text != existing:
        write_atomic(path, text.encode("utf-8"))
    context.console.result(text.rstrip("\n"), {"body": text, "path": str(path), "changed": text != existing})
    return 0


def _read(path: Path) -> str:
    try:
        # Line ends stay as they are: those of a text from a web page are CR LF.
        return path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
