"""`embed`: a host of any kind, the checks of the finished archive, and the command."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from ci.context import Context
from ci.package import cli_embed
from ci.package.embed import embed
from ci.package.zipreader import ALIGNMENT_BYTES
from ci.package.zipwriter import NewMember, write_archive
from ci.paths import Layout
from opencoti.errors import BuildError, ConfigError, OpencotiError
from tests.conftest import IN_CI, RecordedConsole


@pytest.fixture
def ape(tmp_path: Path) -> Path:
    path = tmp_path / "ape"
    path.write_bytes(b"MZqFpD='\n'\necho it runs\nexit 0\n")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(".cosmo", b"")
        archive.writestr("share/data", b"data" * 1000)
    path.chmod(0o755)
    return path


def file(path: Path, data: bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def test_an_ape_still_runs_and_keeps_its_members(
    ape: Path, tmp_path: Path, recorded: RecordedConsole
) -> None:
    program = ape.read_bytes()
    model = file(tmp_path / "model.gguf", b"GGUF" + b"\0" * 100_000)
    out = tmp_path / "out"
    written = embed(ape, [file(tmp_path / ".args", b"-v\n...\n"), model], out, recorded.console)
    assert subprocess.run(["sh", out], capture_output=True, text=True).stdout == "it runs\n"
    with zipfile.ZipFile(out) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [".cosmo", "share/data", ".args", "model.gguf"]
        assert archive.read("share/data") == b"data" * 1000
    assert written.kept == (".cosmo", "share/data")
    assert all(member.offset % ALIGNMENT_BYTES == 0 for member in written.members)
    assert out.read_bytes()[:100] == program[:100]
    assert out.stat().st_mode & 0o777 == 0o755
    assert ape.read_bytes() == program


def test_names_that_collide_without_their_folders_are_refused(
    ape: Path, tmp_path: Path, recorded: RecordedConsole
) -> None:
    """Case B23."""
    twins = [file(tmp_path / folder / "ggml-cuda.so", b"\x7fELF") for folder in ("cuda12", "cuda13")]
    with pytest.raises(ConfigError) as caught:
        embed(ape, twins, tmp_path / "out", recorded.console)
    assert caught.value.error_id == "member-duplicate"
    assert not (tmp_path / "out").exists()


def test_a_second_model_is_refused_unless_the_args_of_the_host_choose(
    ape: Path, tmp_path: Path, recorded: RecordedConsole
) -> None:
    """Case B23."""
    first, second = (file(tmp_path / name, b"GGUF") for name in ("a.gguf", "b.gguf"))
    embed(ape, [first], tmp_path / "one", recorded.console)
    with pytest.raises(ConfigError, match=r"a\.gguf, b\.gguf"):
        embed(tmp_path / "one", [second], tmp_path / "two", recorded.console)
    embed(ape, [file(tmp_path / ".args", b"-m\n/zip/a.gguf\n"), first], tmp_path / "chosen", recorded.console)
    embed(tmp_path / "chosen", [second], tmp_path / "two", recorded.console)


def test_malformed_args_are_refused(ape: Path, tmp_path: Path, recorded: RecordedConsole) -> None:
    with pytest.raises(ConfigError) as caught:
        embed(ape, [file(tmp_path / ".args", b"-v\r\n")], tmp_path / "out", recorded.console)
    assert caught.value.error_id == "args-malformed"


def test_too_large_for_windows_is_said_or_refused(
    ape: Path, tmp_path: Path, recorded: RecordedConsole
) -> None:
    """Case B21, with a limit of 100 kB instead of 4 GiB."""
    big = file(tmp_path / "big", b"x" * 100_000)
    embed(ape, [big], tmp_path / "out", recorded.console, windows_max_bytes=100_000)
    assert "WARN" in recorded.text
    assert "Windows" in recorded.text
    with pytest.raises(BuildError) as caught:
        embed(ape, [big], tmp_path / "out.exe", recorded.console, windows_max_bytes=100_000)
    assert caught.value.error_id == "windows-too-large"
    assert not (tmp_path / "out.exe").exists()


def run_cli(words: list[str], layout: Layout, recorded: RecordedConsole) -> int:
    parser = argparse.ArgumentParser()
    cli_embed.register(parser.add_subparsers(), argparse.ArgumentParser(add_help=False))
    args = parser.parse_args(["embed", *words])
    return int(args.command(args, Context(layout=layout, console=recorded.console)))


def test_the_command_prints_the_path_or_data(
    ape: Path, tmp_path: Path, layout: Layout, recorded: RecordedConsole
) -> None:
    words = [str(ape), str(file(tmp_path / "a", b"A")), "--out", str(tmp_path / "out")]
    assert run_cli(words, layout, recorded) == 0
    assert recorded.out.getvalue() == f"{tmp_path / 'out'}\n"
    recorded = RecordedConsole()
    recorded.console.as_json = True
    words[0] = words[3]
    with pytest.raises(OpencotiError):
        run_cli(words, layout, recorded)
    assert run_cli([*words, "--replace"], layout, recorded) == 0
    data = json.loads(recorded.out.getvalue())
    assert [member["name"] for member in data["members"]] == ["a"]
    assert data["kept"] == [".cosmo", "share/data"]


@pytest.mark.skipif(not IN_CI, reason="hashes 4 GiB several times: runs in CI, or with CI=true")
@pytest.mark.parametrize("size", [(1 << 32) - 1, 1 << 32, (1 << 32) + 1])
def test_the_edges_of_4_gib(tmp_path: Path, size: int) -> None:
    """Case B21, with sparse files."""
    host, big, out = tmp_path / "host", tmp_path / "big", tmp_path / "out"
    host.write_bytes(b"\x7fELF")
    with open(big, "wb") as handle:
        handle.truncate(size)
        handle.seek(size - 1)
        handle.write(b"!")
    written = write_archive(
        host, [NewMember(name="big", mode=0o644, path=big), NewMember(name="z", mode=0o644, data=b"z")], out
    )
    assert out.stat().st_blocks * 512 < 1 << 28
    with zipfile.ZipFile(out) as archive:
        info = archive.getinfo("big")
        assert (info.file_size, info.CRC) == (size, written.members[0].crc32)
        with archive.open("big") as member:
            member.seek(size - 1)
            assert member.read() == b"!"
        assert archive.read("z") == b"z"
    assert subprocess.run(["unzip", "-tqq", out]).returncode == 0
    os.unlink(out)
