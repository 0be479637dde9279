"""The downloaders beside ours: what is not installed is named, what is gets one file from our server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ci import process
from opencoti.hashing import sha256_file
from perf.fetch_rivals import PYTHON_VARIABLE, Rival, rivals
from perf.web_server import serving_by_ourselves


def by_name(url: str, sha256: str, target: Path) -> dict[str, Rival]:
    return {rival.name: rival for rival in rivals(url, sha256, target)}


def test_what_is_not_installed_is_named_and_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    found = by_name("http://127.0.0.1:1/x", "0" * 64, tmp_path / "x")
    assert found["curl, not verified"] == Rival(name="curl, not verified", absent="curl is not installed")
    assert found["pooch, with SHA-256"].absent.startswith("pooch is not installed")
    assert not any(rival.commands for rival in found.values())


def test_a_tool_of_two_commands_needs_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "curl").write_text("#!/bin/sh\n")
    (tmp_path / "curl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = by_name("http://127.0.0.1:1/x", "0" * 64, tmp_path / "x")
    assert found["curl, not verified"].commands
    assert found["curl, then openssl dgst -sha256"].absent == "openssl is not installed"


def test_python_that_the_variable_names_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    monkeypatch.setenv(PYTHON_VARIABLE, str(python))
    (command,) = by_name("u", "0" * 64, tmp_path / "x")["pooch, with SHA-256"].commands
    assert command[0] == str(python)


# Imitates `curl -sSf -o TARGET URL` and `sha256sum FILE`, which a machine may lack.
STAND_INS = {
    "curl": "import sys, urllib.request; urllib.request.urlretrieve(sys.argv[4], sys.argv[3])",
    "sha256sum": "import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest())",
}


def test_a_rival_gets_the_file_from_our_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder, target = tmp_path / "www", tmp_path / "got"
    folder.mkdir()
    (folder / "file.bin").write_bytes(os.urandom(300_000))
    sha256 = sha256_file(folder / "file.bin")
    for name, text in STAND_INS.items():
        (tmp_path / name).write_text(f"#!{sys.executable}\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with serving_by_ourselves(folder) as base:
        rival = by_name(f"{base}/file.bin", sha256, target)["curl, then sha256sum"]
        outputs = [process.run(argv).text for argv in rival.commands]
    assert outputs[-1].strip() == sha256
