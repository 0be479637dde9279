"""What each verb of `python -m opencoti.fetch` does. Everything heavy is loaded when a verb runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from opencoti.console import Console
from opencoti.errors import MissingError, UsageError, VerificationError

if TYPE_CHECKING:
    from opencoti.fetch.selection import Selection
    from opencoti.fetch.store import Slot


def get(args: argparse.Namespace, console: Console) -> int:
    """Fetch, verify, put in place, print the path."""
    from opencoti.fetch.selection import existing_seeds, select

    seeds = existing_seeds(args.seed_from)
    return _get(select(args, console), seeds, args, console)


def _get(chosen: Selection, seeds: list[Path], args: argparse.Namespace, console: Console) -> int:
    fetched = chosen.get(console, dest=args.dest, allow_trial=not args.no_try, seeds=seeds)
    if fetched.action == "already-there":
        console.info(f"{fetched.path.name}: already there, nothing to do")
    proof = chosen.resolved.strength.label if chosen.resolved else "hash"
    console.result(str(fetched.path), {**fetched.as_dict(), "proof": proof})
    return 0


def verify(args: argparse.Namespace, console: Console) -> int:
    """Read the whole file and check its SHA-256."""
    from opencoti.fetch.selection import select
    from opencoti.fetch.store import inspect

    chosen = select(args, console)
    found = inspect(chosen.slot, read_all=True)
    if found.sha256 is None:
        raise _absent(chosen.slot)
    if found.sha256 != chosen.request.sha256:
        raise VerificationError(
            "hash-mismatch",
            f"{chosen.slot.final} is not the wanted file",
            why=f"expected sha256 {chosen.request.sha256}, found {found.sha256} ({found.size} bytes)",
            hint="`python -m opencoti.fetch repair` with the same words fetches again what is damaged",
        )
    data = {"path": str(chosen.slot.final), "sha256": found.sha256, "size": found.size, "is_right": True}
    console.result(str(chosen.slot.final), data)
    return 0


def repair(args: argparse.Namespace, console: Console) -> int:
    """Read the whole file; where it is damaged, build it anew from its good chunks and fetch the others."""
    from opencoti.fetch.selection import existing_seeds, select
    from opencoti.fetch.store import inspect

    seeds = existing_seeds(args.seed_from)
    chosen = select(args, console)
    found = inspect(chosen.slot, read_all=True)
    if found.sha256 not in (None, chosen.request.sha256):
        console.info(f"{chosen.slot.name}: damaged; fetching what is wrong")
    return _get(chosen, seeds, args, console)


def path(args: argparse.Namespace, console: Console) -> int:
    """Print the path of the file if it is there."""
    from opencoti.fetch.selection import select
    from opencoti.fetch.store import inspect

    chosen = select(args, console)
    if inspect(chosen.slot).sha256 != chosen.request.sha256:
        raise _absent(chosen.slot)
    console.result(str(chosen.slot.final), {"path": str(chosen.slot.final), "sha256": chosen.request.sha256})
    return 0


def list_(args: argparse.Namespace, console: Console) -> int:
    """List what the cache holds."""
    from opencoti import paths
    from opencoti.fetch.inventory import list_cache

    entries = list_cache(paths.artifacts_folder())
    if not entries and not console.as_json:
        console.info(f"nothing in {paths.artifacts_folder()}")
        return 0
    console.result("\n".join(entry.as_line() for entry in entries), [entry.as_dict() for entry in entries])
    return 0


def explain(args: argparse.Namespace, console: Console) -> int:
    """Say what `get` would do, and why."""
    from opencoti.fetch import inventory
    from opencoti.fetch.selection import select

    chosen = select(args, console)
    resolved = chosen.resolved
    told = inventory.explain(
        chosen.request,
        chosen.slot,
        chosen.settings,
        named_by=chosen.named_by,
        proof=resolved.strength.label if resolved else "hash",
        choice=resolved.choice if resolved else None,
    )
    console.result(told.as_text(), told.as_dict())
    return 0


def gc(args: argparse.Namespace, console: Console) -> int:
    """Remove old files of the cache."""
    from opencoti import paths
    from opencoti.fetch.cleanup import clean_cache, pinned_hashes

    if args.keep < 0:
        raise UsageError("bad-usage", f"--keep {args.keep} is less than 0")
    done = clean_cache(
        paths.artifacts_folder(), keep=args.keep, pinned=pinned_hashes(args.pin), is_dry_run=args.dry_run
    )
    console.result(done.as_text(), done.as_dict())
    return 0


def _absent(slot: Slot) -> MissingError:
    return MissingError(
        "file-absent",
        f"the wanted file is not at {slot.final}",
        hint="`python -m opencoti.fetch get` with the same words fetches it",
    )
