"""Plans: what is decided, what is only seen, and what stops a release before anything is compiled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ci.cli import build_parser as build_ci_parser
from opencoti.errors import OpencotiError
from opencoti.hashing import sha256_bytes
from opencoti.index import load_index
from opencoti.jsonio import render_json
from release.cli import build_parser
from release.planning.cli import plan_of
from release.planning.limits import GITHUB, asset_problems, split
from release.planning.model import Plan, PlannedAsset, dump_plan, load_plan
from release.planning.remote_view import RemoteFacts, RemoteRelease, Surveyed
from release.planning.render import render_plan
from release.planning.request import parse_waivers
from tests.fakes.checkouts import NAME, NO_RELEASES, Checkout, waive
from tests.unit.release.samples import index_dict

GIB = 1 << 30


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


def released(**changes: Any) -> RemoteFacts:
    """Return a remote with one release of another tag."""
    index = load_index(render_json(index_dict(tag="c0", sequence=41, **changes)))
    release = RemoteRelease(tag=index.tag, release_id="1")
    return RemoteFacts(
        where="there", tag_state="none", surveyed=(Surveyed(release=release, index=index, data=b""),)
    )


def problems(plan: Plan) -> list[tuple[str, int]]:
    return [(problem.error, problem.exit_code) for problem in plan.problems]


def state_of(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_plan_before_the_build_names_everything_and_writes_nothing(checkout: Checkout) -> None:
    before = state_of(checkout.root)
    plan = checkout.plan()
    assert state_of(checkout.root) == before
    assert (plan.tag, plan.version_string, plan.sequence) == ("c1", "opencoti-0.5.0-g0c1e570-c1", 1)
    assert (plan.source.commit, plan.source.is_dirty) == (checkout.commit, False)
    assert [(item.name, item.state, item.size) for item in plan.artifacts] == [(NAME, "to build", None)]
    assert [(row.name, row.state) for row in plan.evidence] == [
        ("smoke:cpu", "missing"), ("bench:cpu", "missing"),
    ]  # fmt: skip
    assert [asset.name for asset in plan.assets] == [
        "SHA256SUMS",
        "SHA256SUMS.minisig",
        "c1.intoto.jsonl",
        NAME,
        f"{NAME}.MANIFEST.json",
        f"{NAME}.MANIFEST.json.minisig",
        f"{NAME}.bench-cpu.json",
        f"{NAME}.cdx.json",
        f"{NAME}.chunks",
        f"{NAME}.smoke-cpu.json",
        "opencoti-release.json",
        "opencoti-release.json.minisig",
        "plan.json",
    ]
    assert problems(plan) == []
    assert (plan.created, plan.expires) == ("2026-06-01T00:00:00Z", "2027-06-01T00:00:00Z")


def test_what_is_packaged_and_proven_is_seen(checkout: Checkout) -> None:
    content = checkout.cut()
    plan = checkout.plan()
    assert [(item.state, item.size, item.sha256) for item in plan.artifacts] == [
        ("packaged", len(content), sha256_bytes(content))
    ]
    assert [(row.state, row.files) for row in plan.evidence] == [
        ("present", (f"{NAME}.smoke-cpu.json",)), ("present", (f"{NAME}.bench-cpu.json",)),
    ]  # fmt: skip
    assert plan.decisions() == checkout.plan().decisions()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gitDirty": True}, "it was packaged from a tree with changes"),
        ({"gitCommit": "1" * 40}, "it was packaged from commit 111111111111"),
        ({"partial": ["--archs 75", "--no-fa"]}, "it is partial: --archs 75, --no-fa"),
        (
            {"skippedBackends": [{"backend": "cuda13", "reason": "no nvcc was found"}]},
            "backend cuda13 was skipped: no nvcc was found",
        ),
    ],
)
def test_artifact_that_cannot_be_released_is_stale_with_the_reason(
    checkout: Checkout, changes: dict[str, Any], reason: str
) -> None:
    checkout.package(**changes)
    (artifact,) = checkout.plan().artifacts
    assert (artifact.state, artifact.reason, artifact.sha256) == ("stale", reason, None)


def test_waived_backend_is_no_obstacle_and_says_why(checkout: Checkout) -> None:
    checkout.package(skippedBackends=[{"backend": "cuda13", "reason": "no nvcc was found"}])
    plan = checkout.plan(waivers=waive("backend:cuda13", "comes next week"))
    assert plan.artifacts[0].state == "packaged"
    assert {row.backend: row.reason for row in plan.backends}["cuda13"] == "waived: comes next week"


def test_two_cuda_generations_become_two_artifacts(checkout: Checkout) -> None:
    plan = checkout.plan(backends=("cpu", "cuda13", "vulkan"), flavors=("cuda12",))
    assert [(item.flavor, item.backends) for item in plan.artifacts] == [
        ("cuda12", ("cpu", "vulkan", "cuda12")),
        (None, ("cpu", "cuda13", "vulkan")),
    ]
    assert plan.artifacts[0].name.endswith("-x86_64-cuda12.llamafile")
    with pytest.raises(OpencotiError) as caught:
        checkout.plan(backends=("cpu", "cuda12"), flavors=("cuda12",))
    assert caught.value.error_id == "flavor-unknown"


def test_changed_tree_stops_the_release(checkout: Checkout) -> None:
    checkout.write("tool.sh", "#!/bin/sh\nexit 1\n", mode=0o755)
    assert problems(checkout.plan()) == [("plan-tree-dirty", 3)]


def test_sequence_is_the_next_one_of_the_remote(checkout: Checkout) -> None:
    plan = checkout.plan(released(artifacts=[index_dict()["artifacts"][0] | {"name": "old", "manifest": {
        "name": "old.MANIFEST.json", "sha256": "0" * 64}}], evidence=[]))  # fmt: skip
    assert (plan.sequence, plan.remote.highest_sequence, plan.remote.previous_tag) == (42, 41, "c0")
    with pytest.raises(OpencotiError) as caught:
        checkout.plan(released(), sequence=41)
    assert caught.value.error_id == "sequence-not-higher"


def test_opencoti_tag_of_other_bytes_must_be_bumped(checkout: Checkout) -> None:
    assert problems(checkout.plan(released())) == [("opencoti-tag-reused", 6)]
    checkout.package()
    plan = checkout.plan(released())
    assert problems(plan) == [("opencoti-tag-reused", 6)]
    assert f"this one is {plan.artifacts[0].sha256}" in plan.problems[0].why


def test_same_bytes_may_be_released_under_another_tag(checkout: Checkout) -> None:
    content = checkout.package()
    entry = index_dict()["artifacts"][0] | {"sha256": sha256_bytes(content), "size": len(content)}
    assert problems(checkout.plan(released(artifacts=[entry], evidence=[]))) == []


@pytest.mark.parametrize(
    ("remote", "expected"),
    [
        (RemoteFacts(where="x", tag_state="published"), "plan-tag-released"),
        (RemoteFacts(where="x", tag_state="burned"), "plan-tag-burned"),
        (RemoteFacts(where="x", tag_state="draft", drafts=("17", "18")), "plan-duplicate-drafts"),
        (RemoteFacts(where="x", tag_state="none", tag_commit="2" * 40), "plan-tag-elsewhere"),
    ],
)
def test_tag_that_the_remote_will_not_take_is_refused(
    checkout: Checkout, remote: RemoteFacts, expected: str
) -> None:
    """Cases B32 and B35, before anything is compiled."""
    assert problems(checkout.plan(remote)) == [(expected, 6)]


def test_tag_of_a_release_that_is_gone_stays_used_up(checkout: Checkout) -> None:
    """An immutable release burns its tag, and the remote does not tell."""
    checkout.write("vendors/llamafile/USED_TAGS", "# used\nc0\nc1\n")
    checkout.commit_all()
    assert problems(checkout.plan()) == [("plan-tag-burned", 6)]
    assert problems(checkout.plan(tag="c2")) == []
    checkout.write("vendors/llamafile/USED_TAGS", "c 1\n")
    with pytest.raises(OpencotiError) as caught:
        checkout.plan()
    assert caught.value.error_id == "used-tags-malformed"


def test_one_draft_and_a_tag_on_this_commit_are_fine(checkout: Checkout) -> None:
    remote = RemoteFacts(
        where="x", tag_state="draft", drafts=("17",), tag_commit=checkout.commit, asset_names=("a",)
    )
    plan = checkout.plan(remote)
    assert problems(plan) == []
    assert "a draft of this tag has 1 assets" in render_plan(plan)


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (2 * GIB - 1, []),
        (2 * GIB, [2047 << 20, 1 << 20]),
        (2 * GIB + 1, [2047 << 20, (1 << 20) + 1]),
        (5 * GIB, [2047 << 20, 2047 << 20, 5 * GIB - 2 * (2047 << 20)]),
    ],
)
def test_the_border_of_two_gib(size: int, parts: list[int]) -> None:
    """Case B33."""
    found = split("engine", size, GITHUB)
    assert [part.size for part in found] == parts
    assert [part.name for part in found] == [f"engine.part{n:03d}" for n in range(1, len(parts) + 1)]


def test_large_artifact_is_planned_in_parts(checkout: Checkout) -> None:
    content = checkout.package()
    limits = GITHUB.model_copy(update={"asset_max_bytes": 200_000, "part_bytes": 1 << 17})
    plan = checkout.plan(limits=limits)
    parts = [(asset.name, asset.size) for asset in plan.assets if asset.kind == "part"]
    assert [size for _, size in parts] == [131072, 131072, 131072, len(content) - 3 * 131072]
    assert NAME not in [asset.name for asset in plan.assets]


@pytest.mark.parametrize(("asset_max", "part"), [(200_000, 1 << 18), (200_000, 1000), (1 << 20, 4097)])
def test_part_size_that_cannot_work_is_refused(checkout: Checkout, asset_max: int, part: int) -> None:
    limits = GITHUB.model_copy(update={"asset_max_bytes": asset_max, "part_bytes": part})
    with pytest.raises(OpencotiError) as caught:
        checkout.plan(limits=limits)
    assert caught.value.error_id == "part-size-unfit"


@pytest.mark.parametrize("name", [".hidden", "a+b", "a b", "ä", "a/b", "x" * 201])
def test_name_that_github_would_change_is_refused(name: str) -> None:
    found = [problem.error_id for problem in asset_problems([PlannedAsset(name=name, kind="x")], GITHUB)]
    assert found == ["asset-name-unfit"]


def test_number_size_and_double_names_of_assets_are_limited() -> None:
    many = [PlannedAsset(name=f"a{n}", kind="x") for n in range(999)]
    assert list(asset_problems(many, GITHUB)) == []
    more = [*many, PlannedAsset(name="A1", kind="x", size=2 * GIB)]
    assert [problem.error_id for problem in asset_problems(more, GITHUB)] == [
        "assets-too-many", "asset-name-unfit", "asset-name-unfit", "asset-too-large",
    ]  # fmt: skip


def test_tag_with_a_plus_is_refused_for_the_name_of_its_provenance(checkout: Checkout) -> None:
    assert problems(checkout.plan(tag="c1+x")) == [("asset-name-unfit", 3)]


def test_plan_is_one_document_with_one_hash(checkout: Checkout) -> None:
    checkout.cut()
    plan = checkout.plan()
    data = dump_plan(plan)
    assert load_plan(data) == plan
    assert plan.sha256 == sha256_bytes(data)
    checkout.recorded.console.as_json = True
    checkout.recorded.console.result("", plan.model_dump(mode="json", by_alias=True))
    assert checkout.recorded.out.getvalue().encode() == data  # what `plan --json > plan.json` writes


@pytest.mark.parametrize("change", [{"schema": "x"}, {"tag": "a b"}, {"sequence": 0}, {"artifacts": []}])
def test_damaged_plan_is_refused(checkout: Checkout, change: dict[str, Any]) -> None:
    data = json.loads(dump_plan(checkout.plan())) | change
    with pytest.raises(OpencotiError) as caught:
        load_plan(render_json(data))
    assert (caught.value.error_id, caught.value.exit_code) == ("plan-malformed", 3)


def test_every_command_of_a_plan_is_one_that_the_programs_know(checkout: Checkout) -> None:
    checkout.cut()
    plan = checkout.plan(target="dir:out")
    parsers = {"ci": build_ci_parser(), "release": build_parser()}
    names = []
    for phase in plan.phases:
        python, dash, package, *words = phase.argv
        assert (python, dash) == ("python", "-m")
        names.append((phase.name, parsers[package].parse_args(words).command_name))
    assert [name for name, _ in names] == [
        "package", "verify", "smoke", "bench", "stage", "provenance", "sign", "sums", "publish",
        "check", "pin",
    ]  # fmt: skip
    assert all(name == command for name, command in names)


def test_everything_is_compiled_once_without_caches_and_the_engine_by_package(checkout: Checkout) -> None:
    plan = checkout.plan(backends=("cpu", "vulkan", "rocm"), engine="docker")
    lines = [" ".join(phase.argv[3:]) for phase in plan.phases if phase.name in ("build", "package")]
    assert lines == [
        "build vulkan rocm --engine docker --no-cache",
        "package --backends cpu,vulkan,rocm --engine docker --no-cache",
    ]


def test_text_names_every_problem_with_the_next_step(checkout: Checkout) -> None:
    checkout.write("new", "")
    text = render_plan(checkout.plan(RemoteFacts(where="x", tag_state="published")))
    assert "STOP       [plan-tree-dirty]" in text
    assert "STOP       [plan-tag-released] tag c1 is released on x" in text
    assert text.count("           next: ") == 2


def test_waivers_are_read_strictly() -> None:
    found = parse_waivers(["smoke:vulkan=no card", "backend:rocm= a=b "])
    assert [(item.name, item.reason) for item in found] == [
        ("backend:rocm", "a=b"), ("smoke:vulkan", "no card"),
    ]  # fmt: skip
    assert parse_waivers(["bench:rocm=größer als je"])[0].name == "bench:rocm"
    hidden = [f"smoke:cpu=a{char}b" for char in "\n\t\r\x00\x1b\x7f\x85\u2028\u202e\u200b\ufeff\ud800"]
    for wrong in (
        *("smoke:cuda12", "smoke:cuda12=", "smoke:cuda99=x", "nothing:cpu=x", "smoke=x", "=x"),
        *hidden,
    ):
        with pytest.raises(OpencotiError) as caught:
            parse_waivers([wrong])
        assert caught.value.error_id == "waiver-malformed"
    with pytest.raises(OpencotiError):
        parse_waivers(["smoke:cpu=a", "smoke:cpu=b"])


def test_fresh_remote_has_no_previous_release() -> None:
    assert (NO_RELEASES.highest_sequence, NO_RELEASES.previous) == (0, None)


@pytest.mark.parametrize(
    ("words", "epoch", "error_id"),
    [
        (["--sequence", "9" * 20], "", "bad-usage"),
        (["--arch", "zz"], "", "bad-usage"),
        (["--to", "ftp"], "", "bad-usage"),
        (["--to", "dir:"], "", "bad-usage"),
        (["--waive", "smoke:cpu=" + "y" * 1001], "", "waiver-malformed"),
        ([], "253402300799", "epoch-malformed"),
    ],
)
def test_words_that_no_plan_can_hold_are_refused(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, words: list[str], epoch: str, error_id: str
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    args = build_parser().parse_args(["plan", "--remote", "none", *words])
    with pytest.raises(OpencotiError) as caught:
        plan_of(args, checkout.context)
    assert caught.value.error_id == error_id
