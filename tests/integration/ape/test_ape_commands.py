"""The commands with `--lane ape`: from the pinned submodule to a verified artifact, with the stand-in cosmocc
brought as the archive that a recipe names, and a stand-in CUDA toolkit found by the probes."""

from __future__ import annotations

import io
import json
import shutil
import stat
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ci.ape import package as ape_package
from ci.ape.build import build_host
from ci.cli import build_parser
from ci.context import Context
from ci.dso.elf import inspect_elf
from ci.package.command import PackageOptions
from ci.verify.command import verify_artifact
from opencoti.console import Console
from opencoti.errors import OpencotiError
from opencoti.hashing import sha256_file
from opencoti.manifest import load_manifest
from tests.conftest import RecordedConsole
from tests.fakes.ape_checkout import OPTIONS, STAND_IN, ApeCheckout
from tests.fakes.source_trees import creation
from tests.fakes.toolkits import cuda_toolkit

RECIPE = """name = "cosmocc"
description = "stand-in"
archs = ["x86_64"]

[[archive]]
name = "cosmocc"
version = "4.0.2"
url = "https://example.invalid/cosmocc.zip"
sha256 = "{sha256}"
to = "cosmocc"
"""
# What answers to questions is that of the fake toolkit; everything else is compiled.
COMPILES = """case "$1" in
--version | --dryrun | --list-gpu-arch) ;;
*) [ "$1" = -ccbin ] && shift 2; exec {nvcc} "$@" ;;
esac
"""


def bring_cosmocc(checkout: ApeCheckout, *, portable: bytes = b"#!/bin/sh\nexit 0\n") -> None:
    """Put the stand-in where somebody without network to its publisher puts the real archive."""
    folder = checkout.layout.containers / "cosmocc"
    archive = checkout.layout.root / "cosmocc.zip"
    with zipfile.ZipFile(archive, "w") as bundle:
        for path in sorted((STAND_IN / "cosmocc").rglob("*")):
            if path.is_file():
                add(bundle, str(path.relative_to(STAND_IN / "cosmocc")), path.read_bytes())
        add(bundle, "bin/make", portable)
    sha256 = sha256_file(archive)
    checkout.layout.downloads.mkdir(parents=True)
    shutil.copyfile(archive, checkout.layout.downloads / sha256)
    (folder / "recipe.toml").write_text(RECIPE.format(sha256=sha256))
    (folder / "debs.lock").unlink()


def add(bundle: zipfile.ZipFile, name: str, data: bytes) -> None:
    member = zipfile.ZipInfo(name)
    member.external_attr = (stat.S_IFREG | 0o755) << 16
    bundle.writestr(member, data)


@pytest.fixture
def ready(applied: ApeCheckout, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> ApeCheckout:
    """A checkout that is a git repository, with cosmocc, a CUDA toolkit, and a home folder."""
    bring_cosmocc(applied)
    toolkit = cuda_toolkit(tmp_path / "cuda-13.5", "13.5.1", newest_gcc=99, archs=(75, 80, 86, 89, 90, 120))
    nvcc = toolkit / "bin" / "nvcc"
    first, rest = nvcc.read_text().split("\n", 1)
    nvcc.write_text(f"{first}\n{COMPILES.format(nvcc=STAND_IN / 'toolkit' / 'bin' / 'nvcc')}{rest}")
    monkeypatch.setenv("OPENCOTI_CUDA_PATH", str(toolkit))
    subprocess.run(["git", "init", "--quiet", "--template="], cwd=applied.layout.root, check=True)
    (applied.layout.root / ".gitignore").write_text("/build/\n/dist/\n/vendors/sources/\n")
    for words in (["add", "-A"], ["commit", "--quiet", "-m", "state"]):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@example.invalid", *words],
            cwd=applied.layout.root,
            check=True,
        )
    return applied


def run(checkout: ApeCheckout, *words: str) -> tuple[Any, str]:
    """Run a command; return its JSON result and what it told."""
    out, err = io.StringIO(), io.StringIO()
    context = Context(layout=checkout.layout, console=Console(as_json=True, stdout=out, stderr=err))
    args = build_parser().parse_args(list(words))
    assert args.command(args, context) == 0
    return json.loads(out.getvalue()), err.getvalue()


def fails(checkout: ApeCheckout, *words: str) -> OpencotiError:
    with pytest.raises(OpencotiError) as caught:
        run(checkout, *words)
    return caught.value


def test_from_the_submodule_to_an_artifact(ready: ApeCheckout, home: Path) -> None:
    stale = home / "ggml-cuda.so"
    stale.write_bytes(b"of last year")
    built, told = run(ready, "build", "cpu", "cuda13", "--lane", "ape", "--engine", "host", "--side-load")
    assert [(row["backend"], row["lane"]) for row in built["backends"]] == [("cpu", "ape"), ("cuda13", "ape")]
    assert built["backends"][1]["objects"] == 6
    mirrored = home / ".llamafile" / "v" / "0.10.1" / "ggml-cuda.so"
    library = ready.layout.dist / "backends" / "cuda13" / "0.10.1" / "ggml-cuda.so"
    assert built["side_loaded"] == [str(mirrored)]
    assert mirrored.read_bytes() == library.read_bytes()
    assert f"side-loaded {mirrored}" in told
    assert f"{stale} is another library of that name" in told
    assert not inspect_elf(library).build_paths

    planned, _ = run(ready, "package", "--lane", "ape", "--plan")
    packaged, _ = run(ready, "package", "--lane", "ape", "--engine", "host")
    artifact = Path(packaged["artifact"])
    assert artifact.name == "opencoti-llamafile-0.10.1-c1-x86_64.llamafile"
    assert planned["artifacts"][0]["path"] == str(artifact)
    _check_artifact(artifact, library, ready)
    again, _ = run(ready, "package", "--lane", "ape", "--engine", "host")
    assert (again["is_new"], again["sha256"]) == (False, packaged["sha256"])


def _check_artifact(artifact: Path, library: Path, checkout: ApeCheckout) -> None:
    said = subprocess.run([artifact, "--version"], check=True, capture_output=True, text=True).stdout
    assert said == "llamafile v0.10.1\n"
    with zipfile.ZipFile(artifact) as bundle:
        assert bundle.testzip() is None
        assert bundle.read("ggml-cuda.so") == library.read_bytes()
        assert {info.compress_type for info in bundle.infolist()} == {zipfile.ZIP_STORED}
        names = sorted(bundle.namelist())
    manifest = load_manifest(Path(f"{artifact}.MANIFEST.json").read_bytes(), "manifest")
    assert names == sorted(member.name for member in manifest.members)
    assert names == ["LICENSE.llamafile", "LICENSE.opencoti", "ggml-cuda.so"]
    assert (manifest.lane, manifest.windows_runnable, manifest.cpu_only) == ("ape", True, False)
    assert [(dso.name, dso.backend) for dso in manifest.dsos] == [("ggml-cuda.so", "cuda13")]
    assert [patch.name for patch in manifest.patches] == ["0007-build-header-deps.patch"]
    assert [source.name for source in manifest.sources] == ["llamafile"]
    report = verify_artifact(artifact, Path(f"{artifact}.MANIFEST.json"), checkout.context.console, full=True)
    assert (report.is_ok, report.differences) == (True, ())
    damaged = bytearray(artifact.read_bytes())
    damaged[100] ^= 1
    artifact.with_suffix(".damaged").write_bytes(damaged)
    report = verify_artifact(
        artifact.with_suffix(".damaged"),
        Path(f"{artifact}.MANIFEST.json"),
        checkout.context.console,
        full=True,
    )
    assert "the loader" in {difference.subject for difference in report.differences}
    artifact.with_suffix(".damaged").unlink()


def test_artifact_with_a_model_starts_its_server_by_the_lanes_own_words(
    ready: ApeCheckout, tmp_path: Path
) -> None:
    model = tmp_path / "tiny.gguf"
    model.write_bytes(b"GGUF" + bytes(100))
    words = ["--lane", "ape", "--engine", "host", "--cpu-only", "--with-model", str(model)]
    packaged, _ = run(ready, "package", *words)
    embedder = Path(packaged["embedder"]["artifact"])
    assert embedder.name == "opencoti-embedder-0.10.1-x86_64.llamafile"
    with zipfile.ZipFile(embedder) as bundle:
        lines = bundle.read(".args").decode().splitlines()
        assert bundle.read("tiny.gguf") == model.read_bytes()
    assert lines[:3] == ["-m", "/zip/tiny.gguf", "--server"]
    assert lines[-1] == "..."
    assert "--slot-initial-ctx" not in lines


def test_libraries_of_another_source_stay_out(ready: ApeCheckout) -> None:
    run(ready, "build", "cuda13", "--lane", "ape", "--engine", "host")
    ready.add_patch("0008-new.patch", creation("llamafile/new.c", "int x;"))
    error = fails(ready, "package", "--lane", "ape", "--engine", "host", "--backends", "cuda13")
    assert (error.error_id, error.exit_code) == ("no-gpu-backend", 5)
    assert "another source than the engine" in error.why


def test_an_engine_with_members_of_its_own_keeps_them(ready: ApeCheckout) -> None:
    """cosmocc's linker puts some there: they count as part of the executable."""
    built = build_host(ready.context, OPTIONS)
    with zipfile.ZipFile(built.folder / "llamafile", "a", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("usr/share/zoneinfo/UTC", b"TZif2" * 100)
    done = ape_package.package_set(ready.context, built, PackageOptions(is_cpu_only=True)).engine
    with zipfile.ZipFile(done.artifact) as bundle:
        assert bundle.read("usr/share/zoneinfo/UTC") == b"TZif2" * 100
        assert "LICENSE.llamafile" in bundle.namelist()
    assert subprocess.run([done.artifact, "--version"], check=False).returncode == 0
    report = verify_artifact(done.artifact, done.manifest, ready.context.console, full=True)
    assert (report.is_ok, report.differences) == (True, ())


@pytest.mark.parametrize(
    ("words", "error_id", "code"),
    [
        (["build", "cpu", "--lane", "elf", "--side-load"], "lane-missing", 4),
        (["build", "cpu", "--lane", "ape", "--toolchain", "system"], "ape-option", 2),
        (["build", "cuda13", "--lane", "ape", "--archs", "75"], "ape-option", 2),
        (["build", "cuda13", "--lane", "ape", "--no-fa"], "ape-option", 2),
        (["build", "cuda13", "--lane", "ape", "--arch", "aarch64"], "ape-option", 2),
        (["build", "cuda13", "--lane", "ape", "--engine", "docker"], "ape-engine-host-only", 4),
        (["package", "--lane", "ape", "--cublas", "bundle"], "ape-cublas", 2),
    ],
)
def test_what_the_lane_does_not_have_is_refused(
    ready: ApeCheckout, words: list[str], error_id: str, code: int
) -> None:
    error = fails(ready, *words)
    assert (error.error_id, error.exit_code) == (error_id, code)


def test_side_load_in_the_other_lane_says_why_not(ready: ApeCheckout) -> None:
    shutil.copyfile(ready.layout.pins / "llamafile.txt", ready.layout.pins / "llama.cpp.txt")
    for command in (["build", "cpu"], ["package"]):
        error = fails(ready, *command, "--lane", "elf", "--side-load")
        assert (error.error_id, error.exit_code) == ("side-load-elf", 2)
        assert "loads only what its own index lists" in error.why


def test_make_prints_the_engine(ready: ApeCheckout) -> None:
    done, _ = run(ready, "make", "--lane", "ape", "--engine", "host")
    assert subprocess.run([done["server"], "--version"], check=False).returncode == 0


def test_programs_that_the_kernel_does_not_start_are_told_before_the_build(
    applied: ApeCheckout, recorded: RecordedConsole
) -> None:
    bring_cosmocc(applied, portable=b"MZqFpD='\n" + bytes(64))
    error = fails(applied, "build", "cpu", "--lane", "ape", "--engine", "host")
    assert (error.error_id, error.exit_code) == ("cosmocc-not-runnable", 4)
    assert "binfmt_misc" in error.hint


def test_features_of_the_series_are_looked_for_in_its_engine(ready: ApeCheckout) -> None:
    built, _ = run(ready, "build", "cpu", "--lane", "ape", "--engine", "host")
    shutil.copyfile(STAND_IN.parents[2] / "vendors" / "patches" / "llamafile" / "features.toml",
                    ready.series / "features.toml")  # fmt: skip
    report, _ = run(
        ready,
        "verify",
        str(Path(built["backends"][0]["folder"]) / "llamafile"),
        "--features",
        "--lane",
        "ape",
    )
    assert report["verdict"] == "untouched"  # it is an engine, and no patch so far leaves a sign
