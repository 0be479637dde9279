"""What every workflow must keep to, whatever it does: pins, permissions, secrets, caches, shells."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.integration.workflows import model

NAMES = model.all_names()
LOCAL = re.compile(r"\./\.github/workflows/[a-z]+\.yml")
PINNED = re.compile(r"[a-z0-9-]+/[a-z0-9-]+@[0-9a-f]{40}")
RELEASE = ("release.yml", "build.yml", "gpu.yml")
# The least that each job needs beyond nothing at all.
ALLOWED: dict[tuple[str, str], dict[str, str]] = {
    ("ci.yml", "lint"): {"contents": "read"},
    ("ci.yml", "tests"): {"contents": "read"},
    ("images.yml", "image"): {"contents": "read", "packages": "write"},
    ("monitor.yml", "release"): {"contents": "read"},
    ("release.yml", "resolve"): {"contents": "read"},
    ("release.yml", "attest"): {"id-token": "write", "attestations": "write"},
    ("release.yml", "publish"): {"contents": "write"},
    ("release.yml", "pypi"): {"id-token": "write"},
}


def jobs() -> list[tuple[str, str, dict[str, Any]]]:
    return [(name, job, data) for name in NAMES for job, data in model.load(name)["jobs"].items()]


def steps() -> list[tuple[str, str, dict[str, Any]]]:
    return [(name, job, step) for name, job, data in jobs() for step in data.get("steps", ())]


def test_all_workflows_are_there() -> None:
    assert NAMES == ["build.yml", "ci.yml", "gpu.yml", "images.yml", "monitor.yml", "release.yml"]


@pytest.mark.parametrize("name", NAMES)
def test_actions_are_pinned_by_commit_with_their_version_beside(name: str) -> None:
    lines = (model.FOLDER / name).read_text().splitlines()
    used = [line.partition("uses:")[2].strip() for line in lines if re.match(r"\s*(- )?uses:", line)]
    for text in used:
        action, _, version = text.partition(" # ")
        if LOCAL.fullmatch(action):
            assert version == ""
            continue
        assert PINNED.fullmatch(action), text
        assert re.fullmatch(r"v\d+\.\d+\.\d+", version), text
    assert used or name == "ci.yml"


def test_one_action_has_one_pin() -> None:
    pins = {step["uses"] for _, _, step in steps() if "uses" in step}
    assert len(pins) == len({pin.partition("@")[0] for pin in pins})


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_permitted_and_nothing_cached_at_the_top(name: str) -> None:
    document = model.load(name)
    assert document["permissions"] == {}
    assert document["cache-mode"] == "none"
    assert document["defaults"] == {"run": {"shell": "bash"}}


def test_jobs_are_permitted_the_least() -> None:
    given = {(name, job): dict(data.get("permissions", {})) for name, job, data in jobs()}
    assert {key: value for key, value in given.items() if value} == ALLOWED


def test_only_the_signing_job_sees_a_secret_and_it_is_protected() -> None:
    holders = {(name, job) for name, job, data in jobs() if "secrets." in str(data)}
    assert holders == {("release.yml", "sign")}
    sign = model.load("release.yml")["jobs"]["sign"]
    assert sign["environment"] == "release"
    with_secret = [step["name"] for step in sign["steps"] if "secrets." in str(step)]
    assert with_secret == ["sign"]
    assert "secrets" not in sign["permissions"]


def test_devices_hold_nothing_and_work_for_protected_refs_only() -> None:
    for job, data in model.load("gpu.yml")["jobs"].items():
        assert data["runs-on"][0] == "self-hosted", job
        assert "github.ref_protected" in data["if"], job
        assert data["permissions"] == {}, job
        assert "token" not in str(data), job
        assert "DIGESTS" in data["env"], job
    others = [
        job for name, job, data in jobs() if name != "gpu.yml" and "self-hosted" in str(data.get("runs-on"))
    ]
    assert others == []


def test_a_release_waits_for_the_one_before_and_uses_no_cache() -> None:
    document = model.load("release.yml")
    assert document["concurrency"] == {"group": "release-${{ inputs.tag }}", "cancel-in-progress": False}
    for name, job, step in steps():
        if name in RELEASE:
            assert "cache" not in step.get("uses", ""), (name, job)
            assert "cache" not in str(step.get("with", {})), (name, job)


def test_no_expression_stands_in_a_shell_command() -> None:
    assert [(name, job) for name, job, step in steps() if "${{" in step.get("run", "")] == []


def test_every_job_ends_in_time_and_every_step_says_what_it_does() -> None:
    for name, job, data in jobs():
        assert "uses" in data or 0 < data["timeout-minutes"] < 360, (name, job)
    assert all(step.get("name") for _, _, step in steps())


def test_a_checkout_leaves_no_token_behind() -> None:
    checkouts = [step for _, _, step in steps() if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_only_the_first_job_of_a_release_sees_the_repository() -> None:
    for name, job, step in steps():
        if name in RELEASE and step.get("uses", "").startswith("actions/checkout@"):
            assert (name, job) == ("release.yml", "resolve")
