"""Publishing: one algorithm for every remote, which can be stopped anywhere and run again.

Find the one draft, or make it; send what is missing; compare everything; make it public last. Nothing that
the remote holds is deleted unless it is proven incomplete or the user said `--replace`, and nothing of a
public release is ever changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from opencoti.errors import BusyError, VerificationError
from opencoti.index import MAX_INDEX_BYTES, load_index
from opencoti.trust.comment import INDEX_NAME
from release.publish_assets import Keeper
from release.publish_candidate import Candidate
from release.remote.limits import Patience
from release.remote.model import (
    MakeLatest,
    NewRelease,
    NotThereError,
    RefusedError,
    Remote,
    RemoteRelease,
)
from release.remote.refusals import draft_vanished, refused

_INDEXES_TO_READ = 3


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user allows.

    Attributes:
        allow_replace: delete what differs in a draft, and what does not belong to it.
        make_latest: `auto` makes it the newest one, since its number is the highest.
        is_dry_run: look only.
    """

    allow_replace: bool = False
    make_latest: Literal["auto", "true", "false"] = "auto"
    is_dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was done, or would be. Names of files: kept as they were, sent, removed before."""

    state: Literal["published", "unchanged", "planned"]
    where: str
    tag: str
    page: str = ""
    release_id: int | None = None
    kept: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def publish(candidate: Candidate, remote: Remote, options: Options, patience: Patience) -> Outcome:
    """Bring a release to a remote and make it public.

    Args:
        candidate: the staged release, verified.
        remote: where it goes.
        options: what the user allows.
        patience: repeats, paces and waits.

    Raises:
        VerificationError: `release-duplicates`, `release-published-differs`, `publish-sequence-taken`,
            `tag-on-other-commit`, `commit-not-on-remote`, `draft-of-other-commit`, `draft-has-other-assets`,
            `asset-differs`, `asset-renamed`, `draft-not-whole`, `tag-burned`, `release-refused`.
        BusyError: `publish-raced`.
        NetworkError: as `Patience`, and what the remote raises.
        StorageError: a file cannot be read.
    """
    return _Run(candidate=candidate, remote=remote, options=options, patience=patience).go()


@dataclass(kw_only=True)
class _Run:
    candidate: Candidate
    remote: Remote
    options: Options
    patience: Patience
    keeper: Keeper = field(init=False)

    def __post_init__(self) -> None:
        self.keeper = Keeper(
            remote=self.remote,
            patience=self.patience,
            files=self.candidate.files,
            allow_replace=self.options.allow_replace,
        )

    def go(self) -> Outcome:
        console, remote = self.patience.console, self.remote
        console.step(f"look at {remote.where}")
        releases = self._releases()
        mine = self._only(releases)
        if mine is not None and not mine.is_draft:
            return self._published_before(mine)
        self._require_new_sequence(releases)
        self._require_commit()
        if self.options.is_dry_run:
            return self._planned(mine)
        draft = mine or self._create()
        self._require_same_cut(draft)
        console.step(f"fill draft {draft.release_id}")
        self.keeper.fill(draft)
        console.step("compare everything")
        self.keeper.require_whole(draft)
        self._only(self._releases())
        console.step("make it public")
        done = self._flip(draft)
        return self._outcome("published", done)

    def _releases(self) -> Sequence[RemoteRelease]:
        return self.patience.read(f"list the releases of {self.remote.where}", self.remote.releases)

    def _only(self, releases: Sequence[RemoteRelease]) -> RemoteRelease | None:
        """Return the one release of the tag (case B32)."""
        mine = [release for release in releases if release.tag == self.candidate.tag]
        if len(mine) > 1:
            names = ", ".join(
                f"{item.release_id} ({'draft' if item.is_draft else 'public'}, {len(item.assets)} assets)"
                for item in mine
            )
            raise VerificationError(
                "release-duplicates",
                f"{self.remote.where} has {len(mine)} releases of {self.candidate.tag}",
                why=names,
                hint="look at them, delete all but one by hand, and run the same command again",
            )
        return mine[0] if mine else None

    def _published_before(self, release: RemoteRelease) -> Outcome:
        """Confirm that what is public is this very release; it is never changed."""
        difference = self.keeper.difference(release)
        if difference.is_any:
            raise VerificationError(
                "release-published-differs",
                f"{self.candidate.tag} is public already on {self.remote.where}, with other files",
                why=str(difference),
                hint="a public release is never changed: bump OPENCOTI_TAG and cut a new one",
            )
        if difference.extra:
            self.patience.console.warn(
                f"{release.page or release.tag} also has {', '.join(difference.extra)}"
            )
        self._require_tag()
        if not self.options.is_dry_run:
            self.remote.settle(release, self._make_latest)
        self.keeper.kept.extend(file.name for file in self.candidate.files)
        return self._outcome("unchanged", release)

    def _require_new_sequence(self, releases: Sequence[RemoteRelease]) -> None:
        """Refuse a number that a public release has: it was planned before that one was published."""
        others = [
            release for release in releases if not release.is_draft and release.tag != self.candidate.tag
        ]
        others.sort(key=lambda release: release.published, reverse=True)
        indexes = [
            (r, asset) for r in others for asset in r.assets if asset.name == INDEX_NAME and asset.is_uploaded
        ]
        for release, asset in indexes[:_INDEXES_TO_READ]:
            try:
                data = self.patience.read(
                    f"read the index of {release.tag}",
                    partial(self.remote.read, release, asset, MAX_INDEX_BYTES),
                )
            except NotThereError:
                continue  # the list still shows a release that was deleted
            other = load_index(data, f"the index of {release.tag} on {self.remote.where}")
            if other.sequence >= self.candidate.index.sequence:
                raise VerificationError(
                    "publish-sequence-taken",
                    f"{self.candidate.tag} cannot be release number {self.candidate.index.sequence}",
                    why=f"{release.tag} is public with number {other.sequence}",
                    hint="make the plan again, then stage and sign again: clients refuse a number twice",
                )

    def _require_commit(self) -> None:
        """See to it that the tag is, or will be, on the commit that was built (case B35)."""
        if self._require_tag():
            return
        commit = self.candidate.commit
        if not self.patience.read(f"look up commit {commit[:12]}", lambda: self.remote.has_commit(commit)):
            raise VerificationError(
                "commit-not-on-remote",
                f"{self.remote.where} does not have commit {commit}",
                why="the tag must be made on the commit that was built",
                hint="push it first",
            )

    def _require_tag(self) -> bool:
        tag, commit = self.candidate.tag, self.candidate.commit
        found = self.patience.read(f"look up tag {tag}", lambda: self.remote.tag_commit(tag))
        if found is not None and found != commit:
            raise VerificationError(
                "tag-on-other-commit",
                f"tag {tag} of {self.remote.where} is on another commit",
                why=f"it is on {found}, and this release was built from {commit}",
                hint="never move a tag that others may have: bump OPENCOTI_TAG and cut a new release",
            )
        return found is not None

    def _planned(self, draft: RemoteRelease | None) -> Outcome:
        if draft is not None:
            self._require_same_cut(draft)
        self.keeper.preview(draft)
        return self._outcome("planned", draft)

    def _create(self) -> RemoteRelease:
        """Make the draft, after looking often enough to be sure that there is none."""
        found = self._look(self.patience.limits.absence_looks_s)
        if found is not None:
            return found
        new = self._new("")
        try:
            draft = self.patience.write(
                f"make a draft of {new.tag}",
                lambda: self.remote.create(new),
                lambda: self._look(self.patience.limits.lost_looks_s),
            )
        except RefusedError as exc:
            if (other := self._only(self._releases())) is not None:
                raise self._raced(f"release {other.release_id} was made meanwhile") from exc
            raise refused(exc, self.candidate.tag) from exc
        self._require_won(draft)
        return draft

    def _look(self, pauses: Sequence[float]) -> RemoteRelease | None:
        for pause in pauses:
            self.patience.pause(pause, "the list of releases may be behind")
            if (found := self._only(self._releases())) is not None:
                return found
        return None

    def _require_won(self, draft: RemoteRelease) -> None:
        """Wait until the list shows the new draft; step back if another publisher made one too (case B32)."""
        for pause in (0.0, *self.patience.limits.lost_looks_s):
            if pause:
                self.patience.pause(pause, "the list of releases does not show the draft yet")
            ids = [r.release_id for r in self._releases() if r.tag == draft.tag]
            if draft.release_id not in ids:
                continue
            if min(ids) != draft.release_id:
                self._delete_own(draft)
                raise self._raced(
                    f"draft {min(ids)} was made before {draft.release_id}, which is removed again"
                )
            return

    def _raced(self, why: str) -> BusyError:
        return BusyError(
            "publish-raced",
            f"somebody else publishes {self.candidate.tag} right now",
            why=why,
            hint="let that one end, then run the same command again",
        )

    def _delete_own(self, draft: RemoteRelease) -> None:
        def delete() -> None:
            try:
                self.remote.delete_draft(draft)
            except NotThereError:
                return

        self.patience.read(f"delete draft {draft.release_id}", delete)

    def _require_same_cut(self, draft: RemoteRelease) -> None:
        if draft.target != self.candidate.commit and not self.options.allow_replace:
            raise VerificationError(
                "draft-of-other-commit",
                f"draft {draft.release_id} of {draft.tag} is of another commit",
                why=f"it says {draft.target[:100] or 'nothing'}, this release was built from "
                f"{self.candidate.commit}",
                hint="delete the draft, or take it over with --replace",
            )

    def _flip(self, draft: RemoteRelease) -> RemoteRelease:
        new = self._new(self._find(draft).body)
        try:
            done = self.patience.write(
                f"publish release {draft.release_id}",
                lambda: self.remote.publish(draft, new, self._make_latest),
                lambda: found if not (found := self._find(draft)).is_draft else None,
            )
        except RefusedError as exc:
            raise refused(exc, draft.tag) from exc
        except NotThereError as exc:
            raise draft_vanished(draft) from exc
        self._confirm_tag()
        return done

    def _confirm_tag(self) -> None:
        """See where the tag landed; it may take a moment to be seen."""
        for pause in (0.0, *self.patience.limits.lost_looks_s):
            if pause:
                self.patience.pause(pause, "the tag is not shown yet")
            if self._require_tag():
                return
        self.patience.console.warn(f"{self.remote.where} does not show tag {self.candidate.tag} yet")

    def _find(self, draft: RemoteRelease) -> RemoteRelease:
        try:
            return self.patience.read(f"read release {draft.release_id}", lambda: self.remote.find(draft))
        except NotThereError as exc:
            raise draft_vanished(draft) from exc

    @property
    def _make_latest(self) -> MakeLatest:
        return "true" if self.options.make_latest == "auto" else self.options.make_latest

    def _new(self, existing_body: str) -> NewRelease:
        return self.candidate.as_new(existing_body)

    def _outcome(
        self, state: Literal["published", "unchanged", "planned"], release: RemoteRelease | None
    ) -> Outcome:
        keeper = self.keeper
        return Outcome(
            state=state,
            where=self.remote.where,
            tag=self.candidate.tag,
            page=release.page if release is not None else "",
            release_id=release.release_id if release is not None else None,
            kept=tuple(keeper.kept),
            sent=tuple(keeper.sent),
            removed=tuple(keeper.removed),
        )
