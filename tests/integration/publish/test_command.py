"""`python -m release publish` as a process: what it prints, where it stops, and that the token is nowhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from release.keys import SecretKey
from tests.conftest import ROOT
from tests.fakes.github.faults import Dice, Kind, Script
from tests.fakes.github.server import TOKEN, GitHub
from tests.fakes.staged_release import StagedRelease
from tests.integration.publish.bench import github_for, staged_in

RUNNER = Path(__file__).with_name("publish_at.py")


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> StagedRelease:
    return staged_in(tmp_path_factory.mktemp("staged"))


@pytest.fixture
def github(staged: StagedRelease) -> Iterator[GitHub]:
    with github_for(staged) as github:
        yield github


def run(
    staged: StagedRelease, *words: str, github: GitHub | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
    full = {**clean, "PYTHONPATH": str(ROOT), **(github.environ if github else {}), **(env or {})}
    argv = [sys.executable, str(RUNNER), "--tag", "c7", "--dir", str(staged.folder), *words]
    return subprocess.run(
        argv, env=full, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, check=False
    )


def key_words(staged: StagedRelease) -> list[str]:
    return ["--pubkey", staged.key.public.text]


def error_id(done: subprocess.CompletedProcess[str]) -> str:
    found = re.search(r"error \[([a-z0-9-]+)\]", done.stderr)
    assert found is not None, done.stderr
    return found[1]


def test_json_tells_what_was_done_and_again_that_nothing_was(staged: StagedRelease, github: GitHub) -> None:
    words = [*key_words(staged), "--yes", "--json"]
    first, second = run(staged, *words, github=github), run(staged, *words, github=github)
    assert (first.returncode, second.returncode) == (0, 0)
    data = json.loads(first.stdout)
    assert (data["state"], len(data["sent"]), data["commit"]) == ("published", 12, staged.commit)
    assert json.loads(second.stdout)["state"] == "unchanged"
    assert "Traceback" not in first.stderr


@pytest.mark.parametrize("kind", ["good", "faults", "refused", "forbidden", "html"])
def test_the_token_is_nowhere(staged: StagedRelease, tmp_path: Path, kind: str) -> None:
    with github_for(staged) as github:
        if kind == "faults":
            github.decide = Dice(seed=4, rate=0.5)
        if kind == "html":
            github.decide = Script({"repos/list-releases": ["html"] * 20})
        env = {"TMPDIR": str(tmp_path), "PYTHONDEVMODE": "1"}
        if kind == "refused":
            env["GITHUB_TOKEN"] = TOKEN + "x"
        github.store.can_write = kind != "forbidden"
        words = [*key_words(staged), "--yes", "--json", "--traceback"]
        done = run(staged, *words, github=github, env=env)
    assert done.returncode == {"good": 0, "faults": done.returncode}.get(kind, 7)
    assert TOKEN not in done.stdout + done.stderr
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    staged_files = [path.read_bytes() for path in staged.folder.parent.rglob("*") if path.is_file()]
    assert all(TOKEN.encode() not in data for data in written + staged_files)


def test_nobody_to_ask_and_no_yes_is_refused_before_anything(staged: StagedRelease, github: GitHub) -> None:
    done = run(staged, *key_words(staged), github=github)
    assert (done.returncode, error_id(done)) == (2, "publish-unconfirmed")
    assert github.log == []


def test_a_dry_run_needs_no_yes(staged: StagedRelease, github: GitHub) -> None:
    done = run(staged, *key_words(staged), "--dry-run", github=github)
    assert done.returncode == 0
    assert "would be published" in done.stdout
    assert github.writes == []


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, (3, "github-token-missing")),
        ({"GITHUB_TOKEN": "two words"}, (3, "github-token-malformed")),
        ({"GITHUB_TOKEN": "t", "GITHUB_API_URL": "http://example.invalid"}, (3, "address-refused")),
    ],
)
def test_bad_surroundings_are_named(
    staged: StagedRelease, env: dict[str, str], expected: tuple[int, str]
) -> None:
    done = run(staged, *key_words(staged), "--yes", env=env)
    assert (done.returncode, error_id(done)) == expected


@pytest.mark.parametrize(
    "words",
    [
        ("--to", "ftp:x"),
        ("--to", "dir:"),
        ("--repo", "no-slash"),
        ("--tag", "../c7"),
        ("--make-latest", "perhaps"),
        ("--root", "x", "--pubkey", "y"),
    ],
)
def test_words_that_mean_nothing_are_refused(staged: StagedRelease, words: tuple[str, ...]) -> None:
    done = run(staged, "--yes", *words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_one_time_key_is_for_folders_and_for_those_who_insist(tmp_path: Path, github: GitHub) -> None:
    key = SecretKey.generate(is_development=True)
    staged = StagedRelease(folder=tmp_path / "release" / "c7", key=key).write()
    github.store.commits.add(staged.commit)
    done = run(staged, *key_words(staged), "--yes", github=github)
    assert (done.returncode, error_id(done)) == (6, "development-key")
    assert run(staged, *key_words(staged), "--to", f"dir:{tmp_path}/www").returncode == 0
    done = run(staged, *key_words(staged), "--yes", "--allow-development-key", github=github)
    assert done.returncode == 0


def test_without_a_key_that_clients_have_nothing_is_published(staged: StagedRelease, github: GitHub) -> None:
    done = run(staged, "--yes", github=github)
    assert done.returncode == 6
    assert github.log == []


@pytest.mark.parametrize("kind", ["reset", "500"])
def test_a_remote_that_stays_away_ends_with_code_7_and_a_next_step(
    staged: StagedRelease, github: GitHub, kind: Kind
) -> None:
    github.decide = Script({"repos/list-releases": [kind] * 20})
    done = run(staged, *key_words(staged), "--yes", github=github)
    assert (done.returncode, error_id(done)) == (7, "remote-failed")
    assert "next: run the same command again" in done.stderr
