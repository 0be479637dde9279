"""The command on this machine, with the real engine of this checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ci.paths import Layout
from opencoti.doctor.engine import examine_engine, read_index
from opencoti.hashing import sha256_file
from tests.conftest import ROOT
from tests.fakes.engine import write_artifact
from tests.integration.launch.real import launch_real, real_options


def run_cli(home: Path, *words: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    home.mkdir(exist_ok=True)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENCOTI_", "XDG_", "GGML_", "LLAMA_", "LD_"))
    }
    return subprocess.run(
        [sys.executable, "-m", "opencoti.doctor", *map(str, words)],
        env={**kept, "PYTHONPATH": str(ROOT), "HOME": str(home), **environ},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
    )


def by_name(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in json.loads(done.stdout)["findings"]}


@pytest.mark.engine
def test_real_engine_is_usable_and_a_stale_library_in_home_is_called_out(
    tmp_path: Path, real_layout: Layout
) -> None:
    binary = real_options(real_layout).binary
    assert binary is not None
    home = tmp_path / "home"
    done = run_cli(home, "--binary", binary, "--json")
    assert done.returncode == 0, done.stdout
    report = json.loads(done.stdout)
    assert report["is_usable"] is True
    assert report["would_use"]["engine"].startswith(str(binary))
    assert by_name(done)["start"]["status"] == "ok"
    assert not (home / ".llamafile").exists()  # it was tried in a scratch home

    (home / "ggml-cuda.so").write_bytes(b"stale")
    again = run_cli(home, "--binary", binary, "--no-try")
    assert again.returncode == 0
    assert f"{home}/ggml-cuda.so" in again.stdout.split("to fix")[1]


@pytest.mark.engine
def test_own_folder_and_hashes_are_those_that_the_running_engine_has_mapped(
    tmp_path: Path, real_layout: Layout
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    options = real_options(real_layout)
    assert options.binary is not None
    index = read_index(options.binary)
    assert index is not None
    with launch_real(real_layout, tmp_path / "cache", env={"HOME": str(home)}) as engine:
        mapped = [Path(path) for path in engine.state.libraries]
    facts = examine_engine({"HOME": str(home)}, explicit=options.binary, allow_try=False).facts
    assert facts is not None
    assert {path.parent for path in mapped} == {facts.own_folder}
    assert all(index.members[path.name] == sha256_file(path) for path in mapped)
    found = by_name(run_cli(home, "--binary", options.binary, "--no-try", "--json"))["own folder"]
    assert found["status"] == "ok"
    assert {path.name for path in mapped} <= set(found["data"]["wins"])


def test_engine_that_does_not_start_has_code_4(tmp_path: Path) -> None:
    broken = write_artifact(tmp_path / "broken.llamafile", "version-fails")
    done = run_cli(tmp_path / "home", "--binary", broken, "--json")
    assert done.returncode == 4
    assert by_name(done)["start"]["status"] == "fail"


def test_missing_engine_unwritable_cache_and_bad_words_have_their_codes(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    good = write_artifact(tmp_path / "good.llamafile", "good")
    home = tmp_path / "home"
    assert run_cli(home, "--binary", tmp_path / "absent").returncode == 2
    done = run_cli(home, "--binary", good, OPENCOTI_CACHE_DIR=str(tmp_path / "file" / "x"))
    assert done.returncode == 8
    assert "set OPENCOTI_CACHE_DIR" in done.stdout
    assert run_cli(home, "--binar").returncode == 2


def test_broken_settings_are_findings_and_no_tracebacks(tmp_path: Path) -> None:
    good = write_artifact(tmp_path / "good.llamafile", "good")
    home = tmp_path / "home"
    config = home / ".config" / "opencoti" / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text("{broken")
    done = run_cli(home, "--binary", good, "--json", HTTPS_PROXY="http://[", OPENCOTI_MIRROR="nonsense")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "json-malformed" in done.stdout or "cannot read" in done.stdout
