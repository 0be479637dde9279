"""What the jobs of a release hand on, and what they refuse."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ci import workflows_jobs as jobs
from ci.cli import build_parser
from ci.context import Context
from ci.package.artifact import assemble
from ci.paths import Layout
from opencoti.errors import ConfigError, OpencotiError, VerificationError
from opencoti.hashing import sha256_bytes, sha256_file
from tests.conftest import RecordedConsole
from tests.fakes.checkouts import evidence_dict
from tests.unit.package.samples import make_inputs

COMMIT = "0123456789ab" + "c" * 28
NAME = "opencoti-llamafile-0.5.0-g0c1e570-c1-linux-x86_64.llamafile"


@pytest.fixture
def context(layout: Layout, recorded: RecordedConsole) -> Context:
    return Context(layout=layout, console=recorded.console)


@pytest.fixture
def packaged(tmp_path: Path, context: Context) -> Path:
    """A folder with one small artifact and its companions."""
    folder = tmp_path / "llamafile"
    assemble(make_inputs(tmp_path / "inputs"), folder, context.console)
    return folder


def error_of(act: Any, *words: Any, **more: Any) -> str:
    with pytest.raises(OpencotiError) as caught:
        act(*words, **more)
    return caught.value.error_id


def write_plan(path: Path, **changes: Any) -> Path:
    waivers = [{"name": "smoke:rocm", "reason": "r"}, {"name": "backend:vulkan", "reason": "r"}]
    path.write_text(json.dumps({"tag": "c1", "source": {"commit": COMMIT}, "waivers": waivers} | changes))
    return path


def write_tarball(path: Path, name: str = "opencoti-0123456789ab/README.md") -> Path:
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo(name)
        tar.addfile(info, io.BytesIO(b""))
    return path


def test_plan_and_source_of_one_commit_are_told(tmp_path: Path, context: Context, monkeypatch: Any) -> None:
    output = tmp_path / "output"
    monkeypatch.setenv("GITHUB_OUTPUT", str(output))
    plan, source = write_plan(tmp_path / "plan.json"), write_tarball(tmp_path / "s.tar.gz")
    args = build_parser().parse_args(["job", "resolve", "--plan", str(plan), "--source", str(source)])
    assert args.command(args, context) == 0
    assert output.read_text() == 'tag=c1\nsource=opencoti-0123456789ab\nwaived=["rocm"]\n'


def test_tag_cannot_add_an_output(tmp_path: Path) -> None:
    plan = write_plan(tmp_path / "plan.json", tag="c1\nsource=/etc")
    assert error_of(jobs.resolve, plan, write_tarball(tmp_path / "s.tar.gz")) == "job-plan-unfit"


@pytest.mark.parametrize(
    "name",
    ["opencoti-ffffffffffff/a", "../opencoti-0123456789ab/a", "/etc/passwd", "opencoti-0123456789ab\n/a"],
)
def test_source_of_another_commit_or_another_form_is_refused(tmp_path: Path, name: str) -> None:
    plan, source = write_plan(tmp_path / "plan.json"), write_tarball(tmp_path / "s.tar.gz", name)
    assert error_of(jobs.resolve, plan, source) == "job-source-unfit"


def test_source_that_is_no_tarball_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.tar.gz"
    path.write_bytes(gzip.compress(b""))
    assert error_of(jobs.resolve, write_plan(tmp_path / "plan.json"), path) == "job-source-unfit"


def test_digests_are_of_every_file_but_locks(packaged: Path, context: Context) -> None:
    digests = jobs.verified_digests(context, packaged)
    assert sorted(digests) == [NAME, f"{NAME}.MANIFEST.json", f"{NAME}.chunks"]
    assert digests[NAME] == sha256_file(packaged / NAME)
    assert jobs.parse_digests(json.dumps(digests)) == digests


def test_artifact_that_differs_from_its_manifest_has_no_digest(packaged: Path, context: Context) -> None:
    data = bytearray((packaged / NAME).read_bytes())
    data[len(data) // 2] ^= 1
    (packaged / NAME).write_bytes(data)
    assert error_of(jobs.verified_digests, context, packaged) == "artifact-differs"


def test_file_of_no_artifact_has_no_digest(packaged: Path, context: Context) -> None:
    (packaged / "other.llamafile2").write_text("x")
    assert error_of(jobs.verified_digests, context, packaged) == "job-file-foreign"
    assert error_of(jobs.verified_digests, context, context.layout.root) == "job-nothing-packaged"


def test_accepted_artifact_can_be_started_again(packaged: Path, context: Context) -> None:
    digests = jobs.verified_digests(context, packaged)
    for path in packaged.iterdir():
        path.chmod(0o644)
    found = jobs.accept(packaged, digests, is_whole=True)
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in found} == {
        NAME: "0o755", f"{NAME}.MANIFEST.json": "0o644", f"{NAME}.chunks": "0o644",
    }  # fmt: skip


def test_other_bytes_unlisted_files_links_and_gaps_are_refused(packaged: Path, context: Context) -> None:
    digests = jobs.verified_digests(context, packaged)
    assert error_of(jobs.accept, packaged, digests | {NAME: "0" * 64}, is_whole=False) == "job-bytes-differ"
    more = digests | {"b.llamafile": "0" * 64}
    assert len(jobs.accept(packaged, more, is_whole=False)) == 3
    assert error_of(jobs.accept, packaged, more, is_whole=True) == "job-files-missing"
    (packaged / "b.llamafile").symlink_to("/etc/passwd")
    assert error_of(jobs.accept, packaged, more, is_whole=False) == "job-file-foreign"
    (packaged / "b.llamafile").unlink()
    (packaged / "c").write_text("")
    assert error_of(jobs.accept, packaged, more, is_whole=False) == "job-file-foreign"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"a": 1}', '{"a": "xyz"}', '{"../a": "' + "0" * 64 + '"}', '{"a":"' + "A" * 64 + '"}'],
)
def test_digests_from_outside_are_checked(text: str) -> None:
    with pytest.raises((ConfigError, VerificationError)):
        jobs.parse_digests(text)


class TestEvidence:
    content: ClassVar = b"engine"
    digests: ClassVar = {NAME: sha256_bytes(content)}

    def send(self, folder: Path, *, sender: str = "evidence-cuda13-x86_64", **changes: Any) -> Path:
        path = folder / sender / f"{NAME}.smoke-cuda13.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        document = evidence_dict(self.content, NAME, backend="cuda13")
        path.write_text(json.dumps(document | changes))
        return path

    def collect(self, folder: Path) -> tuple[Path, ...]:
        return jobs.collect_evidence(folder, folder.parent / "taken", self.digests)

    def test_that_fits_is_taken_as_it_is(self, tmp_path: Path) -> None:
        sent = self.send(tmp_path / "in")
        (taken,) = self.collect(tmp_path / "in")
        assert (taken.name, taken.read_bytes()) == (sent.name, sent.read_bytes())

    def test_nothing_sent_is_nothing_taken(self, tmp_path: Path) -> None:
        assert self.collect(tmp_path / "none") == ()

    @pytest.mark.parametrize(
        "sender",
        [
            "evidence-vulkan-x86_64",
            "evidence-cuda13-aarch64",
            "other",
            "evidence-..-x86_64",
            "evidence-cuda13",
        ],
    )
    def test_for_another_than_the_sender_is_refused(self, tmp_path: Path, sender: str) -> None:
        self.send(tmp_path / "in", sender=sender)
        assert error_of(self.collect, tmp_path / "in") == "job-evidence-refused"

    def test_of_other_bytes_is_refused(self, tmp_path: Path) -> None:
        self.send(tmp_path / "in", artifact={"name": NAME, "sha256": "1" * 64, "size": 6})
        assert error_of(self.collect, tmp_path / "in") == "job-evidence-refused"

    def test_under_another_name_is_refused(self, tmp_path: Path) -> None:
        sent = self.send(tmp_path / "in")
        sent.rename(sent.with_name("a.smoke-cpu.json"))
        assert error_of(self.collect, tmp_path / "in") == "job-evidence-refused"

    def test_whose_artifact_is_a_path_is_refused(self, tmp_path: Path) -> None:
        self.send(tmp_path / "in", artifact={"name": "../../x", "sha256": "1" * 64, "size": 6})
        assert error_of(self.collect, tmp_path / "in") == "unsafe-name"

    def test_that_is_a_link_is_refused(self, tmp_path: Path) -> None:
        sent = self.send(tmp_path / "in")
        sent.rename(tmp_path / "elsewhere")
        sent.symlink_to(tmp_path / "elsewhere")
        assert error_of(self.collect, tmp_path / "in") == "job-file-foreign"

    def test_that_is_too_large_is_not_read(self, tmp_path: Path) -> None:
        self.send(tmp_path / "in", padding="x" * (1 << 20))
        assert error_of(self.collect, tmp_path / "in") == "json-malformed"


def test_bundle_is_placed_under_the_tag(tmp_path: Path) -> None:
    bundle, folder = tmp_path / "attestation.json", tmp_path / "c1"
    folder.mkdir()
    bundle.write_text('{"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json"}\n')
    assert jobs.place_bundle(bundle, folder) == folder / "c1.sigstore.json"
    assert (folder / "c1.sigstore.json").read_bytes() == bundle.read_bytes()
    bundle.write_text("{}")
    assert error_of(jobs.place_bundle, bundle, folder) == "job-bundle-unfit"


@pytest.mark.parametrize("kind", ["smoke", "bench"])
def test_test_of_a_backend_that_nothing_has_is_an_error(packaged: Path, context: Context, kind: str) -> None:
    assert error_of(jobs.run_tests, context, packaged, kind, "rocm") == "job-nothing-to-test"
