"""Staging: the folder of a release, and everything that keeps one from being staged."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.locks import exclusive_lock
from opencoti.errors import OpencotiError
from opencoti.hashing import sha256_bytes, sha256_file
from opencoti.index import load_index
from opencoti.jsonio import render_json
from opencoti.manifest import load_manifest
from release.planning.limits import GITHUB
from release.planning.model import Plan, load_plan
from release.planning.remote_view import RemoteFacts
from release.staging.place import hash_parts, place_file, write_part
from release.staging.requirements import requirements_of
from release.staging.stage import Staged, stage
from tests.fakes.checkouts import NAME, SIZE, Checkout, waive
from tests.unit.release.samples import MANIFEST

SMALL = GITHUB.model_copy(update={"asset_max_bytes": 200_000, "part_bytes": 1 << 17})


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


def stage_now(checkout: Checkout, plan: Plan | None = None) -> Staged:
    return stage(checkout.context, plan or checkout.plan())


def refused(checkout: Checkout, plan: Plan | None = None) -> tuple[str, int]:
    with pytest.raises(OpencotiError) as caught:
        stage_now(checkout, plan)
    assert not list((checkout.root / "dist").glob("release/*/opencoti-release.json"))
    return caught.value.error_id, caught.value.exit_code


def content_of(folder: Path) -> dict[str, str]:
    return {path.name: sha256_file(path) for path in sorted(folder.iterdir())}


def test_folder_holds_everything_and_the_index_says_so(checkout: Checkout) -> None:
    content = checkout.cut()
    plan = checkout.plan()
    done = stage_now(checkout, plan)
    assert done.folder == checkout.root / "dist" / "release" / "c1"
    assert sorted(path.name for path in done.folder.iterdir()) == [
        "NOTES.md",
        NAME,
        f"{NAME}.MANIFEST.json",
        f"{NAME}.bench-cpu.json",
        f"{NAME}.cdx.json",
        f"{NAME}.chunks",
        f"{NAME}.smoke-cpu.json",
        "opencoti-release.json",
        "plan.json",
    ]
    assert (done.folder / NAME).read_bytes() == content
    index = load_index((done.folder / "opencoti-release.json").read_bytes())
    (artifact,) = index.artifacts
    assert (artifact.sha256, artifact.size, artifact.parts) == (sha256_bytes(content), SIZE, ())
    assert artifact.requires.model_dump() == {
        "os": "linux",
        "arch": "x86_64",
        "glibc": "2.28",
        "backends": ({"backend": "cpu", "archs": (), "min_driver": None},),
    }
    assert [(item.kind, item.backend, item.artifact_sha256) for item in index.evidence] == [
        ("bench", "cpu", artifact.sha256),
        ("smoke", "cpu", artifact.sha256),
    ]
    assert index.plan_sha256 == sha256_file(done.folder / "plan.json")  # `sha256sum plan.json` shows it
    assert (index.sequence, index.created, index.waivers) == (1, plan.created, ())


def test_staging_again_changes_nothing_and_keeps_signatures(checkout: Checkout) -> None:
    checkout.cut()
    plan = checkout.plan()
    first = stage_now(checkout, plan)
    for name in ("opencoti-release.json.minisig", "SHA256SUMS", "c1.intoto.jsonl", "a.sigstore.json"):
        (first.folder / name).write_text("signed")
    before = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    again = stage_now(checkout, plan)
    assert (first.is_new, again.is_new) == (True, False)
    assert again.index_sha256 == first.index_sha256
    assert {path: path.stat().st_mtime_ns for path in first.folder.iterdir()} == before


def test_another_content_removes_what_was_signed_before(checkout: Checkout) -> None:
    checkout.cut()
    first = stage_now(checkout)
    for name in ("opencoti-release.json.minisig", "SHA256SUMS", "SHA256SUMS.minisig", "c1.intoto.jsonl"):
        (first.folder / name).write_text("signed")
    content = checkout.package(seed=8)
    checkout.prove_all(content)
    again = stage_now(checkout)
    assert (again.folder / NAME).read_bytes() == content
    assert [path.name for path in again.folder.iterdir() if "sig" in path.name or "SUMS" in path.name] == []
    assert not (again.folder / "c1.intoto.jsonl").exists()


def test_damaged_file_of_the_folder_is_mended(checkout: Checkout) -> None:
    content = checkout.cut()
    plan = checkout.plan()
    folder = stage_now(checkout, plan).folder
    (folder / NAME).unlink()
    (folder / NAME).write_bytes(b"?" + content[1:])
    (folder / f".{NAME}.tmp").write_bytes(b"of a killed run")
    stage_now(checkout, plan)
    assert (folder / NAME).read_bytes() == content
    assert not (folder / f".{NAME}.tmp").exists()


def test_foreign_file_is_not_published_by_accident(checkout: Checkout) -> None:
    checkout.cut()
    folder = stage_now(checkout).folder
    (folder / "secret.key").write_text("x")
    with pytest.raises(OpencotiError) as caught:
        stage_now(checkout)
    assert caught.value.error_id == "stage-folder-foreign"
    assert (folder / "secret.key").exists()


def test_text_around_the_notes_stays(checkout: Checkout) -> None:
    checkout.cut()
    path = stage_now(checkout).folder / "NOTES.md"
    path.write_text("# Our words\n\n" + path.read_text().replace("lane elf", "lane?") + "\nbye\n")
    stage_now(checkout)
    text = path.read_text()
    assert text.startswith("# Our words\n\n")
    assert text.endswith("\nbye\n")
    assert "lane elf" in text


def test_large_artifact_is_split_into_whole_chunks(checkout: Checkout) -> None:
    """Case B33, with small limits."""
    content = checkout.cut()
    plan = checkout.plan(limits=SMALL)
    done = stage_now(checkout, plan)
    (artifact,) = done.index.artifacts
    names = [part.name for part in artifact.parts]
    assert names == [f"{NAME}.part{n:03d}" for n in (1, 2, 3, 4)]
    assert [part.size for part in artifact.parts] == [131072, 131072, 131072, SIZE - 3 * 131072]
    assert b"".join((done.folder / name).read_bytes() for name in names) == content
    assert not (done.folder / NAME).exists()
    for part in artifact.parts:
        assert sha256_file(done.folder / part.name) == part.sha256
    assert set(names) <= {asset.name for asset in plan.assets}
    assert stage_now(checkout, plan).is_new is False
    stage_now(checkout)  # in one piece again
    assert [path.name for path in done.folder.glob("*.part*")] == []


def test_parts_that_cut_a_chunk_are_refused(checkout: Checkout) -> None:
    content = checkout.package()
    path = checkout.artifacts / f"{NAME}.MANIFEST.json"
    document = json.loads(path.read_bytes())
    document["chunks"] |= {"chunkSize": 1 << 16, "count": 8}
    path.write_bytes(render_json(document))
    checkout.prove_all(content)
    limits = SMALL.model_copy(update={"part_bytes": (1 << 17) + 4096})
    assert refused(checkout, checkout.plan(limits=limits)) == ("part-size-unfit", 3)


def _dirty(checkout: Checkout) -> None:
    checkout.write("tool.sh", "changed")


def _move_on(checkout: Checkout) -> None:
    checkout.write("more", "")
    checkout.commit_all()


@pytest.mark.parametrize(
    ("change", "expected"), [(_dirty, ("stage-tree-dirty", 3)), (_move_on, ("stage-tree-differs", 6))]
)
def test_another_tree_than_the_planned_one_is_refused(
    checkout: Checkout, change: Callable[[Checkout], None], expected: tuple[str, int]
) -> None:
    """Case B35."""
    checkout.cut()
    plan = checkout.plan()
    change(checkout)
    assert refused(checkout, plan) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"gitDirty": True}, ("artifact-of-dirty-tree", 6)),
        ({"gitCommit": "1" * 40}, ("artifact-of-another-commit", 6)),
        ({"partial": ["--archs 75"]}, ("artifact-partial", 5)),
        ({"partial": ["--no-fa"]}, ("artifact-partial", 5)),
        ({"skippedBackends": [{"backend": "vulkan", "reason": "no glslc"}]}, ("backend-skipped", 5)),
        ({"lane": "ape"}, ("artifact-of-other-cut", 6)),
        ({"sha256": "0" * 64}, ("evidence-of-other-bytes", 6)),
    ],
)
def test_artifact_that_is_no_good_is_refused(
    checkout: Checkout, changes: dict[str, Any], expected: tuple[str, int]
) -> None:
    checkout.prove(checkout.package(**changes))
    assert refused(checkout) == expected


def test_file_that_its_manifest_does_not_describe_is_refused(checkout: Checkout) -> None:
    content = checkout.cut()
    path = checkout.artifacts / NAME
    path.write_bytes(content[:-1] + b"?")
    assert refused(checkout) == ("stage-hash-differs", 6)
    assert refused(checkout, checkout.plan(limits=SMALL)) == ("stage-hash-differs", 6)
    path.write_bytes(content)
    (checkout.artifacts / f"{NAME}.chunks").write_bytes(b"?")
    assert refused(checkout) == ("chunks-unfit", 6)


def test_partial_set_is_refused_and_so_is_an_unplanned_file(checkout: Checkout) -> None:
    """A release is whole or not at all."""
    checkout.cut()
    plan = checkout.plan(backends=("cpu",), archs=("x86_64", "aarch64"))
    assert refused(checkout, plan) == ("artifact-not-packaged", 5)
    plan = checkout.plan()
    checkout.package(NAME.replace("x86_64", "aarch64"), arch="aarch64", seed=9)
    assert refused(checkout, plan) == ("artifact-not-planned", 5)


@pytest.mark.parametrize(("kind", "other"), [("smoke", "bench"), ("bench", "smoke")])
def test_missing_evidence_is_refused_unless_waived_in_public(
    checkout: Checkout, kind: str, other: str
) -> None:
    checkout.prove(checkout.package(), kind=other)
    assert refused(checkout) == ("evidence-missing", 6)
    done = stage_now(checkout, checkout.plan(waivers=waive(f"{kind}:cpu", "the box is broken")))
    assert [(item.name, item.reason) for item in done.index.waivers] == [(f"{kind}:cpu", "the box is broken")]
    assert f"`{kind}:cpu`: the box is broken" in (done.folder / "NOTES.md").read_text()


@pytest.mark.parametrize(
    "played",
    [
        {"emulator": "qemu-aarch64"},
        {"accelerators": [{"name": "llvmpipe", "isSoftware": True, "driver": "Mesa"}]},
    ],
)
def test_what_was_emulated_proves_no_device(checkout: Checkout, played: dict[str, Any]) -> None:
    content = checkout.cut()
    device = {"cpuModel": "A processor", "kernel": "Linux 6", **played}
    checkout.prove(content, kind="bench", device=device)
    assert [row.state for row in checkout.plan().evidence] == ["present", "missing"]
    assert refused(checkout) == ("evidence-missing", 6)
    done = stage_now(checkout, checkout.plan(waivers=waive("bench:cpu")))
    assert [(item.kind, item.name) for item in done.index.evidence] == [
        ("bench", f"{NAME}.bench-cpu.json"), ("smoke", f"{NAME}.smoke-cpu.json"),
    ]  # fmt: skip


def edited(plan: Plan, **changes: Any) -> Plan:
    """Return a plan as somebody leaves it who changes its file."""
    document = plan.model_dump(mode="json", by_alias=True)
    return load_plan(render_json(document | changes))


def _edited_artifact(plan: Plan, **changes: Any) -> Plan:
    (artifact,) = plan.model_dump(mode="json", by_alias=True)["artifacts"]
    return edited(plan, artifacts=[artifact | changes])


@pytest.mark.parametrize(
    "edit",
    [
        lambda plan: _edited_artifact(plan, parts=[]),
        lambda plan: _edited_artifact(plan, parts=[{"name": f"{NAME}.part001", "size": SIZE}]),
        lambda plan: _edited_artifact(plan, size=SIZE + 1),
        lambda plan: _edited_artifact(plan, size=None, parts=[]),
        lambda plan: _edited_artifact(plan, sha256=None),
        lambda plan: _edited_artifact(plan, state="to build"),
        lambda plan: _edited_artifact(plan, backends=["cpu", "rocm"]),
        lambda plan: edited(plan, assets=[]),
        lambda plan: edited(plan, evidence=[]),
        lambda plan: edited(plan, requiredEvidence=["smoke"]),
        lambda plan: edited(plan, backends=[]),
        lambda plan: edited(plan, limits={"assetMaxBytes": 500_000, "partBytes": 1 << 17, "maxAssets": 9}),
        lambda plan: edited(plan, waivers=[{"name": "smoke:cpu", "reason": "a\u001b[2Jb"}]),
    ],
)
def test_plan_that_was_edited_is_refused(checkout: Checkout, edit: Callable[[Plan], Plan]) -> None:
    checkout.cut()
    plan = checkout.plan(limits=SMALL)
    assert len(plan.artifacts[0].parts) == 4
    assert refused(checkout, edit(plan)) == ("plan-inconsistent", 3)
    assert stage_now(checkout, edited(plan)).is_new is True


def test_other_bytes_than_the_planned_ones_are_refused(checkout: Checkout) -> None:
    checkout.cut()
    plan = checkout.plan()
    checkout.prove_all(checkout.package(seed=8))
    assert refused(checkout, plan) == ("artifact-not-as-planned", 6)


def test_artifact_that_lacks_a_planned_backend_is_refused_unless_waived(checkout: Checkout) -> None:
    asked: dict[str, Any] = {"backends": ("cpu", "rocm"), "archs": ("x86_64",)}
    plan = checkout.plan(**asked)
    checkout.cut()
    assert refused(checkout, plan) == ("artifact-backends-differ", 5)
    plan = checkout.plan(**asked, waivers=waive("backend:rocm"))
    assert stage_now(checkout, plan).is_new is True


def test_waiver_that_was_not_needed_is_not_in_the_index(checkout: Checkout) -> None:
    checkout.cut()
    assert stage_now(checkout, checkout.plan(waivers=waive("smoke:cpu"))).index.waivers == ()


def test_failed_test_cannot_be_waived(checkout: Checkout) -> None:
    checkout.prove(checkout.package(), is_passed=False)
    assert refused(checkout, checkout.plan(waivers=waive("smoke:cpu"))) == ("evidence-failed", 6)


def test_evidence_of_other_bytes_is_refused_and_of_other_files_is_left_alone(checkout: Checkout) -> None:
    content = checkout.cut()
    checkout.prove(b"old", "another.llamafile")
    assert [item.name for item in stage_now(checkout).index.evidence] == [
        f"{NAME}.bench-cpu.json", f"{NAME}.smoke-cpu.json",
    ]  # fmt: skip
    checkout.prove(content[:-1], backend="vulkan")
    with pytest.raises(OpencotiError) as caught:
        stage_now(checkout)
    assert caught.value.error_id == "evidence-of-other-bytes"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plan.json", "evidence-name-taken"),
        ("opencoti-release.json", "evidence-name-taken"),
        (f"{NAME.upper()}.MANIFEST.json", "evidence-name-taken"),
        (f"{NAME}.cdx.json", "evidence-name-taken"),
        ("a+b.json", "asset-name-unfit"),
    ],
)
def test_evidence_cannot_take_the_place_of_another_file(checkout: Checkout, name: str, expected: str) -> None:
    """The name of an evidence file comes from a machine that holds no key (case B44)."""
    content = checkout.package()
    plan = checkout.plan()
    checkout.prove_all(content)
    path = checkout.prove(content)
    path.rename(path.with_name(name))
    assert refused(checkout, plan)[0] == expected
    assert [problem.error for problem in checkout.plan().problems][:1] == ["asset-name-unfit"]


def test_manifest_under_another_name_is_refused(checkout: Checkout) -> None:
    checkout.cut()
    plan = checkout.plan()
    path = checkout.artifacts / f"{NAME}.MANIFEST.json"
    path.rename(path.with_name("other.llamafile.MANIFEST.json"))
    assert refused(checkout, plan) == ("manifest-name-differs", 3)


def test_plan_with_problems_is_refused(checkout: Checkout) -> None:
    checkout.cut()
    plan = checkout.plan(RemoteFacts(where="x", tag_state="published"))
    assert refused(checkout, plan) == ("plan-blocked", 3)


def test_two_at_once_are_told_apart(checkout: Checkout) -> None:
    checkout.cut()
    with exclusive_lock(checkout.root / "dist" / "release" / ".c1.lock", "a test"):
        assert refused(checkout) == ("lock-held", 9)


def test_trust_roots_lie_beside_the_release(checkout: Checkout) -> None:
    for name in ("root-0.json", "root-1.json", "root-2.json", "root-2.json.minisig"):
        checkout.write(f"opencoti/trust/{name}", name)
    checkout.commit_all()
    checkout.cut()
    plan = checkout.plan()
    assert [asset.name for asset in plan.assets if asset.kind == "root"] == [
        "root-1.json", "root-2.json", "root-2.json.minisig",
    ]  # fmt: skip
    done = stage_now(checkout, plan)
    assert sorted(path.name for path in done.folder.glob("root-*")) == [
        "root-1.json", "root-2.json", "root-2.json.minisig",
    ]  # fmt: skip
    assert stage_now(checkout, plan).is_new is False


def test_file_is_shared_not_copied_where_the_file_system_can(tmp_path: Path) -> None:
    origin, target = tmp_path / "a", tmp_path / "b"
    origin.write_bytes(b"x" * 100_000)
    digest = sha256_file(origin)
    assert place_file(origin, target, digest) is True
    assert place_file(origin, target, digest) is False
    assert target.read_bytes() == origin.read_bytes()
    same = os.stat(origin).st_ino == os.stat(target).st_ino
    assert same or os.stat(target).st_nlink == 1  # a second name, or a clone
    with pytest.raises(OpencotiError) as caught:
        place_file(origin, tmp_path / "c", "0" * 64)
    assert caught.value.error_id == "stage-hash-differs"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_part_that_changed_between_hash_and_copy_is_not_written(tmp_path: Path) -> None:
    origin = tmp_path / "a"
    origin.write_bytes(b"0123456789")
    parts = hash_parts(origin, [("p1", 4), ("p2", 6)], sha256_file(origin))
    origin.write_bytes(b"0123x56789")
    assert write_part(origin, 0, tmp_path / "p1", parts[0]) is True
    with pytest.raises(OpencotiError) as caught:
        write_part(origin, 4, tmp_path / "p2", parts[1])
    assert caught.value.error_id == "stage-hash-differs"
    assert not (tmp_path / "p2").exists()


def test_requirements_take_the_highest_floor_of_what_must_load() -> None:
    document = json.loads(MANIFEST)
    dso = document["dsos"][0]
    gpu = dso | {
        "backend": "cuda13",
        "archs": ["sm_90", "sm_75"],
        "glibcFloor": "2.36",
        "minDriver": "580.65",
    }
    document["dsos"] = [dso | {"glibcFloor": "2.100"}, gpu | {"name": "libggml-cuda.so"}]
    document["members"].append(
        document["members"][2] | {"name": "libggml-cuda.so", "offset": 400_000, "size": 0}
    )
    document["members"][-1]["offset"] = 459_520
    found = requirements_of(load_manifest(render_json(document)))
    assert found.glibc == "2.100"
    assert [(item.backend, item.archs, item.min_driver) for item in found.backends] == [
        ("cpu", (), None), ("cuda13", ("sm_75", "sm_90"), "580.65"),
    ]  # fmt: skip
