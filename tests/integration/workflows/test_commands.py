"""Every command line of every workflow is one that our parsers take: a renamed option breaks this test."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import ci.cli
import release.cli
from ci.paths import Layout
from ci.toolchains.recipe import recipe_names
from ci.toolchains.table import load_table
from release.planning.request import DEFAULT_KINDS
from tests.conftest import ROOT
from tests.integration.workflows import model
from tests.integration.workflows.expressions import render
from tests.integration.workflows.recording import record

RUNS = list(model.runs())
FOREIGN_MODULES = ("tarfile", "venv", "pip")  # of Python, for the steps before anything of ours is there
# Installs Debian packages and starts a container engine, then calls nox: what a maintainer types as well.
EXEMPT = [["sudo", "--preserve-env=CI,GITHUB_ACTIONS", ".ci/run"]]
DIGESTS = json.dumps({"a.llamafile": "0" * 64})
WAIVED = "there is no such card in our rack"


def contexts(run: model.Run, *, waived: str) -> dict[str, Any]:
    form = run.document["on"].get("workflow_dispatch") or {}
    inputs = dict.fromkeys(form.get("inputs", ()), waived)
    inputs |= {"tag": "c7", "source": "opencoti-0123456789ab", "digests": DIGESTS, "waived": "[]"}
    return {
        "matrix": run.matrix,
        "inputs": inputs,
        "needs": {
            "resolve": {"outputs": {"source": "opencoti-0123456789ab", "waived": "[]"}},
            "package": {"outputs": {"digests": DIGESTS}},
        },
        "steps": {"attest": {"outputs": {"bundle-path": "/tmp/attestation.json"}}},
        "github": {"workspace": "/w", "repository": "mann1x/opencoti", "actor": "who", "token": "t"},
        "runner": {"temp": "/t"},
        "secrets": {"OPENCOTI_SIGNING_KEY": "k"},
    }


def words_of(run: model.Run, folder: Path, *, waived: str = "") -> list[list[str]]:
    known = contexts(run, waived=waived)
    environ = {
        name: str(value)
        for part in (run.document, run.data, run.step)
        for name, value in render(part.get("env", {}), known).items()
    }
    given = {"GITHUB_REPOSITORY": "mann1x/opencoti", "GITHUB_SERVER_URL": "https://github.com"}
    return record(run.step["run"], folder, {**given, **environ})


@cache
def sessions() -> frozenset[str]:
    done = subprocess.run(
        [sys.executable, "-m", "nox", "--list", "-f", str(ROOT / "noxfile.py")],
        capture_output=True, text=True, check=True, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    return frozenset(re.findall(r"^[*-] (\S+)", done.stdout, re.MULTILINE))


def check_nox(words: list[str]) -> argparse.Namespace:
    assert words[0] == "-s", words
    assert set(words[1:]) <= sessions(), sorted(set(words[1:]) - sessions())
    return argparse.Namespace()


def check_python(words: list[str]) -> argparse.Namespace:
    assert words[0] == "-m", words
    if words[1] in FOREIGN_MODULES:
        return argparse.Namespace()
    parser = {"ci": ci.cli.build_parser, "release": release.cli.build_parser}[words[1]]()
    return parser.parse_args(words[2:])


def check(words: list[str]) -> argparse.Namespace:
    if words in EXEMPT:
        assert os.access(ROOT / words[-1], os.X_OK)
        return argparse.Namespace()
    checks: dict[str, Callable[[list[str]], argparse.Namespace]] = {"./noxw": check_nox}
    return checks.get(words[0], check_python)(words[1:])


@pytest.mark.parametrize("run", RUNS, ids=[run.title for run in RUNS])
def test_every_word_of_every_command_is_known(run: model.Run, tmp_path: Path) -> None:
    calls = words_of(run, tmp_path)
    assert calls, "a step that starts nothing"
    for words in calls:
        check(words)


def find(workflow: str, job: str, text: str) -> list[model.Run]:
    return [run for run in RUNS if (run.workflow, run.job) == (workflow, job) and text in run.step["run"]]


def parsed(run: model.Run, folder: Path, command: str, *, waived: str = "") -> list[argparse.Namespace]:
    calls = [words for words in words_of(run, folder, waived=waived) if command in words]
    assert calls, f"nothing calls {command}"
    return [check(words) for words in calls]


def test_plan_waives_what_the_inputs_say_and_nothing_else(tmp_path: Path) -> None:
    (run,) = find("release.yml", "resolve", "release plan")
    (without,) = parsed(run, tmp_path / "a", "plan")
    assert (without.tag, without.repo, without.waive) == ("c7", "mann1x/opencoti", [])
    (with_all,) = parsed(run, tmp_path / "b", "plan", waived=WAIVED)
    gpu = [backend.name for backend in load_table(Layout.find().table).gpu]
    assert with_all.waive == [f"{kind}:{name}={WAIVED}" for name in gpu for kind in DEFAULT_KINDS]


def test_what_is_typed_into_a_form_is_never_run(tmp_path: Path) -> None:
    (run,) = find("release.yml", "resolve", "release plan")
    evil = "'\"; touch ../gone; $(touch ../gone) `touch ../gone` * ~ \\"
    (plan,) = parsed(run, tmp_path, "plan", waived=evil)
    assert plan.waive[0].endswith(f"={evil}")
    assert not list(tmp_path.rglob("gone"))


def test_package_asks_for_whole_artifacts_that_the_packager_takes(tmp_path: Path) -> None:
    (run,) = find("release.yml", "package", "ci package")
    asked = parsed(run, tmp_path, "package")
    assert [(item.arch, item.flavor, ",".join(item.backends)) for item in asked] == [
        ("x86_64", None, "cpu,vulkan,cuda13,rocm"),
        ("x86_64", "cuda12", "cpu,vulkan,cuda12,rocm"),
        ("aarch64", None, "cpu"),
    ]
    assert {item.engine for item in asked} == {"none"}


def test_package_takes_over_everything_that_other_jobs_built_and_builds_nothing(tmp_path: Path) -> None:
    (run,) = find("release.yml", "package", "ci package")
    taken = [
        (name, item.arch)
        for item in parsed(run, tmp_path, "build")
        for name in item.backends
        if item.engine == "none"
    ]
    built = [(run.matrix["backend"], run.matrix["arch"]) for run in find("build.yml", "backend", "ci build")]
    assert sorted(taken) == sorted(built)


@pytest.mark.parametrize(("workflow", "job"), [("release.yml", "cpu"), ("gpu.yml", "cuda13-x86_64")])
def test_every_kind_of_evidence_that_a_release_needs_is_made(workflow: str, job: str, tmp_path: Path) -> None:
    for number, run in enumerate(find(workflow, job, "ci job smoke")):
        calls = [words for words in words_of(run, tmp_path / str(number)) if "job" in words]
        made = [words[words.index("job") + 1] for words in calls]
        assert made == ["accept", *DEFAULT_KINDS]


def test_every_backend_is_built_by_a_toolchain_that_exists(tmp_path: Path) -> None:
    table, layout = load_table(Layout.find().table), Layout.find()
    built = []
    for number, run in enumerate(find("build.yml", "backend", "ci build")):
        (build,) = parsed(run, tmp_path / str(number), "build")
        built.append((build.backends, build.arch))
        assert run.matrix["toolchain"] in recipe_names(layout.containers)
    assert built == [([backend.name], arch) for backend in table.backends for arch in backend.hosts]


def test_results_go_to_files_that_git_does_not_see(tmp_path: Path) -> None:
    """A file in the checkout would make the tree dirty, and nothing could be released."""
    (run,) = find("release.yml", "resolve", "release plan")
    words_of(run, tmp_path)
    assert (tmp_path / "work" / "inner" / "dist" / "plan.json").exists()
    ignored = subprocess.run(["git", "check-ignore", "dist/plan.json"], cwd=ROOT, capture_output=True)
    assert ignored.returncode == 0
