"""What may be published at all: each way in which a staged folder can be wrong stops before any remote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opencoti.errors import OpencotiError
from opencoti.trust.keys import only_key
from release.keys import SecretKey
from release.sums import write_sums
from tests.fakes.staged_release import COMMIT, ENGINE, StagedRelease
from tests.integration.publish.bench import candidate_of
from tests.unit.release.samples import REPO


def staged(folder: Path, **changes: Any) -> StagedRelease:
    return StagedRelease(folder=folder / "c7", **changes).write()


def refusal(staged: StagedRelease, **asked: Any) -> OpencotiError:
    with pytest.raises(OpencotiError) as caught:
        candidate_of(staged, **asked)
    return caught.value


def test_a_good_folder_gives_every_file_and_the_index_last(tmp_path: Path) -> None:
    good = staged(tmp_path)
    candidate = candidate_of(good)
    assert {file.name: file.sha256 for file in candidate.files} == good.digests()
    assert [file.name for file in candidate.files[-4:]] == [
        "SHA256SUMS", "SHA256SUMS.minisig", "opencoti-release.json", "opencoti-release.json.minisig",
    ]  # fmt: skip
    assert all(file.size == file.path.stat().st_size for file in candidate.files)
    assert (candidate.commit, candidate.index.repo) == (COMMIT, REPO)
    assert "NOTES.md" not in {file.name for file in candidate.files}


@pytest.mark.parametrize(
    ("damage", "error_id"),
    [
        (lambda folder: (folder / "plan.json").write_bytes(b"{}"), "sums-differ"),
        (lambda folder: (folder / f"{ENGINE}.part001").unlink(), "sums-differ"),
        (lambda folder: (folder / "more.txt").write_bytes(b"x"), "sums-differ"),
        (lambda folder: (folder / "sub").mkdir(), "sums-folder"),
        (lambda folder: (folder / "x.minisig").write_bytes(b"x"), "publish-not-whole"),
        (lambda folder: (folder / "SHA256SUMS.minisig").unlink(), "signature-missing"),
        (lambda folder: (folder / "opencoti-release.json.minisig").unlink(), "signature-missing"),
        (lambda folder: (folder / "opencoti-release.json").unlink(), "not-staged"),
        (lambda folder: (folder / "opencoti-release.json").write_bytes(b"?"), "json-malformed"),
        (lambda folder: (folder / "SHA256SUMS").write_bytes(b"nonsense"), "sums-malformed"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path: Path, damage: Callable[[Path], Any], error_id: str) -> None:
    good = staged(tmp_path)
    damage(good.folder)
    assert refusal(good).error_id == error_id


@pytest.mark.parametrize(
    "name", [f"{ENGINE}.part002", f"{ENGINE}.MANIFEST.json", f"{ENGINE}.chunks", "engine.smoke-cpu.json"]
)
def test_a_file_that_the_index_names_and_nobody_lists_is_missed(tmp_path: Path, name: str) -> None:
    good = staged(tmp_path)
    (good.folder / name).unlink()
    (good.folder / f"{name}.minisig").unlink(missing_ok=True)
    good.sum()
    error = refusal(good)
    assert (error.error_id, name in error.why) == ("publish-not-whole", True)


def test_parts_that_do_not_make_the_whole_are_refused(tmp_path: Path) -> None:
    """case B33"""

    class Swapped(StagedRelease):
        def _pieces(self) -> dict[str, bytes]:
            names, data = zip(*super()._pieces().items(), strict=True)
            return dict(zip(names, reversed(data), strict=True))

    assert "do not make the whole" in refusal(Swapped(folder=tmp_path / "c7").write()).why


@pytest.mark.parametrize(
    ("changes", "error_id"),
    [
        ({"commit": "c0ffee1"}, "plan-malformed"),
        ({"plan_changes": {"source": {"commit": COMMIT, "isDirty": True, "isFrozen": False}}},
         "publish-commit-unfit"),
        ({"manifest_changes": {"gitDirty": True}}, "publish-commit-unfit"),
        ({"manifest_changes": {"gitCommit": "d" * 40}}, "publish-commit-unfit"),
        ({"manifest_changes": {"gitCommit": COMMIT[:12]}}, "manifest-malformed"),
        ({"index_changes": {"planSha256": "0" * 64}}, "publish-plan-differs"),
        ({"index_changes": {"sequence": 6}}, "publish-plan-differs"),
        ({"plan_changes": {"tag": "c8"}}, "publish-plan-differs"),
        ({"plan_changes": {"problems": [{"error": "tag-burned", "exit_code": 6, "what": "no"}]}},
         "plan-blocked"),
        ({"index_changes": {"evidence": []}}, "publish-unproven"),
        ({"plan_changes": {"requiredEvidence": ["smoke", "bench"]}}, "publish-unproven"),
        ({"index_changes": {"expires": "2026-05-31T00:00:00Z"}}, "publish-expired"),
    ],
)  # fmt: skip
def test_a_release_that_contradicts_itself_is_refused(
    tmp_path: Path, changes: dict[str, Any], error_id: str
) -> None:
    """case B35, and missing proof"""
    assert refusal(staged(tmp_path, **changes)).error_id == error_id


def test_a_proof_that_was_waived_in_public_may_be_missing(tmp_path: Path) -> None:
    waiver = {"name": "smoke:cpu", "reason": "no such machine"}
    changes = {"evidence": [], "waivers": [waiver]}
    assert candidate_of(staged(tmp_path, index_changes=changes)).index.waivers[0].name == "smoke:cpu"


@pytest.mark.parametrize(
    ("asked", "error_id"),
    [
        ({"tag": "c8"}, "publish-other-release"),
        ({"repo": "somebody/else"}, "publish-other-release"),
        ({"keys": only_key(SecretKey.generate().public)}, "signature-key-unknown"),
    ],
)
def test_another_release_than_the_user_means_is_refused(
    tmp_path: Path, asked: dict[str, Any], error_id: str
) -> None:
    assert refusal(staged(tmp_path), **asked).error_id == error_id


def test_a_signature_of_another_release_is_refused(tmp_path: Path) -> None:
    good = staged(tmp_path)
    other = StagedRelease(folder=tmp_path / "x", tag="c8", key=good.key).write()
    for name in ("SHA256SUMS", "SHA256SUMS.minisig"):
        (good.folder / name).write_bytes((other.folder / name).read_bytes())
    assert refusal(good).error_id == "sums-differ"
    write_sums(good.folder)
    assert refusal(good).error_id == "signature-mismatch"


def test_an_empty_file_is_refused_before_github_does(tmp_path: Path) -> None:
    good = staged(tmp_path)
    (good.folder / "c7.intoto.jsonl").write_bytes(b"")
    good.sum()
    assert refusal(good).error_id == "asset-empty"


@pytest.mark.parametrize(
    ("size", "is_fine"), [((1 << 31) - 1, True), (1 << 31, False), ((1 << 31) + 1, False)]
)
def test_the_limit_of_an_asset_is_checked_before_anything_is_sent(size: int, is_fine: bool) -> None:
    """case B33"""
    from release.planning.limits import GITHUB, asset_problems
    from release.planning.model import PlannedAsset

    problems = list(asset_problems([PlannedAsset(name="a", kind="file", size=size)], GITHUB))
    assert [problem.error_id for problem in problems] == ([] if is_fine else ["asset-too-large"])


def test_names_that_github_would_change_are_refused_for_github_only(tmp_path: Path) -> None:
    good = staged(tmp_path)
    (good.folder / "a+b.sigstore.json").write_bytes(b"{}")
    good.sum()
    assert refusal(good).error_id == "asset-name-unfit"
    assert candidate_of(good, is_github=False).tag == "c7"


def test_a_one_time_key_is_refused_for_github(tmp_path: Path) -> None:
    good = staged(tmp_path, key=SecretKey.generate(is_development=True))
    assert refusal(good).error_id == "publish-development-key"
    assert candidate_of(good, is_github=False).keys == candidate_of(good, allow_development=True).keys


def test_the_text_of_a_release_keeps_what_was_written_by_hand(tmp_path: Path) -> None:
    candidate = candidate_of(staged(tmp_path))
    existing = "Mine.\n<!-- opencoti:notes:begin -->\nold\n<!-- opencoti:notes:end -->\nYours.\n"
    body = candidate.as_new(existing).body
    assert (body.startswith("Mine."), "What is new." in body, "old" in body) == (True, True, False)
    assert candidate.as_new().body == (candidate.folder / "NOTES.md").read_text()
    assert replace(candidate, notes="").as_new("by hand").body == "by hand"


def test_a_root_that_does_not_follow_from_the_shipped_one_is_refused(tmp_path: Path) -> None:
    from tests.unit.release.samples import root_bytes

    good = staged(tmp_path)
    (good.folder / "root-2.json").write_bytes(root_bytes(2, [SecretKey.generate()], [(good.key, None)]))
    (good.folder / "root-2.json.minisig").write_bytes(b"untrusted comment: x\n")
    good.sum()
    with pytest.raises(OpencotiError):
        candidate_of(good)


def test_nothing_of_the_folder_is_changed(tmp_path: Path) -> None:
    good = staged(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in good.folder.iterdir()}
    candidate_of(good)
    assert {path: path.stat().st_mtime_ns for path in good.folder.iterdir()} == before
