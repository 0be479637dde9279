"""From the words of a command line to one wanted file: by pin, by address, or from a signed release."""

from __future__ import annotations

import argparse
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from opencoti.console import Console
from opencoti.errors import ConfigError, NetworkError, OpencotiError, UsageError, storage_error
from opencoti.fetch.get import Fetched, fetch, open_real, slot_for
from opencoti.fetch.settings import MAX_CONNECTIONS, Settings
from opencoti.fetch.source import LocalSource, Request, request_for_pin, request_for_url
from opencoti.fetch.store import Slot
from opencoti.pins import ArtifactPin, RepositoryOrigin

if TYPE_CHECKING:
    from collections.abc import Callable

    from opencoti.fetch.release import ReleaseWish, Resolved, Resolver, Trust
    from opencoti.trust.memory import Strength

_RELEASE_WORDS = ("tag", "repo", "backend", "flavor", "allow_downgrade", "allow_expired", "allow_weaker")
_ADDRESS_WORDS = ("sha256", "name", "manifest")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What a verb is about. `resolved` is set where a signature was checked."""

    request: Request
    settings: Settings
    slot: Slot
    named_by: str
    resolved: Resolved | None = None

    def get(
        self, console: Console, *, dest: Path | None, allow_trial: bool, seeds: Sequence[Path]
    ) -> Fetched:
        """Fetch it, and remember what was proven when all is done. Raises like `fetch` and `remember`."""
        fetched = fetch(
            self.request,
            self.settings,
            console,
            dest=dest,
            allow_trial=allow_trial,
            seeds=seeds,
            find_chunks=self.resolved.find_blueprint if self.resolved else None,
        )
        if self.resolved is not None:
            self.resolved.remember()
        return fetched


def select(args: argparse.Namespace, console: Console) -> Selection:
    """Find out what is wanted; asks the network only for a signature or a release.

    Raises:
        UsageError: `bad-usage`, words that do not go together.
        OpencotiError: as `pins`, `source`, `settings` and `release`.
    """
    settings = _settings(args)
    by_release = [word for word in _RELEASE_WORDS if getattr(args, word)]
    by_address = [word for word in _ADDRESS_WORDS if getattr(args, word) is not None]
    _require_one_way(args, by_release, by_address)
    if args.latest or args.tag is not None:
        return _from_release(args, settings, console)
    if args.url is not None:
        request = request_for_url(args.url, args.sha256, name=args.name, manifest=args.manifest)
        return _selection(args, request, settings, "--url")
    pin = ArtifactPin.load_shipped() if args.pin is None else ArtifactPin.load(args.pin)
    return _from_pin(args, pin, settings, console)


def existing_seeds(paths: Sequence[Path]) -> list[Path]:
    """Return the files of `--seed-from`. Raises `ConfigError` and `StorageError` for one that is none."""
    for path in paths:
        try:
            is_file = stat.S_ISREG(path.stat().st_mode)
        except FileNotFoundError:
            is_file = False
        except OSError as exc:
            raise storage_error(exc, f"cannot read {path}") from exc
        if not is_file:
            raise ConfigError(
                "local-file-missing",
                f"cannot take {path}, named by --seed-from",
                why="there is no plain file of that name",
                hint="name an older artifact, or leave it out",
            )
    return [Path(os.path.abspath(path)) for path in paths]


def _settings(args: argparse.Namespace) -> Settings:
    settings = Settings.from_environ(os.environ)
    connections = getattr(args, "connections", None)
    if connections is None:
        return settings
    if not 1 <= connections <= MAX_CONNECTIONS:
        raise UsageError("bad-usage", f"--connections {connections} is not from 1 to {MAX_CONNECTIONS}")
    return replace(settings, limits=replace(settings.limits, connections=connections))


def _require_one_way(args: argparse.Namespace, by_release: Sequence[str], by_address: Sequence[str]) -> None:
    is_release = args.latest or args.tag is not None
    if is_release + (args.url is not None) + (args.pin is not None) > 1 or (args.latest and args.tag):
        raise UsageError("bad-usage", "only one of --pin, --url, --latest and --tag says what is wanted")
    if by_release and not is_release:
        raise UsageError("bad-usage", f"--{by_release[0].replace('_', '-')} goes with --latest or --tag")
    if args.url is not None and args.sha256 is None:
        raise UsageError("bad-usage", "--url goes with --sha256")
    if by_address and args.url is None:
        raise UsageError("bad-usage", f"--{by_address[0]} goes with --url")
    if args.require is not None and args.url is not None:
        raise UsageError("bad-usage", "--require goes with a release or with the pin of a repository")


def _selection(
    args: argparse.Namespace,
    request: Request,
    settings: Settings,
    named_by: str,
    resolved: Resolved | None = None,
) -> Selection:
    slot = slot_for(request, settings, args.dest)
    return Selection(request=request, settings=settings, slot=slot, named_by=named_by, resolved=resolved)


def _from_pin(args: argparse.Namespace, pin: ArtifactPin, settings: Settings, console: Console) -> Selection:
    request = request_for_pin(pin, settings)
    require = _strength(args.require) if args.require else None
    if require is None or require.label == "hash":
        _warn_if_weaker(pin, console)
        return _selection(args, request, settings, pin.read_from)
    if not isinstance(pin.origin, RepositoryOrigin) or isinstance(request.source, LocalSource):
        raise UsageError("bad-usage", "--require goes with a release or with the pin of a repository")
    resolved = _resolve(args, settings, console, lambda resolver: resolver.resolve_pin(pin, require))
    return _selection(args, resolved.request, settings, pin.read_from, resolved)


def _from_release(args: argparse.Namespace, settings: Settings, console: Console) -> Selection:
    resolved = _resolve(args, settings, console, lambda resolver: resolver.resolve(_wish(args)))
    return _selection(args, resolved.request, settings, "the signed release index", resolved)


def _wish(args: argparse.Namespace) -> ReleaseWish:
    from opencoti.fetch.choose import Wish
    from opencoti.fetch.release import DEFAULT_REPOSITORY, ReleaseWish
    from opencoti.pins import is_repository, is_tag

    repository = args.repo or DEFAULT_REPOSITORY
    if not is_repository(repository) or not (args.tag is None or is_tag(args.tag)):
        raise UsageError(
            "bad-usage", "--repo is <owner>/<name>; a tag holds letters, digits and . _ + - only"
        )
    return ReleaseWish(
        repository=repository,
        tag=args.tag,
        wish=Wish(backend=args.backend, flavor=args.flavor),
        require=_strength(args.require or "signature"),
        allow_downgrade=args.allow_downgrade,
        allow_expired=args.allow_expired,
        allow_weaker=args.allow_weaker,
    )


def _resolve(
    args: argparse.Namespace,
    settings: Settings,
    console: Console,
    action: Callable[[Resolver], Resolved],
) -> Resolved:
    from opencoti.fetch.release import Resolver

    trust = _trust(args)
    if settings.is_offline:
        raise NetworkError(
            "offline",
            "a release cannot be checked, since OPENCOTI_OFFLINE forbids the network",
            hint="unset OPENCOTI_OFFLINE, or use a pin without --require",
        )
    with open_real(settings.limits, settings.credential) as tools:
        return action(Resolver(settings, trust, console, tools))


def _trust(args: argparse.Namespace) -> Trust:
    """Return what is believed: the shipped root, or one that the user vouches for, with its own memory."""
    from opencoti import state
    from opencoti.fetch.release import Trust

    folder, sigstore_root = state.trust_folder(), args.sigstore_root
    if args.trust_root is None:
        from opencoti.trust.shipped import shipped_root

        return Trust(folder=folder, anchor=shipped_root(), sigstore_root=sigstore_root)
    from opencoti.hashing import sha256_bytes
    from opencoti.trust.chain import anchor

    try:
        data = args.trust_root.read_bytes()
    except OSError as exc:
        raise storage_error(exc, f"cannot read {args.trust_root}") from exc
    root = anchor(data, f"the trust root {args.trust_root} that you named")
    return Trust(folder=folder / sha256_bytes(data)[:12], anchor=root, sigstore_root=sigstore_root)


def _strength(word: str) -> Strength:
    from opencoti.trust.memory import Strength

    return Strength[word.upper()]


def _warn_if_weaker(pin: ArtifactPin, console: Console) -> None:
    """Tell that a pin alone proves less than what was seen before. It counts: it is the user's own word."""
    if not isinstance(pin.origin, RepositoryOrigin):
        return
    from opencoti import state
    from opencoti.trust.memory import Scope, Strength

    repository = pin.origin.repository
    try:
        before = state.load(state.trust_folder()).memory(Scope(repo=repository, product="opencoti")).strength
    except OpencotiError:
        return  # a pin does not need the memory; whoever does says what is wrong with it
    if before is not None and before > Strength.HASH:
        console.warn(
            f"{pin.asset}: proven by the SHA-256 of the pin only; files of {repository} were proven "
            f"by {before.label} before (--require {before.label} asks for that)"
        )
