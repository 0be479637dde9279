"""`release.yml`, job by job, from a commit to a wheel, against the fake GitHub; artifacts are folders.

One run serves most tests: they look at what it left. The environments, the compilers and the devices are
stand-ins (`stand_in.sh`), everything else is what the workflow says.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci.paths import Layout
from ci.toolchains.table import load_table
from opencoti.evidence import load_evidence
from opencoti.hashing import sha256_file
from opencoti.index import ReleaseIndex, load_index
from opencoti.manifest import MANIFEST_SUFFIX, load_manifest
from opencoti.trust.comment import INDEX_NAME
from release.keys import SecretKey
from release.keysource import write_key_pair
from tests.conftest import ROOT
from tests.fakes.github.server import GitHub
from tests.fakes.github.state import Release
from tests.fakes.staged_release import StagedRelease
from tests.fakes.tiny_products import write_products
from tests.integration.workflows.runner import WORKFLOW_REF, Runner
from tests.unit.release.samples import link, root_bytes

TAG = "c1"
JOBS = [
    "resolve",
    "build",
    "package",
    "cpu",
    "gpu",
    "stage",
    "attest",
    "sign",
    "publish",
    "check",
    "wheel",
    "pypi",
]
REASON = "no such card in the rack; it's on order"


@dataclass
class Replay:
    runner: Runner
    github: GitHub
    commit: str

    @property
    def release(self) -> Release:
        (release,) = [item for item in self.github.store.releases.values() if item.tag == TAG]
        assert not release.is_draft
        return release

    @property
    def assets(self) -> dict[str, bytes]:
        return {asset.name: asset.data for asset in self.release.assets.values()}

    @property
    def index(self) -> ReleaseIndex:
        return load_index(self.assets[INDEX_NAME], INDEX_NAME)

    def log(self) -> str:
        return "\n".join(f"{name}: {job.result}\n{job.log}" for name, job in self.runner.jobs.items())


def git(folder: Path, *words: str) -> str:
    who = {
        f"GIT_{role}_{what}": "test@example.com"
        for role in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    dates = {f"GIT_{role}_DATE": "1780000000 +0000" for role in ("AUTHOR", "COMMITTER")}
    done = subprocess.run(
        ["git", "-c", "init.defaultBranch=main", *words],
        cwd=folder, check=True, capture_output=True, text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **who, **dates},
    )  # fmt: skip
    return done.stdout.strip()


def make_repository(folder: Path, key: SecretKey) -> str:
    """Commit the source of this very checkout with a trust root that lists `key`; return the commit."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    for name in sorted(filter(None, listed.stdout.decode().split("\0"))):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    root_key = SecretKey.generate()
    signed = link(root_bytes(1, [root_key], [(key, None)]), [root_key])
    (folder / "opencoti/trust/root-1.json").write_bytes(signed.data)
    (folder / "opencoti/trust/root-1.json.minisig").write_bytes(signed.signatures)
    git(folder, "init", "--quiet")
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", "the state to release")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory, zig: Path) -> Iterator[Replay]:
    home = tmp_path_factory.mktemp("replay")
    write_products(home / "products", load_table(Layout.find().table), zig)
    key = SecretKey.generate()
    secret, _ = write_key_pair(home / "key", key, None)
    commit = make_repository(home / "repository", key)
    inputs = {"tag": TAG, **dict.fromkeys(("waive_vulkan", "waive_cuda13", "waive_cuda12", "waive_rocm"), "")}
    with GitHub() as github:
        github.store.commits.add(commit)
        before = StagedRelease(folder=home / "before", key=key, tag="c0", sequence=3, part_bytes=0).write()
        github.store.publish_directly(
            "c0", {path.name: path.read_bytes() for path in before.folder.iterdir()}
        )
        runner = Runner(
            home=home,
            repository=home / "repository",
            github=github,
            inputs=inputs | {"waive_rocm": REASON},
            secrets={"OPENCOTI_SIGNING_KEY": secret.read_text()},
        )
        runner.run("release.yml")
        yield Replay(runner=runner, github=github, commit=commit)


def test_every_job_succeeds_in_the_order_of_their_needs(replay: Replay) -> None:
    assert {name: job.result for name, job in replay.runner.jobs.items()} == dict.fromkeys(JOBS, "success"), (
        replay.log()[-6000:]
    )
    assert [name for name in replay.runner.order if "/" not in name] == JOBS


def test_nothing_is_written_to_the_remote_before_the_last_hand_over(replay: Replay) -> None:
    before = replay.runner.writes_before
    assert before["publish"] == 0
    assert before["check"] == len(replay.github.writes) > 0


def test_the_release_is_whole_and_of_the_frozen_commit(replay: Replay) -> None:
    assert replay.github.store.tags[TAG] == replay.commit
    assert [(item.requires.arch, item.flavor) for item in replay.index.artifacts] == [
        ("aarch64", None), ("x86_64", "cuda12"), ("x86_64", None),
    ]  # fmt: skip
    assert [(item.name, item.reason) for item in replay.index.waivers] == [
        ("bench:rocm", REASON), ("smoke:rocm", REASON),
    ]  # fmt: skip
    proofs = [
        (item.kind, item.backend, item.name.partition("linux-")[2].partition(".")[0])
        for item in replay.index.evidence
    ]
    assert sorted(proofs) == [
        (kind, *proof)
        for kind in ("bench", "smoke")
        for proof in (
            ("cpu", "aarch64"), ("cpu", "x86_64"), ("cpu", "x86_64-cuda12"),
            ("cuda12", "x86_64-cuda12"), ("cuda13", "x86_64"),
            ("vulkan", "x86_64"), ("vulkan", "x86_64-cuda12"),
        )
    ]  # fmt: skip


def test_what_every_job_built_is_what_the_artifacts_hold(replay: Replay) -> None:
    """Stages travel between jobs as files without modes; nothing is compiled where they are put together."""
    products = replay.runner.home / "products"
    held: dict[tuple[str, str], set[str]] = {}
    for name, data in replay.assets.items():
        if name.endswith(MANIFEST_SUFFIX):
            manifest = load_manifest(data)
            for dso in manifest.dsos:
                (built,) = products.glob(f"{dso.backend}-{manifest.arch}/bin/{dso.name}")
                assert dso.sha256 == sha256_file(built)
                held.setdefault((manifest.arch, manifest.flavor or ""), set()).add(dso.backend)
            server = manifest.member("llama-server")
            assert server is not None
            assert server.mode == "0755"
            assert server.sha256 == sha256_file(products / f"cpu-{manifest.arch}" / "bin" / "llama-server")
            assert {tool.engine for tool in manifest.toolchains} == {"docker"}
            assert (manifest.partial, manifest.skipped_backends) == ((), ())
    assert held == {
        ("x86_64", ""): {"cpu", "vulkan", "cuda13", "rocm"},
        ("x86_64", "cuda12"): {"cpu", "vulkan", "cuda12", "rocm"},
        ("aarch64", ""): {"cpu"},
    }


def test_devices_that_were_measured_in_the_libraries_are_those_of_the_table(replay: Replay) -> None:
    (main,) = [
        load_manifest(data)
        for name, data in replay.assets.items()
        if name.endswith(f"-x86_64.llamafile{MANIFEST_SUFFIX}")
    ]
    archs = {dso.backend: dso.archs for dso in main.dsos if dso.backend in ("cuda13", "rocm")}
    assert archs["cuda13"] == ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120f")
    assert len(archs["rocm"]) == 12


def test_notes_show_what_was_measured_on_which_device(replay: Replay) -> None:
    body = replay.release.body
    assert "## Speed, tokens per second" in body
    assert "| cuda13 | A processor | 1024 | 100.0 |" in body
    assert f"- `bench:rocm`: {REASON}" in body


def test_release_is_the_next_one_and_its_notes_compare_it_with_the_one_before(replay: Replay) -> None:
    assert replay.index.sequence == 4
    assert (
        "\n- llama.cpp: 0.5.0 (`0c1e57098bba43ac29e6e3b677cdceebdd22334f`), as before\n"
        in replay.release.body
    )


def test_one_source_went_into_every_job(replay: Replay) -> None:
    assert json.loads(replay.assets["plan.json"])["source"] == {
        "commit": replay.commit, "isDirty": False, "isFrozen": False,
    }  # fmt: skip
    manifests = [json.loads(data) for name, data in replay.assets.items() if name.endswith(".MANIFEST.json")]
    assert [(item["gitCommit"], item["gitDirty"]) for item in manifests] == [(replay.commit, False)] * 3


def test_attestation_speaks_of_everything_that_was_staged_and_lies_beside_it(replay: Replay) -> None:
    assets = replay.assets
    later = {name for name in assets if name.endswith((".minisig", ".intoto.jsonl", ".sigstore.json"))}
    assert replay.runner.attested.keys() == assets.keys() - later - {"SHA256SUMS"}
    assert json.loads(assets[f"{TAG}.sigstore.json"])["mediaType"].startswith(
        "application/vnd.dev.sigstore.bundle"
    )
    assert f"  {TAG}.sigstore.json\n" in assets["SHA256SUMS"].decode()


def test_provenance_names_this_workflow(replay: Replay) -> None:
    envelope = json.loads(replay.assets[f"{TAG}.intoto.jsonl"])
    statement = json.loads(base64.b64decode(envelope["payload"]))
    assert statement["predicate"]["runDetails"]["builder"]["id"].endswith(f"/{WORKFLOW_REF}")


def test_wheel_has_the_pin_of_the_release(replay: Replay) -> None:
    (wheel,) = replay.runner.wheels
    with zipfile.ZipFile(wheel) as archive:
        pin = archive.read("opencoti/fetch/pin.txt").decode()
    (main,) = [
        item for item in replay.index.artifacts if item.requires.arch == "x86_64" and item.flavor is None
    ]
    assert f"mann1x/opencoti {TAG} {main.name} {main.sha256}\n" in pin
    patch = (replay.runner.artifacts / "pins" / "pins.patch").read_text()
    assert f"+mann1x/opencoti {TAG} {main.name} {main.sha256}" in patch


def test_secrets_stand_in_no_file_and_no_log(replay: Replay) -> None:
    (secret,) = replay.runner.secrets.values()
    line = secret.splitlines()[1]
    assert line not in replay.log()
    kept = [path for path in replay.runner.home.rglob("*") if path.is_file() and path.name != "key.key"]
    assert [path for path in kept if path.suffix != ".pack" and line.encode() in path.read_bytes()] == []
    assert [path for path in kept if replay.github.token.encode() in path.read_bytes()] == []


def test_waived_device_has_no_job_and_says_nothing(replay: Replay) -> None:
    assert not (replay.runner.home / "jobs" / "gpu" / "rocm-x86_64-0").exists()
    assert (replay.runner.home / "jobs" / "gpu" / "cuda13-x86_64-0").is_dir()


def test_running_the_last_jobs_again_changes_nothing(replay: Replay) -> None:
    before = len(replay.github.writes)
    replay.runner.run_again("release.yml", "publish", "check")
    assert [replay.runner.jobs[name].result for name in ("publish", "check")] == ["success", "success"]
    assert len(replay.github.writes) == before


@pytest.fixture
def spoilt(replay: Replay, tmp_path: Path) -> Runner:
    """A run up to the devices, whose artifacts a test may spoil before `stage`."""
    shutil.copytree(replay.runner.artifacts, tmp_path / "artifacts")
    old = replay.runner
    return Runner(
        home=tmp_path,
        repository=old.repository,
        github=old.github,
        inputs=old.inputs,
        secrets={},
        jobs=dict(old.jobs),
        ids=dict(old.ids),
    )


def package_fails_with(runner: Runner, error_id: str) -> None:
    runner.run_again("release.yml", "package")
    assert runner.jobs["package"].result == "failure"
    assert f"[{error_id}]" in runner.jobs["package"].log
    runner.run_again("release.yml", "cpu")
    assert runner.jobs["cpu"].result == "skipped"


def test_backend_that_was_not_handed_over_stops_the_release(spoilt: Runner) -> None:
    shutil.rmtree(spoilt.artifacts / "stages-vulkan-x86_64")
    package_fails_with(spoilt, "stage-not-cached")


def test_backend_that_changed_on_the_way_stops_the_release(spoilt: Runner) -> None:
    (library,) = (spoilt.artifacts / "stages-cpu-x86_64").rglob("libggml-cpu-x64.so")
    library.write_bytes(library.read_bytes() + b"x")
    package_fails_with(spoilt, "stage-not-cached")
    assert "is damaged" in spoilt.jobs["package"].log


def stage_fails_with(runner: Runner, error_id: str) -> None:
    runner.run_again("release.yml", "stage")
    assert runner.jobs["stage"].result == "failure"
    assert f"[{error_id}]" in runner.jobs["stage"].log
    runner.run_again("release.yml", "attest", "sign", "publish")
    assert [runner.jobs[name].result for name in ("attest", "sign", "publish")] == ["skipped"] * 3


@pytest.mark.parametrize(
    ("name", "job"),
    [("source", "stage"), ("source", "sign"), ("staged", "attest"), ("attested", "sign"),
     ("signed", "publish"), ("wheel", "pypi")],
)  # fmt: skip
def test_what_a_machine_replaces_by_its_name_is_not_taken(spoilt: Runner, name: str, job: str) -> None:
    """A machine with a device can upload to the run, and must not reach the signing key by that."""
    spoilt.secrets = {"OPENCOTI_SIGNING_KEY": "a secret"}
    folder = spoilt.overwrite(name)
    (folder / "more").write_text("evil")
    before = len(spoilt.github.writes)
    spoilt.run_again("release.yml", job)
    assert spoilt.jobs[job].result == "failure"
    assert "no artifact has id" in spoilt.jobs[job].log
    assert not list((spoilt.home / "jobs").rglob("more"))
    assert len(spoilt.github.writes) == before


def evidence_of(runner: Runner, sender: str) -> Path:
    return min((runner.artifacts / sender).glob("*.smoke-*"))


def test_device_that_tested_other_bytes_stops_the_release(spoilt: Runner) -> None:
    path = evidence_of(spoilt, "evidence-cuda13-x86_64")
    document = json.loads(path.read_text())
    document["artifact"]["sha256"] = "f" * 64
    path.write_text(json.dumps(document))
    stage_fails_with(spoilt, "job-evidence-refused")


def test_device_that_speaks_for_another_stops_the_release(spoilt: Runner) -> None:
    path = evidence_of(spoilt, "evidence-cuda13-x86_64")
    path.rename(spoilt.artifacts / "evidence-vulkan-x86_64" / path.name)
    stage_fails_with(spoilt, "job-evidence-refused")


def test_device_that_says_nothing_stops_the_release(spoilt: Runner) -> None:
    shutil.rmtree(spoilt.artifacts / "evidence-vulkan-x86_64")
    stage_fails_with(spoilt, "evidence-missing")


def test_test_that_failed_stops_the_release(spoilt: Runner) -> None:
    path = evidence_of(spoilt, "evidence-vulkan-x86_64")
    document = json.loads(path.read_text()) | {"passed": False, "result": None}
    document["failure"] = {"error": "smoke-no-answer", "what": "it said nothing"}
    path.write_text(json.dumps(document))
    assert not load_evidence(path.read_bytes()).passed
    stage_fails_with(spoilt, "evidence-failed")


def test_artifact_that_changed_on_the_way_stops_the_release(spoilt: Runner) -> None:
    path = next((spoilt.artifacts / "artifacts-x86_64").glob("*.llamafile"))
    path.write_bytes(path.read_bytes() + b"x")
    stage_fails_with(spoilt, "job-bytes-differ")
