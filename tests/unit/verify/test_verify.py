"""Verification: a good artifact passes, and every difference is named where it is."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ci.context import Context
from ci.package.artifact import Packaged, assemble
from ci.package.zipwriter import NewMember, WriteOptions, write_archive
from ci.paths import Layout
from ci.verify import cli
from ci.verify.command import verify_artifact, verify_packaged
from ci.verify.report import VerifyReport
from opencoti.console import Console
from opencoti.errors import ConfigError, OpencotiError, UsageError, VerificationError
from opencoti.manifest import dump_manifest, load_manifest
from tests.conftest import RecordedConsole
from tests.unit.package.samples import make_inputs

INDEX = ".opencoti/index"


@pytest.fixture
def packaged(tmp_path: Path, recorded: RecordedConsole) -> Packaged:
    return assemble(make_inputs(tmp_path / "in"), tmp_path / "out", recorded.console)


def verify(packaged: Packaged, **options: Any) -> VerifyReport:
    return verify_artifact(packaged.artifact, packaged.manifest, Console(quiet=True), **options)


def found(report: VerifyReport) -> set[tuple[str, str]]:
    return {(item.kind, item.subject) for item in report.differences}


def flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0xFF]))


def edit_manifest(packaged: Packaged, **changes: Any) -> None:
    manifest = load_manifest(packaged.manifest.read_bytes())
    packaged.manifest.write_bytes(dump_manifest(manifest.model_copy(update=changes)))


@pytest.mark.parametrize(("full", "proof"), [(False, ("chunks",)), (True, ("chunks", "sha256"))])
def test_a_good_artifact_passes(packaged: Packaged, full: bool, proof: tuple[str, ...]) -> None:
    report = verify(packaged, full=full)
    assert report.is_ok
    assert report.proof == proof
    assert report.members == 5
    assert report.text().startswith("ok: ")


def test_without_a_chunk_table_everything_is_hashed(packaged: Packaged, recorded: RecordedConsole) -> None:
    packaged.chunks.unlink()
    report = verify_artifact(packaged.artifact, packaged.manifest, recorded.console)
    assert report.is_ok
    assert report.proof == ("sha256",)
    assert "there is no chunk table" in recorded.text


@pytest.mark.parametrize("has_table", [True, False])
@pytest.mark.parametrize(
    "name", [".args", "LICENSE.llama.cpp", "libggml-cpu-haswell.so", "llama-server", INDEX]
)
def test_a_changed_member_is_named(packaged: Packaged, name: str, has_table: bool) -> None:
    member = load_manifest(packaged.manifest.read_bytes()).member(name)
    assert member is not None
    flip(packaged.artifact, member.offset + member.size - 1)
    if not has_table:
        packaged.chunks.unlink()
    names = {subject for _, subject in found(verify(packaged))}
    assert name in names
    assert names <= {name, "the index", "the file"}


def test_a_changed_loader_is_named(packaged: Packaged) -> None:
    flip(packaged.artifact, 10)
    assert found(verify(packaged)) == {("changed", "the loader")}


def test_changed_padding_is_noticed(packaged: Packaged) -> None:
    flip(packaged.artifact, 5000)
    assert found(verify(packaged)) == {("changed", "padding and directory")}


@settings(max_examples=60, deadline=3000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 459_523))
def test_every_single_byte_counts(packaged: Packaged, at: int) -> None:
    flip(packaged.artifact, at)
    try:
        assert not verify(packaged).is_ok
    finally:
        flip(packaged.artifact, at)


@pytest.mark.parametrize("keep", [0, 1, 600, 70_000, 459_523])
def test_a_truncated_artifact_differs(packaged: Packaged, keep: int) -> None:
    data = packaged.artifact.read_bytes()
    packaged.artifact.write_bytes(data[:keep])
    report = verify(packaged)
    assert ("changed", "the file") in found(report)
    assert f"found {keep}" in report.text()


def test_a_longer_artifact_differs(packaged: Packaged) -> None:
    with open(packaged.artifact, "ab") as file:
        file.write(b"junk")
    assert ("changed", "the file") in found(verify(packaged))


def rewrite(packaged: Packaged, change: Callable[[dict[str, NewMember]], None]) -> None:
    """Replace the artifact by one with other members, in other places, written by our own writer."""
    import zipfile

    with zipfile.ZipFile(packaged.artifact) as archive:
        members = {
            info.filename: NewMember(
                name=info.filename,
                mode=0o755 if info.external_attr >> 16 & 0o100 else 0o644,
                data=archive.read(info.filename),
            )
            for info in archive.infolist()
        }
    change(members)
    loader = packaged.artifact.parent.parent / "in" / "loader"
    write_archive(loader, list(members.values()), packaged.artifact, options=WriteOptions(mode=0o755))


def test_missing_extra_and_moved_members_are_named(packaged: Packaged) -> None:
    def change(members: dict[str, NewMember]) -> None:
        del members[".args"]
        members["evil.so"] = NewMember(name="evil.so", mode=0o755, data=b"evil")

    rewrite(packaged, change)
    differences = found(verify(packaged))
    assert ("missing", ".args") in differences
    assert ("extra", "evil.so") in differences
    assert ("moved", "llama-server") in differences


def test_a_changed_mode_is_named(packaged: Packaged) -> None:
    def change(members: dict[str, NewMember]) -> None:
        data = members["llama-server"].data
        members["llama-server"] = NewMember(name="llama-server", mode=0o644, data=data)

    rewrite(packaged, change)
    assert "llama-server: mode: expected 0755, found 0644" in verify(packaged).text()


def test_an_index_of_another_version_is_named(packaged: Packaged) -> None:
    """Case B09: what is embedded is compared with what the manifest says."""

    def change(members: dict[str, NewMember]) -> None:
        data = members[INDEX].data.replace(b"-c1\n", b"-c2\n")
        members[INDEX] = NewMember(name=INDEX, mode=0o644, data=data)

    rewrite(packaged, change)
    assert "version: expected opencoti-0.5.0-g0c1e570-c1, found opencoti-0.5.0-g0c1e570-c2" in (
        verify(packaged).text()
    )


def test_a_manifest_with_another_digest_differs_when_the_whole_file_is_hashed(packaged: Packaged) -> None:
    edit_manifest(packaged, sha256="0" * 64)
    assert found(verify(packaged, full=True)) == {("changed", "the file")}


def test_a_chunk_table_of_another_artifact_differs(packaged: Packaged) -> None:
    flip(packaged.chunks, 60)
    report = verify(packaged)
    assert found(report) == {("changed", "the chunk table")}
    assert report.proof == ("sha256",)


@pytest.mark.parametrize("commit", ["", "unknown"])
def test_a_manifest_without_a_commit_is_refused(packaged: Packaged, commit: str) -> None:
    """Case B09."""
    edit_manifest(packaged, git_commit=commit)
    with pytest.raises(ConfigError, match="gitCommit"):
        verify(packaged)


def test_an_artifact_that_changes_while_it_is_read_is_noticed(packaged: Packaged) -> None:
    packaged.chunks.unlink()

    class Meddler(Console):
        """Writes to the artifact when it is told that hashing begins."""

        def warn(self, text: str) -> None:
            with open(packaged.artifact, "ab") as file:
                file.write(b"x")

    with pytest.raises(VerificationError) as caught:
        verify_artifact(packaged.artifact, packaged.manifest, Meddler(quiet=True))
    assert caught.value.error_id == "artifact-changed"


def test_verify_packaged_raises_on_a_difference(packaged: Packaged) -> None:
    assert verify_packaged(packaged.artifact, packaged.manifest, Console(quiet=True)).is_ok
    flip(packaged.artifact, 10)
    with pytest.raises(VerificationError, match="the loader") as caught:
        verify_packaged(packaged.artifact, packaged.manifest, Console(quiet=True))
    assert caught.value.error_id == "artifact-differs"


@pytest.mark.parametrize("which", ["artifact", "manifest"])
@pytest.mark.parametrize("is_folder", [True, False])
def test_a_missing_file_is_named(packaged: Packaged, which: str, is_folder: bool) -> None:
    path: Path = getattr(packaged, which)
    path.unlink()
    if is_folder:
        path.mkdir()
    with pytest.raises(UsageError) as caught:
        verify(packaged)
    assert caught.value.error_id == "file-unreadable"


def run_cli(words: list[str], layout: Layout, console: Console) -> int:
    parser = argparse.ArgumentParser()
    cli.register(parser.add_subparsers(), argparse.ArgumentParser(add_help=False))
    args = parser.parse_args(["verify", *words])
    return int(args.command(args, Context(layout=layout, console=console)))


def test_the_command_returns_0_or_6_and_prints_data(packaged: Packaged, layout: Layout) -> None:
    recorded = RecordedConsole()
    recorded.console.as_json = True
    assert run_cli([str(packaged.artifact)], layout, recorded.console) == 0
    assert json.loads(recorded.out.getvalue())["ok"] is True
    elsewhere = packaged.manifest.rename(packaged.manifest.with_name("other.json"))
    flip(packaged.artifact, 10)
    recorded = RecordedConsole()
    recorded.console.as_json = True
    code = run_cli([str(packaged.artifact), "--manifest", str(elsewhere), "--full"], layout, recorded.console)
    assert code == 6
    data = json.loads(recorded.out.getvalue())
    assert {item["subject"] for item in data["differences"]} == {"the loader", "the file"}


@settings(max_examples=40, deadline=3000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=600), st.integers(0, 1500))
def test_a_damaged_end_raises_known_errors_only(packaged: Packaged, new: bytes, back: int) -> None:
    data = packaged.artifact.read_bytes()
    at = len(data) - back
    packaged.artifact.write_bytes(data[:at] + new + data[at + len(new) :])
    try:
        verify(packaged)
    except OpencotiError:
        pytest.fail("damage is a difference, no error")
    finally:
        packaged.artifact.write_bytes(data)
