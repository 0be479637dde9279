"""Assembling: three files that agree, the same bytes every time, and what is refused."""

from __future__ import annotations

import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.locks import exclusive_lock
from ci.package.artifact import PackageInputs, assemble
from ci.package.index import INDEX_NAME, parse_index
from ci.package.naming import artifact_name
from ci.package.zipwriter import NewMember, write_archive
from opencoti import chunks
from opencoti.errors import BusyError, ConfigError, OpencotiError, UsageError
from opencoti.hashing import sha256_bytes, sha256_file
from opencoti.manifest import load_manifest
from tests.conftest import RecordedConsole
from tests.unit.package.samples import ENGINE, LOADER, make_inputs

NAME = "opencoti-llamafile-0.5.0-g0c1e570-c1-linux-x86_64.llamafile"
GOLDEN = Path(__file__).with_name("golden.MANIFEST.json")


@pytest.fixture
def inputs(tmp_path: Path) -> PackageInputs:
    return make_inputs(tmp_path / "in")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".package.lock"}


def test_the_three_files_agree(inputs: PackageInputs, tmp_path: Path, recorded: RecordedConsole) -> None:
    packaged = assemble(inputs, tmp_path / "out", recorded.console)
    assert packaged.is_new
    assert sorted(contents(tmp_path / "out")) == [NAME, f"{NAME}.MANIFEST.json", f"{NAME}.chunks"]
    manifest = load_manifest(packaged.manifest.read_bytes())
    assert manifest.sha256 == packaged.sha256 == sha256_file(packaged.artifact)
    assert manifest.size == packaged.size == packaged.artifact.stat().st_size
    assert packaged.artifact.stat().st_mode & 0o777 == 0o755
    assert packaged.artifact.read_bytes().startswith(LOADER)
    assert manifest.chunks.sha256 == sha256_file(packaged.chunks)
    assert chunks.verify_file(packaged.artifact, chunks.load(packaged.chunks)) == []


def test_the_index_lists_every_member_but_itself(
    inputs: PackageInputs, tmp_path: Path, recorded: RecordedConsole
) -> None:
    packaged = assemble(inputs, tmp_path / "out", recorded.console)
    with zipfile.ZipFile(packaged.artifact) as archive:
        names = archive.namelist()
        index = parse_index(archive.read(INDEX_NAME), "the index")
        assert archive.read("llama-server") == ENGINE
    assert names == [".args", "LICENSE.llama.cpp", "libggml-cpu-haswell.so", "llama-server", INDEX_NAME]
    assert [file.name for file in index.files] == names[:-1]
    assert (index.version, index.entry) == ("opencoti-0.5.0-g0c1e570-c1", "llama-server")
    engine = index.files[3]
    assert (engine.sha256, engine.size, engine.mode) == (sha256_bytes(ENGINE), len(ENGINE), "0755")


def test_the_manifest_is_the_golden_one(
    inputs: PackageInputs, tmp_path: Path, recorded: RecordedConsole
) -> None:
    """Bytes of artifact and manifest depend on nothing but the inputs, on any machine."""
    packaged = assemble(inputs, tmp_path / "out", recorded.console)
    assert packaged.manifest.read_bytes() == GOLDEN.read_bytes()


def test_the_same_inputs_from_another_place_give_the_same_bytes(
    tmp_path: Path, recorded: RecordedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = assemble(make_inputs(tmp_path / "in"), tmp_path / "out", recorded.console)
    other = make_inputs(tmp_path / "elsewhere")
    monkeypatch.setenv("TZ", "America/New_York")
    os.utime(other.entry, (1, 1))
    old = os.umask(0o077)
    try:
        second = assemble(other, tmp_path / "out2", recorded.console)
    finally:
        os.umask(old)
    assert first.sha256 == second.sha256
    assert contents(tmp_path / "out") == contents(tmp_path / "out2")


def test_running_again_writes_nothing(
    inputs: PackageInputs, tmp_path: Path, recorded: RecordedConsole
) -> None:
    first = assemble(inputs, tmp_path / "out", recorded.console)
    before = {path.name: path.stat().st_ino for path in (tmp_path / "out").iterdir()}
    second = assemble(inputs, tmp_path / "out", recorded.console)
    assert replace(first, is_new=False) == second
    assert {path.name: path.stat().st_ino for path in (tmp_path / "out").iterdir()} == before
    assert f"{NAME}: up to date" in recorded.text


def _touch_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", [NAME, f"{NAME}.chunks", f"{NAME}.MANIFEST.json"])
@pytest.mark.parametrize("damage", [_touch_byte, Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_damaged_output_is_written_again(
    inputs: PackageInputs, tmp_path: Path, recorded: RecordedConsole, name: str, damage: Any
) -> None:
    assemble(inputs, tmp_path / "out", recorded.console)
    good = contents(tmp_path / "out")
    damage(tmp_path / "out" / name)
    assert assemble(inputs, tmp_path / "out", recorded.console).is_new
    assert contents(tmp_path / "out") == good


@pytest.mark.parametrize(
    "changes",
    [
        {"args": b"--port\n1\n...\n"},
        {"args": None},
        {"git_commit": "a" * 40},
        {"licences": {"LICENSE.llama.cpp": b"BSD\n"}},
        {"partial": ("archs",)},
    ],
)
def test_a_changed_input_gives_a_new_artifact_or_manifest(
    inputs: PackageInputs, tmp_path: Path, recorded: RecordedConsole, changes: dict[str, Any]
) -> None:
    assemble(inputs, tmp_path / "out", recorded.console)
    before = contents(tmp_path / "out")[f"{NAME}.MANIFEST.json"]
    assert assemble(replace(inputs, **changes), tmp_path / "out", recorded.console).is_new
    assert contents(tmp_path / "out")[f"{NAME}.MANIFEST.json"] != before


def test_a_changed_file_of_the_same_size_is_noticed(
    inputs: PackageInputs, tmp_path: Path, recorded: RecordedConsole
) -> None:
    assemble(inputs, tmp_path / "out", recorded.console)
    stat = inputs.entry.stat()
    _touch_byte(inputs.entry)
    os.utime(inputs.entry, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert assemble(inputs, tmp_path / "out", recorded.console).is_new


@pytest.mark.parametrize("commit", ["", "unknown", "0c1e570", "G" * 40])
def test_a_commit_that_is_none_is_refused_and_the_old_artifact_stays(
    inputs: PackageInputs, tmp_path: Path, recorded: RecordedConsole, commit: str
) -> None:
    """Case B09."""
    assemble(inputs, tmp_path / "out", recorded.console)
    before = contents(tmp_path / "out")
    with pytest.raises(ConfigError) as caught:
        assemble(replace(inputs, git_commit=commit), tmp_path / "out", recorded.console)
    assert caught.value.error_id == "manifest-malformed"
    assert "gitCommit" in caught.value.why
    assert contents(tmp_path / "out") == before


def test_a_fact_about_other_bytes_is_refused(
    inputs: PackageInputs, tmp_path: Path, recorded: RecordedConsole
) -> None:
    dso = inputs.dsos[0].model_copy(update={"sha256": "0" * 64})
    with pytest.raises(ConfigError, match="no member with this sha256"):
        assemble(replace(inputs, dsos=(dso,)), tmp_path / "out", recorded.console)
    assert contents(tmp_path / "out") == {}


def test_two_libraries_with_one_name_are_refused(
    inputs: PackageInputs, tmp_path: Path, recorded: RecordedConsole
) -> None:
    """Case B23."""
    for folder in ("cuda12", "cuda13"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "ggml-cuda.so").write_bytes(b"\x7fELF")
    twins = tuple(tmp_path / folder / "ggml-cuda.so" for folder in ("cuda12", "cuda13"))
    with pytest.raises(ConfigError) as caught:
        assemble(replace(inputs, libraries=twins), tmp_path / "out", recorded.console)
    assert caught.value.error_id == "member-duplicate"


@pytest.mark.parametrize(
    "args", [b"-v\r\n", b"a\0b\n", b"-v", b"", b"\n", b"...\n...\n", b"\xff\n", b"x" * 70_000 + b"\n"]
)
def test_malformed_args_are_refused(
    inputs: PackageInputs, tmp_path: Path, recorded: RecordedConsole, args: bytes
) -> None:
    with pytest.raises(ConfigError) as caught:
        assemble(replace(inputs, args=args), tmp_path / "out", recorded.console)
    assert caught.value.error_id == "args-malformed"


def test_a_loader_with_members_is_refused(
    inputs: PackageInputs, tmp_path: Path, recorded: RecordedConsole
) -> None:
    write_archive(inputs.loader, [NewMember(name="x", mode=0o644, data=b"x")], inputs.loader)
    with pytest.raises(ConfigError) as caught:
        assemble(inputs, tmp_path / "out", recorded.console)
    assert caught.value.error_id == "loader-has-members"


def test_a_missing_library_is_named(inputs: PackageInputs, tmp_path: Path, recorded: RecordedConsole) -> None:
    inputs.libraries[0].unlink()
    with pytest.raises(UsageError, match=r"libggml-cpu-haswell\.so"):
        assemble(inputs, tmp_path / "out", recorded.console)


def test_two_runs_at_once_exclude_each_other(
    inputs: PackageInputs, tmp_path: Path, recorded: RecordedConsole
) -> None:
    with (
        exclusive_lock(tmp_path / "out" / ".package.lock", "the test"),
        pytest.raises(BusyError),
    ):
        assemble(inputs, tmp_path / "out", recorded.console)


def test_what_a_killed_run_left_is_removed(
    inputs: PackageInputs, tmp_path: Path, recorded: RecordedConsole
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / f".{NAME}.99999.tmp").write_bytes(b"half")
    assemble(inputs, tmp_path / "out", recorded.console)
    assert f".{NAME}.99999.tmp" not in contents(tmp_path / "out")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ({}, "opencoti-llamafile-0.5.0-g0c1e570-c1-linux-x86_64.llamafile"),
        ({"flavor": "cuda12"}, "opencoti-llamafile-0.5.0-g0c1e570-c1-linux-x86_64-cuda12.llamafile"),
        ({"lane": "ape"}, "opencoti-llamafile-0.5.0-g0c1e570-c1-x86_64.llamafile"),
    ],
)
def test_artifact_names(words: dict[str, str], name: str) -> None:
    assert artifact_name(version_string="opencoti-0.5.0-g0c1e570-c1", arch="x86_64", **words) == name


@pytest.mark.parametrize("arch", ["../x", "x/y", "x y"])
def test_an_architecture_that_leaves_the_folder_is_refused(arch: str) -> None:
    """Case B44."""
    with pytest.raises(OpencotiError):
        artifact_name(version_string="opencoti-1-c1", arch=arch)
