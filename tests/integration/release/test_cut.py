"""A whole release on one machine: plan, stage, sign, publish to a folder, fetch it back, look again later."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from opencoti.errors import OpencotiError
from opencoti.hashing import sha256_file
from release.cli import build_parser
from release.keys import SecretKey
from release.keysource import write_key_pair
from release.publish_cli import run_publish
from release.remote.limits import Clock
from tests.conftest import RecordedConsole, require
from tests.fakes.checkouts import NAME, Checkout
from tests.fakes.github.server import GitHub
from tests.unit.release.samples import REPO, link, root_bytes


@dataclass
class Cutter:
    """A release engineer at a shell: runs commands in one checkout, with one key and one place to publish."""

    checkout: Checkout
    web: Path
    keys: Path
    key: SecretKey = field(default_factory=SecretKey.generate)

    def __post_init__(self) -> None:
        self.keys.mkdir()
        root_key = SecretKey.generate()
        signed = link(root_bytes(1, [root_key], [(self.key, None)]), [root_key])
        (self.keys / "root-1.json").write_bytes(signed.data)
        (self.keys / "root-1.json.minisig").write_bytes(signed.signatures)
        write_key_pair(self.keys.parent / "signing", self.key, None)

    @property
    def remote(self) -> tuple[str, ...]:
        return ("--remote", f"dir:{self.web}", "--root", str(self.keys))

    @property
    def signing(self) -> tuple[str, ...]:
        return ("--key", str(self.keys.parent / "signing.key"), "--root", str(self.keys))

    @property
    def client(self) -> tuple[str, ...]:
        return ("--from", f"dir:{self.web}", "--trust-root", str(self.keys / "root-1.json"))

    def run(self, *words: str | Path, code: int = 0) -> Any:
        """Run a command with `--json`; return what it printed."""
        recorded = self.checkout.recorded = RecordedConsole()
        recorded.console.as_json = True
        args = build_parser().parse_args([*map(str, words), "--json"])
        assert args.command(args, self.checkout.context) == code, recorded.text
        return json.loads(recorded.out.getvalue())

    def refused(self, *words: str | Path) -> str:
        with pytest.raises(OpencotiError) as caught:
            self.run(*words)
        return caught.value.error_id

    def plan(self, *words: str) -> Path:
        path = self.checkout.root / "build" / "plan.json"
        path.parent.mkdir(exist_ok=True)
        self.run("plan", *self.remote, *words)
        path.write_text(self.checkout.recorded.out.getvalue())
        return path

    def make(self, *words: str) -> Path:
        """Stage and sign; return the folder."""
        folder = Path(self.run("stage", "--plan", self.plan(*words))["folder"])
        self.run("provenance", folder, *self.signing)
        documents = [folder / "opencoti-release.json", *folder.glob("*.MANIFEST.json")]
        self.run("sign", *documents, *self.signing)
        self.run("sums", folder, "--sign", *self.signing)
        return folder

    def publish(self, folder: Path) -> None:
        """Publish into the folder of a web server; the pauses that GitHub needs pass at once."""
        words = ("--tag", folder.name, "--dir", folder, "--repo", REPO, "--to", f"dir:{self.web}")
        args = build_parser().parse_args(["publish", *map(str, words), "--root", str(self.keys)])
        assert run_publish(args, self.checkout.context, quick_clock()) == 0


def quick_clock() -> Clock:
    """Return a clock that moves by what is slept."""
    passed = [0.0]

    def sleep(seconds: float) -> None:
        passed[0] += seconds

    return Clock(monotonic=lambda: passed[0], sleep=sleep)


@pytest.fixture
def cutter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cutter:
    for name in [name for name in os.environ if name.startswith(("OPENCOTI_", "GITHUB_", "SOURCE_DATE"))]:
        monkeypatch.delenv(name)
    made = Cutter(checkout=Checkout(tmp_path / "checkout"), web=tmp_path / "web", keys=tmp_path / "roots")
    made.checkout.cut()
    return made


def check_words(cutter: Cutter, tag: str = "c1") -> tuple[str, ...]:
    return ("check", "--tag", tag, *cutter.client, "--no-try", "--deadline", "0")


def test_whole_cut_and_the_next_one(cutter: Cutter) -> None:
    folder = cutter.make()
    staged = {path.name: sha256_file(path) for path in folder.iterdir()}
    cutter.publish(folder)

    report = cutter.run(*check_words(cutter), "--dir", folder, "--latest")
    assert report["client"] | {"seconds": 0} == {
        "name": NAME,
        "sha256": staged[NAME],
        "size": (folder / NAME).stat().st_size,
        "transferredBytes": (folder / NAME).stat().st_size,
        "seconds": 0,
    }
    assert {item["name"]: item["sha256"] for item in report["assets"]} == {
        name: digest
        for name, digest in staged.items()
        if name not in ("NOTES.md", "SHA256SUMS") and not name.endswith(".minisig")
    }
    assert (report["sequence"], report["manifests"], report["comparedWithFolder"]) == (1, 1, 4)

    found = cutter.run("monitor", *cutter.client)
    assert [(item["name"], item["state"]) for item in found["findings"]] == [
        ("release", "ok"), ("expiry", "ok"), ("manifests", "ok"), ("assets", "ok"),
    ]  # fmt: skip

    again = cutter.run("plan", *cutter.remote, code=6)
    assert [item["error"] for item in again["problems"]] == ["plan-tag-released"]
    assert again["sequence"] == 2

    cutter.checkout.write("vendors/llamafile/OPENCOTI_TAG", "c2\n")
    cutter.checkout.commit_all()
    name = NAME.replace("-c1-", "-c2-")
    content = cutter.checkout.package(
        name, seed=9, versionString="opencoti-0.5.0-g0c1e570-c2", opencotiTag="c2"
    )
    cutter.checkout.prove_all(content, name)
    folder = cutter.make()
    before = (folder / "NOTES.md").read_text()
    assert "| new |" in before
    cutter.run("notes", folder, "--previous", cutter.checkout.root / "dist" / "release" / "c1")
    compared = (folder / "NOTES.md").read_text()
    assert "| same size |" in compared
    (folder / "NOTES.md").write_text(before)
    published = ("--previous", cutter.remote[1], "--root", cutter.keys)
    cutter.run("notes", folder, *published)
    assert (folder / "NOTES.md").read_text() == compared
    cutter.publish(folder)
    cutter.run("notes", folder, "--check", *published)  # the newest one is now this one, and no answer
    assert cutter.run(*check_words(cutter, "c2"), "--latest")["sequence"] == 2
    assert cutter.run(*check_words(cutter, "c1"))["sequence"] == 1
    assert cutter.refused(*check_words(cutter, "c1"), "--latest") == "release-not-latest"


def test_release_in_parts_is_one_file_to_the_client(cutter: Cutter) -> None:
    folder = cutter.make("--asset-limit", "200000", "--part-size", "131072")
    assert not (folder / NAME).exists()
    cutter.publish(folder)
    report = cutter.run(*check_words(cutter), "--dir", folder)
    content = (cutter.checkout.artifacts / NAME).read_bytes()
    assert (report["client"]["size"], report["client"]["sha256"]) == (
        len(content), sha256_file(cutter.checkout.artifacts / NAME),
    )  # fmt: skip
    assert sum(1 for item in report["assets"] if ".part" in item["name"]) == 4
    whole = b"".join(path.read_bytes() for path in sorted(folder.glob("*.part*")))
    assert whole == content  # `cat NAME.part* > NAME`
    assert "comes in 4 parts" in (folder / "NOTES.md").read_text()

    (folder / "SHA256SUMS.minisig").write_text("another signature")
    assert cutter.refused(*check_words(cutter), "--dir", folder) == "release-differs-from-folder"
    assert cutter.run("notes", folder, "--check")["changed"] is False
    text = (folder / "NOTES.md").read_text().replace("lane elf", "lane ape")
    (folder / "NOTES.md").write_text(text)
    assert cutter.refused("notes", folder, "--check") == "notes-outdated"
    assert (folder / "NOTES.md").read_text() == text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (NAME, "hash-mismatch"),
        (f"{NAME}.chunks", "chunks-mismatch"),
        (f"{NAME}.MANIFEST.json", "signature-mismatch"),
        (f"{NAME}.cdx.json", "asset-differs"),
        (f"{NAME}.smoke-cpu.json", "asset-differs"),
        (f"{NAME}.bench-cpu.json", "asset-differs"),
        ("plan.json", "asset-differs"),
        ("c1.intoto.jsonl", "asset-differs"),
        ("opencoti-release.json", "signature-mismatch"),
        ("SHA256SUMS", "signature-mismatch"),
    ],
)
def test_one_changed_byte_on_the_server_is_found_at_once(cutter: Cutter, name: str, expected: str) -> None:
    folder = cutter.make()
    cutter.publish(folder)
    for path in cutter.web.rglob(name):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.unlink()
        path.write_bytes(data)
    assert cutter.refused(*check_words(cutter)) == expected


def test_missing_asset_is_waited_for_until_the_deadline(cutter: Cutter) -> None:
    folder = cutter.make()
    cutter.publish(folder)
    for path in cutter.web.rglob(f"{NAME}.cdx.json"):
        path.unlink()
    assert cutter.refused(*check_words(cutter)) == "not-found"
    found = cutter.run("monitor", *cutter.client, "--quick", code=7)
    assert [item["error"]["error"] for item in found["findings"] if item["error"]] == ["not-found"]


def test_provenance_is_checked_by_ourselves_and_by_openssl(cutter: Cutter, tmp_path: Path) -> None:
    require(shutil.which("openssl") is not None, "openssl is installed")
    folder = cutter.make()
    assert cutter.run("provenance", folder, "--verify", "--root", cutter.keys)["subjects"] == 8
    pem = tmp_path / "key.pem"
    pem.write_text(cutter.run("provenance", "--public-key-pem", cutter.key.public.text)["pem"])
    envelope = json.loads((folder / "c1.intoto.jsonl").read_text())
    payload = base64.b64decode(envelope["payload"])
    kind = envelope["payloadType"].encode()
    (tmp_path / "message").write_bytes(b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload))
    (tmp_path / "signature").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    done = subprocess.run(
        ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", pem, "-rawin", "-in", tmp_path / "message",
         "-sigfile", tmp_path / "signature"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "Signature Verified Successfully\n"), done.stderr

    statement = json.loads(payload)
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert {item["name"]: item["digest"]["sha256"] for item in statement["subject"]}[NAME] == sha256_file(
        folder / NAME
    )
    dependencies = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert dependencies[0]["digest"] == {"gitCommit": cutter.checkout.commit}
    assert dependencies[1]["digest"]["gitCommit"] == "0c1e57098bba43ac29e6e3b677cdceebdd22334f"
    assert dependencies[1]["uri"] == "pkg:pypi/llama-cpp-python@0.3.36"
    assert statement["predicate"]["runDetails"]["builder"]["id"] == f"https://github.com/{REPO}/local-build"


def test_minisign_and_sha256sum_accept_the_folder(cutter: Cutter) -> None:
    require(shutil.which("minisign") is not None, "minisign is installed")
    folder = cutter.make()
    for name in ("opencoti-release.json", f"{NAME}.MANIFEST.json", "SHA256SUMS"):
        subprocess.run(
            ["minisign", "-V", "-P", cutter.key.public.text, "-m", folder / name],
            check=True, capture_output=True,
        )  # fmt: skip
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stdout.count(": OK\n")) == (0, 9)


@pytest.mark.parametrize("name", [NAME, "plan.json", f"{NAME}.cdx.json"])
def test_file_that_the_provenance_does_not_describe_is_refused(cutter: Cutter, name: str) -> None:
    folder = cutter.make()
    path = folder / name
    data = path.read_bytes()
    path.unlink()
    assert cutter.refused("provenance", folder, "--verify", "--root", cutter.keys) == "provenance-differs"
    path.write_bytes(data + b" ")
    assert cutter.refused("provenance", folder, "--verify", "--root", cutter.keys) == "provenance-differs"


def test_pins_are_flipped_to_the_release(cutter: Cutter) -> None:
    folder = cutter.make()
    digest = sha256_file(folder / NAME)
    line = f"{REPO} c1 {NAME} {digest}\n"
    cutter.checkout.write("opencoti/fetch/pin.txt", "# The engine.\nno release yet\n")
    words = ("pin", "--from", folder, "--root", str(cutter.keys))
    assert cutter.refused(*words, "--check") == "pins-outdated"
    diff = cutter.run(*words, "--diff")["diff"]
    shutil.copytree(cutter.checkout.root / "opencoti", cutter.checkout.root / "build" / "copy" / "opencoti")
    subprocess.run(
        ["git", "apply", "--include=opencoti/*", "-"], input=diff, text=True, check=True,
        cwd=cutter.checkout.root / "build" / "copy", env={**os.environ, "GIT_DIR": "/nonexistent"},
    )  # fmt: skip
    written = cutter.run(*words)["written"]
    assert [Path(path).relative_to(cutter.checkout.root).as_posix() for path in written] == [
        "opencoti/fetch/pin.txt", "vendors/pin/engine.txt", "vendors/llamafile/USED_TAGS",
    ]  # fmt: skip
    assert (cutter.checkout.root / "opencoti/fetch/pin.txt").read_text() == f"# The engine.\n{line}"
    assert (
        cutter.checkout.root / "build/copy/opencoti/fetch/pin.txt"
    ).read_text() == f"# The engine.\n{line}"
    assert (cutter.checkout.root / "vendors/pin/engine.txt").read_text().endswith(line)
    assert cutter.run(*words)["written"] == []
    planned = cutter.run("plan", *cutter.remote, code=3)  # an unused remote, and yet: the tag is used up
    assert [item["error"] for item in planned["problems"]] == ["plan-tree-dirty", "plan-tag-burned"]
    cutter.run(*words, "--check")


def test_pins_can_be_taken_from_what_was_published(cutter: Cutter) -> None:
    cutter.publish(cutter.make())
    found = cutter.run(
        "pin", "--from", f"dir:{cutter.web}", "--tag", "c1", "--repo", REPO, "--root", cutter.keys, "--diff"
    )  # fmt: skip
    assert f"+{REPO} c1 {NAME} " in found["diff"]
    words = ("pin", "--from", f"dir:{cutter.web}", "--tag", "c1", "--diff")
    assert cutter.refused(*words) == "trust-no-keys"


def test_staging_without_a_plan_makes_one_and_keeps_to_it(cutter: Cutter) -> None:
    first = cutter.run("stage", *cutter.remote)
    again = cutter.run("stage", *cutter.remote)
    assert (first["isNew"], again["isNew"]) == (True, False)
    assert first["planSha256"] == again["planSha256"]
    for words in (("--expires-days", "10"), ("--to", "dir:elsewhere")):
        other = cutter.run("stage", *cutter.remote, *words)
        assert (other["isNew"], other["planSha256"] == first["planSha256"]) == (True, False)


def test_github_is_asked_what_is_released(cutter: Cutter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases B32 and B35 at planning time, by the API that the publisher uses."""
    folder = cutter.make()
    with GitHub() as github:
        github.store.commits.add(cutter.checkout.commit)
        for name, value in github.environ.items():
            monkeypatch.setenv(name, value)
        remote = ("--remote", "github", "--root", str(cutter.keys))
        assert cutter.run("plan", *remote)["remote"]["tagState"] == "none"
        words = ("--tag", "c1", "--dir", folder, "--repo", REPO, "--root", cutter.keys, "--yes")
        args = build_parser().parse_args(["publish", *map(str, words)])
        assert run_publish(args, cutter.checkout.context, quick_clock()) == 0
        seen = cutter.run("plan", *remote, code=6)
        assert (seen["remote"]["tagState"], seen["remote"]["highestSequence"], seen["sequence"]) == (
            "published", 1, 2,
        )  # fmt: skip
        assert seen["remote"]["tagCommit"] == cutter.checkout.commit
        assert [item["error"] for item in seen["problems"]] == ["plan-tag-released"]
        server = github.environ["GITHUB_SERVER_URL"]
        report = cutter.run(
            "check", "--tag", "c1", "--from", server, "--dir", folder, "--no-try", "--trust-root",
            cutter.keys / "root-1.json", "--deadline", "0", "--latest",
        )  # fmt: skip
        assert (report["sequence"], len(report["assets"])) == (1, 9)
        assert github.shapes.breaches == []
