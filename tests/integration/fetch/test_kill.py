"""Killed hard just before every change of the file system: the next run needs no help."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opencoti.fetch.get import fetch
from opencoti.fetch.settings import Settings
from opencoti.fetch.source import request_for_url
from opencoti.hashing import sha256_bytes
from tests.conftest import RecordedConsole
from tests.fakes.http_faults import Fault, serving
from tests.fakes.releases import CHUNK, sidecars
from tests.integration.fetch.bench import CONTENT, SHA, cli_env, run_cli

SETTINGS = Settings(artifacts=Path("never-used"))
SMALL = CONTENT[: 5 * CHUNK + 100]
SMALL_SHA = sha256_bytes(SMALL)
KILLER = Path(__file__).with_name("kill_at.py")
ROUNDS = 90  # a bound only: a run changes the file system about 20 times, by how the bytes arrive


def run_and_kill(at: int, *words: str | Path) -> int:
    argv = [sys.executable, str(KILLER), str(at), *map(str, words)]
    return subprocess.run(argv, env=cli_env(), capture_output=True, timeout=60).returncode


@pytest.mark.parametrize("source", ["http", "file", "chunks"])
def test_kill_at_any_boundary_leaves_a_state_that_the_next_run_goes_on_with(
    tmp_path: Path, source: str, recorded: RecordedConsole
) -> None:
    local = tmp_path / "local"
    local.write_bytes(SMALL)
    was_killed = 0
    with serving(SMALL) as server:
        url = local.as_uri() if source == "file" else server.url()
        more: list[str | Path] = []
        if source == "chunks":
            more = chunk_words(tmp_path)
        for at in range(1, ROUNDS + 1):
            dest = tmp_path / str(at)
            words = ("--url", url, "--sha256", SMALL_SHA, "--name", "engine.bin", "--dest", dest, *more)
            code = run_and_kill(at, *words)
            assert code in (0, -signal.SIGKILL)
            if code == 0:
                break
            was_killed += 1
            check_after(dest / "engine.bin")
            fetch(request_for_url(url, SMALL_SHA, name="engine.bin"), SETTINGS, recorded.console, dest=dest)
            assert (dest / "engine.bin").read_bytes() == SMALL
            assert not (dest / "engine.bin.part").exists()
    assert 10 <= was_killed < ROUNDS


def chunk_words(folder: Path) -> list[str | Path]:
    """Write manifest and chunk table of the file, and an older file that has most of it."""
    for name, data in sidecars("engine.bin", SMALL).items():
        (folder / name).write_bytes(data)
    (folder / "old").write_bytes(SMALL[: 2 * CHUNK] + b"?")
    return ["--manifest", folder / "engine.bin.MANIFEST.json", "--seed-from", folder / "old"]


def check_after(final: Path) -> None:
    """Whatever happened: under the final name there is the right file or none."""
    if final.exists():
        assert final.read_bytes() == SMALL


def test_kill_again_and_again_moves_the_download_forward(tmp_path: Path) -> None:
    words = ("--sha256", SHA, "--dest", tmp_path / "d")
    with serving(CONTENT, *[Fault(kind="close", at=9000)] * 3) as server:
        seen = []
        for _ in range(3):
            run_and_kill(14, "--url", server.url(), *words)
            part = tmp_path / "d" / "engine.bin.part"
            seen.append(part.stat().st_size if part.exists() else len(CONTENT))
        assert seen == sorted(seen)
        done = run_cli("--url", server.url(), *words, "--json")
    assert json.loads(done.stdout)["sha256"] == SHA


# An upgrade in which every other chunk changed: each chunk is a write of its own, by two workers.
BIG_CHUNK = 16_384
NEW = random.Random(21).randbytes(256 * BIG_CHUNK)
OLDER = b"".join(
    NEW[at : at + BIG_CHUNK] if at // BIG_CHUNK % 2 else bytes(BIG_CHUNK)
    for at in range(0, len(NEW), BIG_CHUNK)
)
# All of them by hand: OPENCOTI_TEST_KILLS=all. Otherwise the ends, and each kind of write in between.
ALL = os.environ.get("OPENCOTI_TEST_KILLS") == "all"
PLACES = range(1, 400) if ALL else (1, 4, 60, 140, 200, 264)


def test_kill_at_any_write_of_an_upgrade_by_chunks_loses_nothing(
    tmp_path: Path, recorded: RecordedConsole
) -> None:
    was_killed = 0
    for name, data in sidecars("engine.bin", NEW, BIG_CHUNK).items():
        (tmp_path / name).write_bytes(data)
    manifest = tmp_path / "engine.bin.MANIFEST.json"
    with serving(NEW) as server:
        server.block_bytes = BIG_CHUNK
        request = request_for_url(server.url(), sha256_bytes(NEW), manifest=str(manifest))
        for at in PLACES:
            dest = tmp_path / str(at)
            dest.mkdir()
            (dest / "engine.bin").write_bytes(OLDER)
            words = ("--url", server.url(), "--sha256", request.sha256, "--manifest", manifest)
            code = run_and_kill(at, *words, "--dest", dest)
            assert code in (0, -signal.SIGKILL)
            if code == 0:
                break
            was_killed += 1
            assert (dest / "engine.bin").read_bytes() in (OLDER, NEW)
            kept = right_chunks(dest / "engine.bin.part")
            done = fetch(request, SETTINGS, recorded.console, dest=dest)
            assert (dest / "engine.bin").read_bytes() == NEW
            assert done.action == "already-there" or done.resumed_from >= kept * BIG_CHUNK
            assert sorted(os.listdir(dest)) == [".engine.bin.lock", ".engine.bin.stamp", "engine.bin"]
            shutil.rmtree(dest)
    assert was_killed >= (200 if ALL else len(PLACES))
    if ALL:
        assert code == 0  # so the last place was behind the last write


def right_chunks(part: Path) -> int:
    """Count the chunks of a partial that stand at their place and are right."""
    data = part.read_bytes() if part.exists() else b""
    return sum(data[at : at + BIG_CHUNK] == NEW[at : at + BIG_CHUNK] for at in range(0, len(data), BIG_CHUNK))
