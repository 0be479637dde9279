"""The launcher script makes its environment once and puts a broken one right (with a stand-in Python)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

# Does what noxw asks of Python: `-c` is real, `-m venv` and `-m pip` make the few files that count.
_PYTHON = """#!/bin/sh
case "$1 $2" in
"-m venv") mkdir -p "$4/bin" && cp "$0" "$4/bin/python"; exit ;;
"-m pip") [ "$3" = --version ] && exit 0
    echo x >> "$MADE"; : > "${4%/bin/python}/nox"; exit ;;
"-m nox") [ -e "${0%/bin/python}/nox" ] && echo nox ran; exit ;;
esac
case "$2" in
*find_spec*) [ -e "${0%/bin/python}/nox" ]; exit ;;
esac
exec "$REAL" "$@"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "check out"
    (folder / "requirements").mkdir(parents=True)
    shutil.copy(ROOT / "noxw", folder)
    shutil.copy(ROOT / "requirements" / "nox.txt", folder / "requirements")
    stand_in = tmp_path / "python"
    stand_in.write_text(_PYTHON)
    stand_in.chmod(0o755)
    return folder


def start(checkout: Path) -> subprocess.Popen[str]:
    tools = checkout.parent
    env = os.environ | {
        "OPENCOTI_PYTHON": str(tools / "python"),
        "REAL": sys.executable,
        "MADE": str(tools / "made"),
    }
    return subprocess.Popen(
        ["./noxw"], cwd=checkout, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def times_made(checkout: Path) -> int:
    return (checkout.parent / "made").read_text().count("x")


def environments(checkout: Path) -> list[str]:
    return sorted(path.name for path in checkout.glob(".bootstrap*"))


def test_the_environment_is_made_once(checkout: Path) -> None:
    assert [finish(start(checkout)), finish(start(checkout))] == ["nox ran\n"] * 2
    assert times_made(checkout) == 1


def test_what_a_killed_call_left_goes_and_what_a_running_one_makes_stays(checkout: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    names = [f".bootstrap.{ended.pid}", f".bootstrap.{os.getpid()}"]
    for name in names:
        (checkout / name / "bin").mkdir(parents=True)
    finish(start(checkout))
    assert environments(checkout) == [".bootstrap", names[1]]


@pytest.mark.parametrize("damage", ["nox", "bin/python", "lock"])
def test_a_broken_environment_is_made_anew(checkout: Path, damage: str) -> None:
    finish(start(checkout))
    (checkout / ".bootstrap" / damage).unlink()
    assert finish(start(checkout)) == "nox ran\n"
    assert times_made(checkout) == 2


def test_calls_at_the_same_time_do_not_disturb_each_other(checkout: Path) -> None:
    calls = [start(checkout) for _ in range(6)]
    ended = [(*call.communicate(timeout=60), call.returncode) for call in calls]
    assert [(out, code) for out, _, code in ended] == [("nox ran\n", 0)] * 6, ended
    assert environments(checkout) == [".bootstrap"]
    assert environments(checkout / ".bootstrap") == []
