"""The command `publish`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.context import Context
from ci.locks import exclusive_lock, folder_lock
from opencoti.errors import UsageError

if TYPE_CHECKING:
    from opencoti.trust.keys import TrustedKeys
    from release.publish import Outcome
    from release.publish_candidate import Candidate
    from release.remote.limits import Clock
    from release.remote.model import Remote

_FOLDER = "dir:"
_WORDS = {
    "published": "published",
    "unchanged": "was published already, nothing to do",
    "planned": "would be published",
}


def register(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the parser."""
    parser = subparsers.add_parser(
        "publish", parents=[common], help="bring a staged and signed release to GitHub or into a folder"
    )
    parser.add_argument("--tag", required=True, help="tag of the release; must be that of the folder")
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="the staged release (default: dist/release/TAG)"
    )
    parser.add_argument("--repo", metavar="OWNER/NAME", help="repository (default: that of the release)")
    parser.add_argument(
        "--to", default="github", metavar="WHERE", help="github (default), or dir:PATH, a folder to serve"
    )
    parser.add_argument(
        "--replace", action="store_true", help="in a draft: delete what differs and what is not ours"
    )
    parser.add_argument("--dry-run", action="store_true", help="look only, and say what would be done")
    parser.add_argument("--yes", action="store_true", help="do not ask before it becomes public")
    parser.add_argument(
        "--make-latest",
        choices=("auto", "true", "false"),
        default="auto",
        help="whether it becomes the newest release (auto: yes)",
    )
    keys = parser.add_argument_group("whose signatures count")
    keys.add_argument("--root", type=Path, metavar="DIR", help="folder of trust roots (default: what ships)")
    keys.add_argument("--pubkey", metavar="KEY", help="a .pub file or its RW line, instead of the root")
    keys.add_argument(
        "--allow-development-key", action="store_true", help="publish on GitHub with a one-time key"
    )
    parser.set_defaults(command=_publish)


def _publish(args: argparse.Namespace, context: Context) -> int:
    from release.remote.limits import Clock

    return run_publish(args, context, Clock())


def run_publish(args: argparse.Namespace, context: Context, clock: Clock) -> int:
    """Publish as the words ask for.

    Args:
        args: the parsed words.
        context: the checkout and the console.
        clock: where time comes from.

    Raises:
        UsageError: `bad-usage`, `publish-unconfirmed`.
        OpencotiError: as `load_candidate`, `publish`, `GitHubSettings.from_environ`.
    """
    from release.publish import Options, publish
    from release.publish_candidate import Asked, load_candidate
    from release.remote.limits import PROMPT, Limits, Patience

    _check_words(args)
    folder = args.dir or context.layout.dist / "release" / args.tag
    is_github = args.to == "github"
    console = context.console
    with publish_lock(folder, args.tag, can_write=os.access(folder.parent, os.W_OK)):
        console.step(f"check {folder}")
        candidate = load_candidate(
            folder,
            Asked(
                tag=args.tag,
                repo=args.repo,
                keys=_keys(args, is_github=is_github),
                now=datetime.now(UTC),
                is_github=is_github,
                allow_development=args.allow_development_key,
            ),
        )
        for warning in candidate.warnings:
            console.warn(warning)
        _confirm(args, candidate)
        options = Options(allow_replace=args.replace, make_latest=args.make_latest, is_dry_run=args.dry_run)
        limits = Limits() if is_github else PROMPT
        patience = Patience(console=console, limits=limits, clock=clock)
        with open_remote(args.to, candidate.index.repo, clock) as remote:
            done = publish(candidate, remote, options, patience)
    console.result(_text(done), _data(done, candidate))
    return 0


def publish_lock(folder: Path, tag: str, *, can_write: bool) -> AbstractContextManager[None]:
    """Return the lock of a staged release, the one that `stage` takes too.

    Publishing writes nothing there. Where nothing can be written (`can_write` is False), nobody stages
    either, and publishers keep each other out by the folder itself. What is not there needs no lock.

    Raises:
        BusyError: `lock-held`, once the lock is entered.
        StorageError: the lock cannot be had.
    """
    purpose = f"the release in {folder}"
    if not folder.is_dir():
        return nullcontext()
    if not can_write:
        return folder_lock(folder, purpose)
    return exclusive_lock(folder.parent / f".{tag}.lock", purpose)


@contextmanager
def open_remote(where: str, repo: str, clock: Clock) -> Iterator[Remote]:
    """Yield the remote of `--to`. Raises as `GitHubSettings.from_environ` and `FolderRemote.held`."""
    if where.startswith(_FOLDER):
        from release.remote.folder import FolderRemote

        with FolderRemote(Path(where.removeprefix(_FOLDER)), repo).held() as folder:
            yield folder
    else:
        from release.remote.github import GitHubRemote
        from release.remote.settings import GitHubSettings

        with GitHubRemote(repo, GitHubSettings.from_environ(os.environ), clock) as github:
            yield github


def _check_words(args: argparse.Namespace) -> None:
    from opencoti.pins import is_repository, is_tag

    if not is_tag(args.tag):
        raise UsageError("bad-usage", f"--tag {args.tag[:80]!r} is no tag of a release")
    if args.repo is not None and not is_repository(args.repo):
        raise UsageError("bad-usage", f"--repo {args.repo[:80]!r} is not <owner>/<name>")
    if args.to != "github" and not (args.to.startswith(_FOLDER) and len(args.to) > len(_FOLDER)):
        raise UsageError("bad-usage", f"--to {args.to[:80]!r} is neither github nor dir:PATH")
    if args.root is not None and args.pubkey is not None:
        raise UsageError("bad-usage", "--pubkey and --root exclude each other")


def _keys(args: argparse.Namespace, *, is_github: bool) -> TrustedKeys:
    from opencoti.trust.keys import only_key
    from release.keysource import read_public_key
    from release.sign_cli import trusted_keys

    if args.pubkey is not None:
        may = not is_github or args.allow_development_key
        return only_key(read_public_key(args.pubkey), allow_development=may)
    return trusted_keys(args.root)


def _confirm(args: argparse.Namespace, candidate: Candidate) -> None:
    """Ask before something becomes public that cannot be taken back."""
    if args.to != "github" or args.yes or args.dry_run:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(
            "publish-unconfirmed",
            f"{candidate.tag} would become public",
            why="nobody is there to be asked, and a release cannot be taken back",
            hint="add --yes, or look first with --dry-run",
        )
    sys.stderr.write(
        f"Publish {candidate.tag} of {candidate.index.repo}, {len(candidate.files)} files? [y/N] "
    )
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("publish-unconfirmed", f"{candidate.tag} is not published", why="you said no")


def _text(done: Outcome) -> str:
    counts = f"{len(done.kept)} kept, {len(done.sent)} sent, {len(done.removed)} removed before"
    if done.state == "planned":
        counts = f"{len(done.kept)} to keep, {len(done.sent)} to send, {len(done.removed)} to remove before"
    return f"{done.tag} {_WORDS[done.state]}: {done.page or done.where} ({counts})"


def _data(done: Outcome, candidate: Candidate) -> dict[str, object]:
    return {
        "state": done.state,
        "where": done.where,
        "tag": done.tag,
        "page": done.page,
        "releaseId": done.release_id,
        "sequence": candidate.index.sequence,
        "commit": candidate.commit,
        "keys": list(candidate.keys),
        "kept": list(done.kept),
        "sent": list(done.sent),
        "removed": list(done.removed),
    }
