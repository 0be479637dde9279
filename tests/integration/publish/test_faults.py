"""What GitHub does when it does not do what it should: each habit on its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from opencoti.errors import BusyError, NetworkError, OpencotiError, VerificationError
from release.publish import Options, Outcome
from release.publish_candidate import Candidate
from release.remote.limits import Limits
from release.remote.model import NewRelease, Remote, RemoteAsset, RemoteRelease
from tests.fakes.github.faults import Kind, Script
from tests.fakes.github.server import GitHub
from tests.fakes.github.state import Asset, Release
from tests.fakes.staged_release import COMMIT, StagedRelease
from tests.integration.publish.bench import Bench, candidate_of, github_for, staged_in
from tests.integration.publish.storm import Figures, run_seed

CREATE, FLIP, UPLOAD = "repos/create-release", "repos/update-release", "repos/upload-release-asset"
LIST, ASSETS = "repos/list-releases", "repos/list-release-assets"
PART = "engine.llamafile.part001"


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> StagedRelease:
    return staged_in(tmp_path_factory.mktemp("staged"))


@pytest.fixture(scope="module")
def candidate(staged: StagedRelease) -> Candidate:
    return candidate_of(staged)


@pytest.fixture
def github(staged: StagedRelease) -> Iterator[GitHub]:
    with github_for(staged) as github:
        yield github


@pytest.fixture
def bench(candidate: Candidate, github: GitHub) -> Bench:
    return Bench(candidate=candidate, github=github)


def script(**by_operation: list[Kind]) -> Script:
    names = {"create": CREATE, "flip": FLIP, "upload": UPLOAD, "list": LIST, "assets": ASSETS}
    return Script({names[name]: list(kinds) for name, kinds in by_operation.items()})


def published(bench: Bench, options: Options | None = None) -> Outcome:
    outcome = bench.publish(options)
    bench.check()
    assert bench.is_public
    return outcome


def stopped(bench: Bench, error_id: str, options: Options | None = None) -> OpencotiError:
    outcome = bench.outcome(options)
    bench.check()
    assert isinstance(outcome, OpencotiError)
    assert outcome.error_id == error_id, outcome
    return outcome


def draft_of(bench: Bench, target: str = COMMIT) -> Release:
    draft = bench.github.store.publish_directly(bench.candidate.tag, {}, is_draft=True)
    draft.target = target
    return draft


def put(bench: Bench, draft: Release, name: str, data: bytes, state: str = "uploaded") -> Asset:
    import hashlib

    asset = bench.github.store.add_asset(draft, name, data, len(data), hashlib.sha256(data).hexdigest())
    asset.state = state
    return asset


def content(bench: Bench, name: str) -> bytes:
    return (bench.candidate.folder / name).read_bytes()


def test_a_finished_publish_is_run_again_without_writes_and_with_few_reads(bench: Bench) -> None:
    assert len(bench.candidate.files) == 12
    published(bench)
    before = len(bench.github.log)
    again = published(bench)
    calls = bench.github.log[before:]
    assert again.state == "unchanged"
    assert [call for call in calls if call.is_write] == []
    assert len(calls) <= 10


def test_forty_seeds_of_faults_end_published_and_whole(candidate: Candidate) -> None:
    figures = Figures()
    for seed in range(40):
        run_seed(seed, candidate, figures)
    assert figures.seeds == 40
    assert figures.faults > 100
    assert figures.stopped.total() > 0  # giving up was tested, too


@pytest.mark.parametrize(
    "kind", ["middle", "middle-clean", "starter", "late", "short", "502-done", "reset-done", "cut", "500"]
)
def test_an_upload_that_fails_is_completed(bench: Bench, kind: Kind) -> None:
    """case B30"""
    bench.github.decide = script(upload=["none", "none", "none", kind])
    outcome = published(bench)
    assert PART in outcome.sent
    if kind in ("502-done", "reset-done", "cut"):  # the bytes are there: they are looked at, not sent again
        assert sum(PART in call.path for call in bench.github.writes) == 1


def test_a_placeholder_of_an_earlier_run_is_deleted_by_its_id_and_sent_again(bench: Bench) -> None:
    """case B30"""
    draft = draft_of(bench)
    left = put(bench, draft, PART, b"x" * 16384, state="starter")
    kept = put(bench, draft, "plan.json", content(bench, "plan.json"))
    outcome = published(bench)
    assert outcome.kept == ("plan.json",)
    assert outcome.removed == (PART,)
    assert [asset.asset_id for asset in bench.github.store.deleted] == [left.asset_id]
    assert kept.asset_id in draft.assets


def test_a_placeholder_that_becomes_whole_meanwhile_is_kept(bench: Bench) -> None:
    draft = draft_of(bench)
    late = put(bench, draft, "plan.json", content(bench, "plan.json"), state="starter")

    def settle(number: int, phase: str) -> None:
        if any(call.operation == ASSETS for call in bench.github.log):
            late.state = "uploaded"

    bench.github.on_call = settle
    assert "plan.json" in published(bench).kept
    assert bench.github.store.deleted == []


def test_another_complete_file_stops_and_is_replaced_only_on_request(bench: Bench) -> None:
    draft = draft_of(bench)
    asset = put(bench, draft, "plan.json", b"of an earlier attempt")
    error = stopped(bench, "asset-differs")
    assert str(asset.asset_id) in error.why
    assert asset.asset_id in draft.assets
    outcome = published(bench, Options(allow_replace=True))
    assert outcome.removed == ("plan.json",)


def test_a_placeholder_that_becomes_whole_while_its_deletion_waits_is_kept(bench: Bench) -> None:
    draft = draft_of(bench)
    late = put(bench, draft, "plan.json", content(bench, "plan.json"), state="starter")
    late.whole_at = bench.github.clock.at + 5.0
    bench.github.decide = Script({"repos/delete-release-asset": ["secondary-403"]})
    assert "plan.json" in published(bench).kept
    assert bench.github.store.deleted == []


def test_a_file_that_is_not_ours_never_becomes_public_by_accident(bench: Bench) -> None:
    draft = draft_of(bench)
    put(bench, draft, "notes-of-somebody.txt", b"secret plans")
    stopped(bench, "draft-has-other-assets")
    assert "notes-of-somebody.txt" in published(bench, Options(allow_replace=True)).removed


def test_two_drafts_stop_with_both_ids(bench: Bench) -> None:
    """case B32"""
    ids = [draft_of(bench).release_id for _ in range(2)]
    error = bench.outcome()
    assert isinstance(error, VerificationError)
    assert error.error_id == "release-duplicates"
    assert all(str(number) in error.why for number in ids)
    assert bench.github.writes == []


@pytest.mark.parametrize("kind", ["502-done", "reset-done", "cut", "500", "reset", "html"])
@pytest.mark.parametrize("lag_s", [0.0, 10.0])
def test_a_lost_answer_to_the_creation_makes_no_second_draft(bench: Bench, kind: Kind, lag_s: float) -> None:
    """case B32"""
    bench.github.store.list_lag_s = lag_s
    bench.github.decide = script(create=[kind])
    published(bench)
    assert len(bench.github.store.releases) == 1


class Rival:
    """A remote on which somebody else makes a draft at the same moment as we do."""

    def __init__(self, remote: Remote, bench: Bench, *, is_first: bool) -> None:
        self._remote = remote
        self._bench = bench
        self._is_first = is_first
        self.own: int = 0

    def create(self, new: NewRelease) -> RemoteRelease:
        if self._is_first:
            draft_of(self._bench)
        made = self._remote.create(new)
        self.own = made.release_id
        return made

    def __getattr__(self, name: str) -> object:
        return getattr(self._remote, name)


def test_of_two_runs_at_once_the_later_one_steps_back(bench: Bench) -> None:
    """case B32"""
    rivals: list[Rival] = []

    def wrap(remote: Remote) -> Remote:
        rivals.append(Rival(remote, bench, is_first=True))
        return rivals[0]  # type: ignore[return-value]

    with pytest.raises(BusyError, match="somebody else publishes"):
        bench.publish(wrap=wrap)
    left = [release.release_id for release in bench.github.store.releases.values()]
    assert len(left) == 1
    assert rivals[0].own not in left


def test_a_rival_that_is_done_already_is_no_burned_tag(bench: Bench) -> None:
    """case B32"""

    class Faster:
        def __init__(self, remote: Remote) -> None:
            self._remote = remote

        def create(self, new: NewRelease) -> RemoteRelease:
            bench.github.store.publish_directly(new.tag, {})
            return self._remote.create(new)

        def __getattr__(self, name: str) -> object:
            return getattr(self._remote, name)

    with pytest.raises(BusyError, match="somebody else publishes"):
        bench.publish(wrap=Faster)  # type: ignore[arg-type]
    assert len(bench.github.store.releases) == 1


@pytest.mark.parametrize("kind", ["502-done", "reset-done", "cut", "500", "html"])
def test_a_lost_answer_to_the_flip_is_looked_up(bench: Bench, kind: Kind) -> None:
    bench.github.store.is_immutable = True
    bench.github.decide = script(flip=[kind])
    assert published(bench).state == "published"


def test_a_published_release_is_never_changed(bench: Bench) -> None:
    published(bench)
    release = next(iter(bench.github.store.releases.values()))
    gone = release.named("plan.json")
    assert gone is not None
    del release.assets[gone.asset_id]
    before = len(bench.github.writes)
    for options in (Options(), Options(allow_replace=True)):
        error = bench.outcome(options)
        assert isinstance(error, VerificationError)
        assert (error.error_id, "plan.json" in error.why) == ("release-published-differs", True)
    assert len(bench.github.writes) == before


def test_a_burned_tag_says_what_to_do(bench: Bench) -> None:
    bench.github.store.burned.add(bench.candidate.tag)
    assert "OPENCOTI_TAG" in stopped(bench, "tag-burned").hint
    assert not bench.is_public


def test_an_immutable_repository_gets_everything_before_the_flip(bench: Bench) -> None:
    bench.github.store.is_immutable = True
    published(bench)
    assert bench.github.writes[-1].operation == FLIP
    assert published(bench).state == "unchanged"


def test_a_tag_on_another_commit_is_refused(bench: Bench) -> None:
    """case B35"""
    bench.github.store.tags[bench.candidate.tag] = "9" * 40
    assert "9" * 40 in stopped(bench, "tag-on-other-commit").why
    assert bench.github.writes == []


def test_an_annotated_tag_on_the_built_commit_is_taken(bench: Bench) -> None:
    """case B35"""
    bench.github.store.tags[bench.candidate.tag] = COMMIT
    bench.github.store.annotated[bench.candidate.tag] = "7" * 40
    published(bench)


def test_a_commit_that_was_not_pushed_is_refused(bench: Bench) -> None:
    """case B35"""
    bench.github.store.commits.clear()
    assert "push" in stopped(bench, "commit-not-on-remote").hint
    assert bench.github.writes == []


def test_a_draft_of_another_commit_is_taken_over_only_on_request(bench: Bench) -> None:
    """case B35"""
    draft_of(bench, target="main")
    stopped(bench, "draft-of-other-commit")
    published(bench, Options(allow_replace=True))
    assert bench.github.store.tags[bench.candidate.tag] == COMMIT


@pytest.mark.parametrize(("taken", "is_fine"), [(4, True), (5, False), (6, False)])
def test_a_number_that_a_public_release_has_is_refused(
    bench: Bench, tmp_path: Path, taken: int, is_fine: bool
) -> None:
    other = StagedRelease(folder=tmp_path, tag="c6", sequence=taken).write()
    name = "opencoti-release.json"
    bench.github.store.publish_directly("c6", {name: (other.folder / name).read_bytes()})
    bench.github.store.publish_directly("v0", {"a.txt": b"a release that is not of this program"})
    if is_fine:
        published(bench)
        return
    assert f"c6 is public with number {taken}" in stopped(bench, "publish-sequence-taken").why
    assert bench.github.writes == []


class Behind:
    """A remote whose lists still show what was deleted."""

    def __init__(self, remote: Remote, asset: Asset, others: tuple[RemoteRelease, ...] = ()) -> None:
        self._remote = remote
        self._gone = RemoteAsset(
            asset_id=asset.asset_id, name=asset.name, size=asset.size, is_uploaded=True, sha256=None
        )
        self._others = others
        self._looks = 0

    def releases(self) -> tuple[RemoteRelease, ...]:
        return (*self._remote.releases(), *self._others)

    def assets(self, release: RemoteRelease) -> tuple[RemoteAsset, ...]:
        self._looks += 1
        found = self._remote.assets(release)
        return (*found, self._gone) if self._looks == 1 else found

    def __getattr__(self, name: str) -> object:
        return getattr(self._remote, name)


def test_a_file_that_only_the_list_still_has_is_sent_again(bench: Bench) -> None:
    draft = draft_of(bench)
    gone = put(bench, draft, PART, content(bench, PART))
    del draft.assets[gone.asset_id]

    def wrap(remote: Remote) -> Remote:
        return Behind(remote, gone)  # type: ignore[return-value]

    outcome = bench.publish(wrap=wrap)
    bench.check()
    assert bench.is_public
    assert (PART in outcome.sent, outcome.removed) == (True, ())


def test_a_deleted_release_that_the_list_still_has_takes_no_number(bench: Bench) -> None:
    index = "opencoti-release.json"
    other = bench.github.store.publish_directly("c6", {index: b"x"})
    asset = next(iter(other.assets.values()))
    shown = RemoteRelease(
        release_id=other.release_id,
        tag="c6",
        is_draft=False,
        target=COMMIT,
        published="2026-05-01T00:00:00Z",
        assets=(RemoteAsset(asset_id=asset.asset_id, name=index, size=1, is_uploaded=True, sha256=None),),
    )
    bench.github.store.delete_release(other)

    def wrap(remote: Remote) -> Remote:
        return Behind(remote, asset, (shown,))  # type: ignore[return-value]

    assert bench.publish(wrap=wrap).state == "published"
    bench.check()


def test_files_without_a_digest_are_fetched_and_hashed(bench: Bench) -> None:
    bench.github.store.digests = False
    published(bench)
    assert published(bench).state == "unchanged"
    fetched = [call for call in bench.github.log if call.port == "download"]
    assert len(fetched) >= 12
    assert bench.github.store.deleted == []


def test_a_renamed_file_is_noticed(candidate: Candidate, github: GitHub) -> None:
    odd = replace(candidate.files[0], name="c7+x.intoto.jsonl")
    bench = Bench(candidate=replace(candidate, files=(odd, *candidate.files[1:])), github=github)
    assert "c7.x.intoto.jsonl" in stopped_plain(bench, "asset-renamed").what
    assert not bench.is_public


def stopped_plain(bench: Bench, error_id: str) -> OpencotiError:
    outcome = bench.outcome()
    assert isinstance(outcome, OpencotiError)
    assert outcome.error_id == error_id
    return outcome


def test_a_list_of_many_pages_is_read_to_its_end(bench: Bench) -> None:
    draft = draft_of(bench)
    for number in range(230):
        bench.github.store.publish_directly(f"v{number}", {})
    published(bench)
    assert [r.release_id for r in bench.github.store.releases.values() if r.tag == "c7"] == [draft.release_id]


@pytest.mark.parametrize(
    ("kind", "least_s"),
    [("secondary-403", 7), ("secondary-429", 11), ("secondary-silent", 60), ("primary", 90)],
)
@pytest.mark.parametrize("operation", ["create", "upload", "flip"])
def test_a_rate_limit_is_waited_for_as_long_as_it_says(
    bench: Bench, kind: Kind, least_s: int, operation: str
) -> None:
    bench.limits = Limits(absence_looks_s=(2.0,))
    bench.github.decide = script(**{operation: [kind]})
    published(bench)
    assert len([s for s in bench.github.clock.slept if least_s <= s <= least_s + 2]) == 1


def test_a_remote_that_wants_more_patience_than_there_is_is_given_up(bench: Bench) -> None:
    bench.limits = Limits(total_wait_s=100.0)
    bench.github.decide = script(flip=["primary", "primary"])
    error = stopped(bench, "remote-wait-too-long")
    assert "again after" in error.hint
    assert sum(bench.github.clock.slept) <= 100
    assert not bench.is_public
    bench.limits = Limits()
    published(bench)


def test_writes_keep_their_distance(bench: Bench) -> None:
    published(bench)
    assert len(bench.github.writes) == 14
    assert bench.github.clock.at >= 13 * bench.limits.write_gap_s


def test_a_draft_that_cannot_be_written_names_the_permission(bench: Bench) -> None:
    bench.github.store.can_write = False
    error = stopped(bench, "github-permission")
    assert isinstance(error, NetworkError)
    assert "contents=write" in error.why
    assert "read:org" in error.why
    assert len(bench.github.writes) == 1  # at once, without a second attempt


def test_a_token_that_is_refused_stops_at_once(bench: Bench, github: GitHub) -> None:
    settings = replace(bench.settings(), token="ghs_wrong")
    bench.settings = lambda: settings  # type: ignore[method-assign]
    stopped(bench, "github-token-refused")
    assert len(github.log) == 1


def test_a_repository_that_is_not_shown_is_named(candidate: Candidate) -> None:
    with GitHub(repo="somebody/else") as github:
        error = Bench(candidate=candidate, github=github).outcome()
    assert isinstance(error, NetworkError)
    assert error.error_id == "github-repository-unknown"
    assert "mann1x/opencoti" in error.what


def test_a_stalled_upload_is_ended_and_sent_again(bench: Bench) -> None:
    bench.stall_s = 0.3
    bench.github.decide = script(upload=["slow"])
    published(bench)


def test_an_api_that_does_not_answer_is_asked_again(bench: Bench) -> None:
    bench.stall_s = 1.0
    bench.github.decide = script(list=["stall"])
    published(bench)


def test_a_dry_run_writes_nothing(bench: Bench) -> None:
    outcome = bench.publish(Options(is_dry_run=True))
    assert (outcome.state, len(outcome.sent)) == ("planned", 12)
    draft = draft_of(bench)
    put(bench, draft, "plan.json", content(bench, "plan.json"))
    put(bench, draft, PART, b"y", state="starter")
    outcome = bench.publish(Options(is_dry_run=True))
    assert (outcome.kept, outcome.removed, len(outcome.sent)) == (("plan.json",), (PART,), 11)
    assert bench.github.writes == []


def test_make_latest_is_always_said(bench: Bench) -> None:
    published(bench, Options(make_latest="false"))
    assert bench.github.store.latest == ""


def test_only_the_generated_part_of_a_text_is_rewritten(bench: Bench) -> None:
    draft = draft_of(bench)
    draft.body = "By hand.\n\n<!-- opencoti:notes:begin -->\nold\n<!-- opencoti:notes:end -->\n\nThe end.\n"
    published(bench)
    assert draft.body.startswith("By hand.")
    assert draft.body.endswith("The end.\n")
    assert "What is new." in draft.body
    assert "old" not in draft.body


def test_github_enterprise_is_reached_by_its_addresses(candidate: Candidate, staged: StagedRelease) -> None:
    with github_for(staged, prefix="/api/v3", upload_prefix="/api/uploads") as github:
        bench = Bench(candidate=candidate, github=github)
        published(bench)
        assert all(call.path.startswith("/api/") for call in github.log if call.port != "download")
