"""The files of one remote release against those of the candidate: compared, sent, never deleted by mistake.

| on the remote | what is done |
|---|---|
| the same name, size and SHA-256 | kept |
| never finished, or the beginning of ours | that very id is looked at again, deleted, and sent again |
| in the list only, since it was deleted | sent again |
| complete and different | stop, or with `--replace` deleted and sent |
| not one of ours | stop, or with `--replace` deleted |
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from opencoti.errors import NetworkError, VerificationError, storage_error
from opencoti.hashing import READ_SIZE_BYTES
from release.remote.limits import Patience
from release.remote.model import LocalFile, NotThereError, RefusedError, Remote, RemoteAsset, RemoteRelease
from release.remote.refusals import asset_refused, draft_vanished


class Verdict(Enum):
    """What an asset is, seen from the file that should be there."""

    SAME = "same"
    INCOMPLETE = "incomplete"
    DIFFERENT = "different"
    GONE = "gone"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """In what a release differs. `extra` is no difference of ours, but nobody should wonder."""

    missing: tuple[str, ...]
    unfinished: tuple[str, ...]
    different: tuple[str, ...]
    extra: tuple[str, ...]

    @property
    def is_any(self) -> bool:
        """Whether one of our files is not there as it should be."""
        return bool(self.missing or self.unfinished or self.different)

    def __str__(self) -> str:
        rows = {
            "missing": self.missing,
            "unfinished": self.unfinished,
            "different": self.different,
            "not ours": self.extra,
        }
        return "; ".join(f"{what}: {', '.join(names)}" for what, names in rows.items() if names)


@dataclass(frozen=True, kw_only=True)
class _Removed:
    """What became of an asset that was to be deleted: `good` is it, where it was kept after all."""

    good: RemoteAsset | None


@dataclass(kw_only=True)
class Keeper:
    """Brings a draft to the state of `files`, and tells what it did."""

    remote: Remote
    patience: Patience
    files: Sequence[LocalFile]
    allow_replace: bool
    kept: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    def preview(self, draft: RemoteRelease | None) -> None:
        """Note what `fill` would do. Raises as that."""
        if draft is None:
            self.sent.extend(file.name for file in self.files)
            return
        present = self._by_name(draft)
        self.removed.extend(asset.name for asset in self._others(present))
        for file in self.files:
            asset = present.get(file.name)
            verdict = None if asset is None else self._judge(draft, file, asset)
            if verdict is Verdict.SAME:
                self.kept.append(file.name)
                continue
            if asset is not None and verdict is not Verdict.GONE:
                if verdict is Verdict.DIFFERENT:
                    self._require_replaceable(draft, file, asset)
                self.removed.append(file.name)
            self.sent.append(file.name)

    def fill(self, draft: RemoteRelease) -> None:
        """Send what is missing, one file after another.

        Raises:
            VerificationError: `draft-has-other-assets`, `asset-differs`, `asset-renamed`, `asset-refused`.
            NetworkError: as `Patience`; `asset-never-whole`.
        """
        present = self._by_name(draft)
        for asset in self._others(present):
            self._delete(draft, asset)
        for number, file in enumerate(self.files, 1):
            self._place(draft, file, present.get(file.name), f"{number}/{len(self.files)} {file.name}")

    def difference(self, release: RemoteRelease) -> Difference:
        """Read all files of a release anew and compare."""
        present = self._by_name(release)
        verdicts = {
            file.name: self._judge(release, file, present[file.name])
            for file in self.files
            if file.name in present
        }
        ours = {file.name for file in self.files}
        return Difference(
            missing=tuple(
                file.name for file in self.files if verdicts.get(file.name, Verdict.GONE) is Verdict.GONE
            ),
            unfinished=tuple(n for n, verdict in verdicts.items() if verdict is Verdict.INCOMPLETE),
            different=tuple(n for n, verdict in verdicts.items() if verdict is Verdict.DIFFERENT),
            extra=tuple(name for name in present if name not in ours),
        )

    def require_whole(self, draft: RemoteRelease) -> None:
        """Read everything anew; a list that is behind gets some time.

        Raises:
            VerificationError: `draft-not-whole`.
        """
        for pause in (0.0, *self.patience.limits.lost_looks_s):
            if pause:
                self.patience.pause(pause, "the list of assets may be behind")
            difference = self.difference(draft)
            if not difference.is_any and not difference.extra:
                return
            if difference.different or difference.extra:
                break
        raise VerificationError(
            "draft-not-whole",
            f"draft {draft.release_id} of {draft.tag} is not what it should be, and stays a draft",
            why=str(difference),
            hint="run the same command again; if that does not help, somebody else changes this draft",
        )

    def _by_name(self, release: RemoteRelease) -> dict[str, RemoteAsset]:
        try:
            assets = self.patience.read(
                f"list the assets of release {release.release_id}", lambda: self.remote.assets(release)
            )
        except NotThereError as exc:
            raise draft_vanished(release) from exc
        return {asset.name: asset for asset in assets}

    def _others(self, present: dict[str, RemoteAsset]) -> list[RemoteAsset]:
        ours = {file.name for file in self.files}
        others = [asset for name, asset in present.items() if name not in ours]
        if others and not self.allow_replace:
            raise VerificationError(
                "draft-has-other-assets",
                "the draft holds files that are not of this release",
                why=", ".join(f"{asset.name} (id {asset.asset_id})" for asset in others[:10]),
                hint="remove them by hand, or let --replace remove them",
            )
        return others

    def _place(self, draft: RemoteRelease, file: LocalFile, found: RemoteAsset | None, label: str) -> None:
        is_sent = False
        for _ in range(self.patience.limits.tries):
            if found is None:
                found = self._send(draft, file, label)
                is_sent = True
            verdict = self._judge(draft, file, found)
            if verdict is Verdict.SAME:
                (self.sent if is_sent else self.kept).append(file.name)
                return
            if verdict is Verdict.GONE:
                found = None
                continue
            if verdict is Verdict.DIFFERENT:
                self._require_replaceable(draft, file, found)
            found = self._remove(draft, file, found)
        raise NetworkError(
            "asset-never-whole",
            f"{file.name} does not arrive whole",
            why=f"{self.patience.limits.tries} uploads left a part of it only",
            hint="run the same command again: it goes on where this one ended",
        )

    def _send(self, draft: RemoteRelease, file: LocalFile, label: str) -> RemoteAsset:
        """Send a file; return what the remote has of it then, in whatever state."""
        name, total = file.name, max(1, file.size)
        self.patience.console.info(f"send {label} ({file.size} bytes)")

        def tell(sent: int) -> None:
            self.patience.console.status(f"{label}: {sent * 100 // total} %")

        try:
            asset = self.patience.write(
                f"upload {name}",
                lambda: self.remote.send(draft, file, tell),
                lambda: self._by_name(draft).get(name),
            )
        except RefusedError as exc:
            asset = self._after_refusal(draft, file, exc)
        except NotThereError as exc:
            raise draft_vanished(draft) from exc
        if asset.name != name:
            raise VerificationError(
                "asset-renamed",
                f"the remote stored {name} as {asset.name[:200]!r}",
                why="it does not keep every name",
                hint=f"delete draft {draft.release_id} by hand, and give the file another name",
            )
        return asset

    def _after_refusal(self, draft: RemoteRelease, file: LocalFile, exc: RefusedError) -> RemoteAsset:
        """Return the asset that is in the way. An attempt of ours may have made it (case B30)."""
        if ("name", "already_exists") in exc.codes:
            for pause in (0.0, *self.patience.limits.lost_looks_s):
                if pause:
                    self.patience.pause(pause, "the list of assets may be behind")
                if (found := self._by_name(draft).get(file.name)) is not None:
                    return found
        raise asset_refused(exc, file) from exc

    def _remove(self, draft: RemoteRelease, file: LocalFile, asset: RemoteAsset) -> RemoteAsset | None:
        """Delete an asset unless it has become good meanwhile; then return it.

        It is looked at right before each attempt: an upload that was given up may still end well inside the
        remote while this run waits for its turn.
        """

        def delete_if_bad() -> _Removed:
            try:
                now = self.remote.asset(draft, asset)
                if self._judge(draft, file, now) is Verdict.SAME:
                    return _Removed(good=now)
                self.remote.delete_asset(draft, now)
            except NotThereError:
                pass  # an attempt before had its effect
            return _Removed(good=None)

        done = self._deleting(asset, delete_if_bad)
        if done.good is None:
            self.removed.append(asset.name)
        return done.good

    def _delete(self, draft: RemoteRelease, asset: RemoteAsset) -> None:
        def delete() -> _Removed:
            with suppress(NotThereError):  # an attempt before had its effect
                self.remote.delete_asset(draft, asset)
            return _Removed(good=None)

        self._deleting(asset, delete)
        self.removed.append(asset.name)

    def _deleting(self, asset: RemoteAsset, act: Callable[[], _Removed]) -> _Removed:
        self.patience.console.info(f"delete asset {asset.asset_id} ({asset.name}) of the draft")
        return self.patience.write(f"delete asset {asset.asset_id}", act, lambda: None)

    def _judge(self, release: RemoteRelease, file: LocalFile, asset: RemoteAsset) -> Verdict:
        if not asset.is_uploaded:
            return Verdict.INCOMPLETE
        if asset.size > file.size:
            return Verdict.DIFFERENT
        try:
            found = asset.sha256 or self._fetched_hash(release, asset)
        except NotThereError:
            return Verdict.GONE  # the list is behind
        if asset.size == file.size:
            return Verdict.SAME if found == file.sha256 else Verdict.DIFFERENT
        return Verdict.INCOMPLETE if found == _hash_of_start(file, asset.size) else Verdict.DIFFERENT

    def _fetched_hash(self, release: RemoteRelease, asset: RemoteAsset) -> str:
        return self.patience.read(
            f"fetch {asset.name} for its hash", lambda: self.remote.sha256_of(release, asset)
        )

    def _require_replaceable(self, draft: RemoteRelease, file: LocalFile, asset: RemoteAsset) -> None:
        if not self.allow_replace:
            raise _differs(draft, file, asset)


def _differs(draft: RemoteRelease, file: LocalFile, asset: RemoteAsset) -> VerificationError:
    return VerificationError(
        "asset-differs",
        f"draft {draft.release_id} holds another {file.name}",
        why=f"asset {asset.asset_id} has {asset.size} bytes, sha256 {asset.sha256 or 'not told'}; ours has "
        f"{file.size}, {file.sha256}",
        hint="delete the draft if it is of an earlier attempt, or replace the file with --replace",
    )


def _hash_of_start(file: LocalFile, size: int) -> str:
    digest, left = hashlib.sha256(), size
    try:
        with open(file.path, "rb") as source:
            while left and (block := source.read(min(READ_SIZE_BYTES, left))):
                digest.update(block)
                left -= len(block)
    except OSError as exc:
        raise storage_error(exc, f"cannot read {file.path}") from exc
    return digest.hexdigest()
