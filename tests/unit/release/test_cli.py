"""The commands, as they are typed: exit codes, results on standard output, secrets nowhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from release.keys import SecretKey
from tests.conftest import ROOT
from tests.unit.release.samples import MANIFEST, MANIFEST_NAME, REPO, WEAK_KDF, index_bytes

YEARS = {"created": "2026-05-01T00:00:00Z", "expires": "9999-01-01T00:00:00Z"}


class Shell:
    """Runs `python -m release` in a folder, with a clean environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith(("OPENCOTI_", "GITHUB_"))}
        self.environ |= {"PYTHONPATH": str(ROOT)}

    def __call__(self, *words: str, code: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "release", *words],
            cwd=self.folder,
            env=self.environ | environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done


@pytest.fixture
def run(tmp_path: Path) -> Shell:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / MANIFEST_NAME).write_bytes(MANIFEST)
    (tmp_path / "d" / "opencoti-release.json").write_bytes(index_bytes(**YEARS))
    return Shell(tmp_path)


def test_the_whole_way_from_keys_to_a_verified_release(run: Shell) -> None:
    """Case B29: the publisher's own output is checked against the root that clients will have."""
    for name in ("root-a", "root-b", "signing"):
        run("keygen", "--out", name, "--no-password")
    (run.folder / "roots").mkdir()
    words = ("--dir", "roots")
    run("root", "new", *words, "--root-key", "root-a.pub", "--root-key", "root-b.pub", "--signing-key",
        (run.folder / "signing.pub").read_text().split("\n")[1])  # fmt: skip
    run("root", "sign", *words, "--key", "root-a.key")
    assert "root-threshold" in run("root", "check", *words, code=6).stderr
    run("root", "sign", *words, "--key", "root-b.key")
    assert json.loads(run("root", "check", *words, "--json").stdout)["threshold"] == 2

    signing = ("--key", "signing.key", "--root", "roots")
    files = ("d/opencoti-release.json", f"d/{MANIFEST_NAME}")
    assert run("sign", *files, *signing).stdout.split() == [f"{name}.minisig" for name in files]
    assert run("sums", "d", "--sign", *signing).stdout == "d/SHA256SUMS.minisig\n"
    for name in (*files, "d/SHA256SUMS"):
        run("verify", name, "--root", "roots", "--repo", REPO)
        run("verify", name, "--pubkey", "signing.pub")
    assert run("sums", "d", "--check").stdout == "2 files are as listed\n"

    run("root", "retire", *words, "--last-sequence", "0", json.loads(
        run("root", "check", *words, "--json").stdout)["signingKeys"][0]["id"])  # fmt: skip
    run("root", "sign", *words, "--key", "root-a.key")
    run("root", "sign", *words, "--key", "root-b.key")
    assert "signing-key-retired" in run("verify", files[0], "--root", "roots", code=6).stderr


def test_before_the_first_release_nothing_is_signed_or_verified_by_accident(run: Shell) -> None:
    run("keygen", "--out", "k", "--no-password")
    refused = run("sign", "d/opencoti-release.json", "--key", "k.key", code=6)
    assert "signing-key-not-listed" in refused.stderr
    assert not list((run.folder / "d").glob("*.minisig"))
    run("sign", "d/opencoti-release.json", "--key", "k.key", "--unlisted")
    assert "trust-no-keys" in run("verify", "d/opencoti-release.json", code=6).stderr


def test_a_development_signature_needs_to_be_told(run: Shell) -> None:
    done = run("sign", "d/opencoti-release.json", "--ephemeral", "--json")
    key = json.loads(done.stdout)["publicKey"]
    assert "one-time key" in done.stderr
    assert "development-key" in run("verify", "d/opencoti-release.json", "--pubkey", key, code=6).stderr
    run("verify", "d/opencoti-release.json", "--pubkey", key, "--allow-development")


def test_keys_and_passwords_from_the_environment_stay_there(run: Shell) -> None:
    key = SecretKey.generate()
    text = key.render("hush-hush", WEAK_KDF).decode()
    words = ("sign", "d/opencoti-release.json", "--unlisted")
    done = [
        run(*words, code=3, OPENCOTI_SIGNING_KEY=text),
        run(*words, code=3, OPENCOTI_SIGNING_KEY=text, OPENCOTI_SIGNING_PASSWORD="hush-wrong"),
        run(*words, OPENCOTI_SIGNING_KEY=text, OPENCOTI_SIGNING_PASSWORD="hush-hush"),
        run(*words, code=3, OPENCOTI_SIGNING_KEY=text[:-9]),
    ]
    for result in done:
        assert "hush" not in result.stdout + result.stderr
        assert text.split("\n")[1][:40] not in result.stdout + result.stderr
    assert "signing-password-missing" in done[0].stderr
    assert "signing-password-wrong" in done[1].stderr
    assert json.loads(run(*words, "--json", code=3).stdout)["error"] == "signing-key-missing"


@pytest.mark.parametrize(
    "words",
    [
        ("sign",),
        ("sign", "d/opencoti-release.json", "--ephemeral", "--key", "x"),
        ("sign", "d/opencoti-release.json", "--ephemeral", "--comment", "note"),
        ("sign", "d/opencoti-release.json", "--ephemeral", "--comment", "tag=c2"),
        ("sign", f"d/{MANIFEST_NAME}", "--ephemeral", "--sequence", "5"),
        ("verify", "d/opencoti-release.json", "--root", "x", "--pubkey", "y"),
        ("sums", "d", "--check", "--sign"),
        ("sums", "d", "--ephemeral"),
        ("root", "add-key"),
        ("root", "sign", "--key", "a", "--signature", "b"),
        ("nonsense",),
    ],
)
def test_wrong_usage_is_exit_code_2(run: Shell, words: tuple[str, ...]) -> None:
    run(*words, code=2)
    assert not list((run.folder / "d").glob("*.minisig"))
