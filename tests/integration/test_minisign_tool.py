"""Tools we did not write: minisign, sha256sum and shasum take what we make; we take what minisign makes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from opencoti.errors import OpencotiError
from opencoti.minisign import PublicKey, Signature, prehash, verify
from release.keys import SecretKey
from release.keysource import write_key_pair
from release.sums import write_sums
from tests.conftest import require
from tests.unit.release.samples import WEAK_KDF, comment_of, index_bytes, index_dict

DATA = index_bytes()
COMMENT = comment_of(index_dict())
PASSWORD = "correct horse"


@pytest.fixture(autouse=True)
def _minisign() -> None:
    require(shutil.which("minisign") is not None, "minisign is installed")


def tool(folder: Path, *words: str, typed: str = "", code: int = 0) -> str:
    done = subprocess.run(list(words), cwd=folder, input=typed, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def read(folder: Path, name: str) -> bytes:
    return (folder / name).read_bytes()


def check(folder: Path, key: PublicKey) -> str:
    signature = Signature.parse(read(folder, "f.minisig"), "of f")
    return verify(prehash(read(folder, "f")), signature, key, what="f").trusted_comment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "f").write_bytes(DATA)
    return tmp_path


def test_minisign_accepts_what_we_sign(folder: Path) -> None:
    key = SecretKey.generate()
    write_key_pair(folder / "k", key, None)
    (folder / "f.minisig").write_bytes(key.sign(prehash(DATA), COMMENT).render("by us"))
    said = tool(folder, "minisign", "-V", "-H", "-p", "k.pub", "-m", "f")
    assert f"Trusted comment: {COMMENT}\n" in said
    assert tool(folder, "minisign", "-V", "-Q", "-P", key.public.text, "-m", "f") == f"{COMMENT}\n"
    (folder / "f").write_bytes(DATA + b" ")
    tool(folder, "minisign", "-V", "-p", "k.pub", "-m", "f", code=1)


@pytest.mark.parametrize("password", [None, PASSWORD, "pässword"])
def test_minisign_signs_with_a_key_of_ours(folder: Path, password: str | None) -> None:
    key = SecretKey.generate()
    write_key_pair(folder / "k", key, password, limits=WEAK_KDF)
    tool(folder, "minisign", "-S", "-s", "k.key", "-m", "f", "-t", COMMENT, typed=f"{password}\n")
    assert check(folder, key.public) == COMMENT


def test_we_sign_with_a_key_of_minisign(folder: Path) -> None:
    tool(folder, "minisign", "-G", "-W", "-p", "m.pub", "-s", "m.key")
    key = SecretKey.parse(read(folder, "m.key"), "m.key", lambda: pytest.fail("no password"))
    assert key.public == PublicKey.parse(read(folder, "m.pub"), "m.pub")
    (folder / "f.minisig").write_bytes(key.sign(prehash(DATA), COMMENT).render("by us"))
    tool(folder, "minisign", "-V", "-p", "m.pub", "-m", "f")


def test_we_open_a_key_with_the_password_hash_that_minisign_makes(folder: Path) -> None:
    """It takes 1 GiB of memory and seconds, hence one test; the other way goes with less work above."""
    tool(folder, "minisign", "-G", "-p", "m.pub", "-s", "m.key", typed=f"{PASSWORD}\n{PASSWORD}\n")
    key = SecretKey.parse(read(folder, "m.key"), "m.key", lambda: PASSWORD)
    assert key.public == PublicKey.parse(read(folder, "m.pub"), "m.pub")


def test_we_accept_what_minisign_signs_but_not_its_legacy_form(folder: Path) -> None:
    tool(folder, "minisign", "-G", "-W", "-p", "m.pub", "-s", "m.key")
    key = PublicKey.parse(read(folder, "m.pub"), "m.pub")
    tool(folder, "minisign", "-S", "-s", "m.key", "-m", "f", "-c", "free text", "-t", "é ☃")
    assert check(folder, key) == "é ☃"
    tool(folder, "minisign", "-S", "-l", "-s", "m.key", "-m", "f")
    with pytest.raises(OpencotiError) as caught:
        check(folder, key)
    assert caught.value.error_id == "signature-legacy"


@pytest.mark.parametrize("program", ["sha256sum", "shasum"])
def test_checksum_tools_accept_our_list(folder: Path, program: str) -> None:
    require(shutil.which(program) is not None, f"{program} is installed")
    (folder / "b+c_1.llamafile").write_bytes(b"x" * 100_000)
    write_sums(folder)
    options = ["-a", "256"] if program == "shasum" else ["--strict"]
    assert tool(folder, program, *options, "-c", "SHA256SUMS") == "b+c_1.llamafile: OK\nf: OK\n"
    (folder / "f").write_bytes(b"other")
    tool(folder, program, *options, "-c", "SHA256SUMS", code=1)
