"""The artifact as a stranger gets it, checked with tools that we did not write."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from ci.context import Context
from ci.paths import Layout
from ci.smoke.command import prove
from ci.stages.elf import CPU_VARIANTS, product_names
from opencoti.hashing import sha256_bytes, sha256_file
from tests.conftest import RecordedConsole, require
from tests.e2e.conftest import EngineArtifact

pytestmark = pytest.mark.engine


def run(
    artifact: EngineArtifact, *words: str, home: Path, cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(artifact.path), *words],
        env={"PATH": os.environ["PATH"], "HOME": str(home), **env},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_sha256_is_the_one_of_the_manifest(artifact: EngineArtifact) -> None:
    assert sha256_file(artifact.path) == artifact.manifest.sha256
    assert artifact.path.stat().st_size == artifact.manifest.size


def test_unzip_finds_no_error(artifact: EngineArtifact) -> None:
    require(shutil.which("unzip") is not None, "unzip is not installed")
    done = subprocess.run(["unzip", "-t", str(artifact.path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No errors detected" in done.stdout


def test_members_are_stored_aligned_and_have_the_hashes_of_the_manifest(artifact: EngineArtifact) -> None:
    with zipfile.ZipFile(artifact.path) as archive:
        assert {info.filename for info in archive.infolist()} == {m.name for m in artifact.manifest.members}
        for member in artifact.manifest.members:
            assert archive.getinfo(member.name).compress_type == zipfile.ZIP_STORED
            assert member.offset % 65536 == 0
            assert sha256_bytes(archive.read(member.name)) == member.sha256
    assert set(product_names("x86_64")) <= {m.name for m in artifact.manifest.members}


def test_every_variant_is_there_and_measured(artifact: EngineArtifact) -> None:
    assert artifact.manifest.cpu_variants == CPU_VARIANTS["x86_64"]
    assert len(artifact.manifest.dsos) == 14
    for dso in artifact.manifest.dsos:
        assert dso.glibc_floor is not None
        assert tuple(map(int, dso.glibc_floor.split("."))) <= (2, 28)
        assert dso.libstdcxx_floor is None
        assert "libggml-base.so.0" in dso.needed


def test_version_says_what_was_built(artifact: EngineArtifact, tmp_path: Path) -> None:
    done = run(artifact, "--version", home=tmp_path)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert f"opencoti: {artifact.manifest.version_string}\n" in text
    assert f"patch set: {artifact.manifest.patch_set_hash}\n" in text
    assert f"upstream commit: {artifact.manifest.sources[0].commit}\n" in text


def test_it_extracts_to_a_private_folder_named_by_version_and_index(
    artifact: EngineArtifact, tmp_path: Path
) -> None:
    assert run(artifact, "--version", home=tmp_path).returncode == 0
    index = artifact.manifest.member(".opencoti/index")
    assert index is not None
    folder = tmp_path / ".llamafile" / "v" / f"{artifact.manifest.version_string}-{index.sha256[:12]}"
    assert folder.stat().st_mode & 0o777 == 0o700
    for name in product_names("x86_64"):
        member = artifact.manifest.member(name)
        assert member is not None
        assert sha256_file(folder / name) == member.sha256


def test_own_options_need_no_home(artifact: EngineArtifact, tmp_path: Path) -> None:
    listing = run(artifact, "--opencoti-list", home=Path())
    assert listing.returncode == 0
    assert "llama-server" in listing.stdout
    assert run(artifact, "--opencoti-verify", home=Path()).returncode == 0
    target = tmp_path / "out"
    assert run(artifact, "--opencoti-extract", str(target), home=Path()).returncode == 0
    assert (target / "LICENSE.llama.cpp").is_file()


def test_one_flipped_byte_is_found(artifact: EngineArtifact, tmp_path: Path) -> None:
    copy = tmp_path / artifact.path.name
    shutil.copy2(artifact.path, copy)
    member = artifact.manifest.member("libggml-cpu-zen4.so")
    assert member is not None
    with copy.open("r+b") as file:
        file.seek(member.offset + 1000)
        byte = file.read(1)
        file.seek(member.offset + 1000)
        file.write(bytes([byte[0] ^ 1]))
    damaged = EngineArtifact(path=copy, manifest_path=artifact.manifest_path, manifest=artifact.manifest)
    done = run(damaged, "--opencoti-verify", home=tmp_path)
    assert done.returncode == 6
    assert "libggml-cpu-zen4.so" in done.stdout + done.stderr
    start = run(damaged, "--version", home=tmp_path)
    assert start.returncode == 6
    assert "libggml-cpu-zen4.so" in start.stderr


@pytest.mark.parametrize("value", ["{planted}", ""])
def test_a_library_planted_on_the_library_path_is_not_loaded(
    artifact: EngineArtifact, tmp_path: Path, value: str
) -> None:
    """Case B25: another library under the name of ours, on LD_LIBRARY_PATH and in the working directory."""
    home, planted = tmp_path / "home", tmp_path / "planted"
    home.mkdir()
    planted.mkdir()
    with zipfile.ZipFile(artifact.path) as archive:
        # A real library, so the linker takes it, that lacks what the engine needs, so taking it shows.
        (planted / "libggml-base.so.0").write_bytes(archive.read("libggml-cpu-x64.so"))
    done = run(artifact, "--version", home=home, cwd=planted, LD_LIBRARY_PATH=value.format(planted=planted))
    assert done.returncode == 0, done.stderr
    assert artifact.manifest.version_string in done.stderr
    server = next(home.rglob("llama-server"))
    by_hand = subprocess.run(
        [str(server), "--version"],
        env={"LD_LIBRARY_PATH": str(planted)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert by_hand.returncode != 0, "the planted library does no harm: this test could not fail"


def test_the_engine_chats_embeds_and_leaves_nothing(
    artifact: EngineArtifact, real_layout: Layout, recorded: RecordedConsole
) -> None:
    proof = prove(Context(layout=real_layout, console=recorded.console), artifact.path)
    assert proof.evidence.passed
    assert proof.evidence.artifact.sha256 == artifact.manifest.sha256
    mapped = {Path(dso.path).name: dso.sha256 for dso in proof.evidence.result.dsos}
    members = {member.name: member.sha256 for member in artifact.manifest.members}
    assert mapped
    assert all(members[name] == digest for name, digest in mapped.items())
    assert any(name.startswith("libggml-cpu-") for name in mapped)
