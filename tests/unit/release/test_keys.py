"""Secret keys: read, written, protected, and never shown."""

from __future__ import annotations

import base64
import dataclasses
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opencoti.errors import ConfigError, StorageError
from opencoti.minisign import Signature, prehash, verify
from release.keys import SENSITIVE, KdfLimits, SecretKey
from release.keysource import Surroundings, find_secret_key, read_public_key, write_key_pair
from tests.conftest import RecordedConsole
from tests.unit.release.samples import WEAK_KDF, result_or_known_error

# Made by `minisign -G -W` (0.11), for this test only.
PLAIN = (
    b"untrusted comment: minisign encrypted secret key\n"
    b"RWQAAEIyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAsysMMmqLQYTvAb20X7PjERTk3JN9uc0B"
    b"76KcNat3jzyioMAA7fdmK27NS1QVUQ+tPw0wX4MvX4I8AUBybX5FClzg65ppG06eAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
)
KEY = SecretKey.generate()
PASSWORD = "correct horse"
KNOWN = ("signing-key-malformed", "signing-password-wrong", "public-key-malformed")
ENCRYPTED = KEY.render(PASSWORD, WEAK_KDF)


def never() -> NoReturn:
    raise AssertionError("nobody should be asked")


def around(ask: object = None, **environ: str) -> Surroundings:
    return Surroundings(environ=environ, ask=ask)  # type: ignore[arg-type]


def refused(data: bytes, password: str = PASSWORD) -> str:
    with pytest.raises(ConfigError) as caught:
        SecretKey.parse(data, "sample", lambda: password)
    assert password not in str(caught.value) + caught.value.hint
    return caught.value.error_id


def test_what_minisign_made_is_read() -> None:
    key = SecretKey.parse(PLAIN, "sample", never)
    assert key.public.text == "RWSzKwwyaotBhG7NS1QVUQ+tPw0wX4MvX4I8AUBybX5FClzg65ppG06e"


@pytest.mark.parametrize("password", [None, "x", "pässword \u2603"])
def test_keys_survive_a_round_trip(password: str | None) -> None:
    data = KEY.render(password, WEAK_KDF)
    assert SecretKey.parse(data, "sample", lambda: password or never()) == KEY
    line = data.split(b"\n")[1]
    assert SecretKey.parse(line, "sample", lambda: password or never()) == KEY
    assert (KEY.seed in base64.b64decode(line)) is (password is None)


def test_two_encryptions_of_one_key_differ() -> None:
    assert KEY.render("x", WEAK_KDF) != KEY.render("x", WEAK_KDF)


@pytest.mark.parametrize(
    ("operations", "memory", "expected"),
    [
        (1 << 25, 1 << 30, (1 << 20, 1)),  # what minisign uses
        (524288, 16777216, (1 << 14, 1)),  # libsodium's "interactive"
        (32768, 1 << 20, (1 << 10, 1)),
        (1, 1 << 24, (1 << 10, 1)),
        (1 << 25, 1 << 24, (1 << 14, 64)),
    ],
)
def test_scrypt_parameters_are_those_of_libsodium(
    operations: int, memory: int, expected: tuple[int, int]
) -> None:
    assert KdfLimits(operations=operations, memory_bytes=memory).scrypt_cost == expected
    assert (SENSITIVE.operations, SENSITIVE.memory_bytes) == (33554432, 1073741824)


def test_a_wrong_password_is_told_from_a_damaged_file() -> None:
    assert refused(ENCRYPTED, "incorrect pony") == "signing-password-wrong"
    assert refused(ENCRYPTED[:-10]) == "signing-key-malformed"


@pytest.mark.parametrize("at", range(158))
def test_every_damaged_byte_of_a_key_is_found(at: int) -> None:
    """Of an encrypted key too, where work and memory are bounded before anything is derived."""
    for data in (KEY.render(None), ENCRYPTED):
        raw = bytearray(base64.b64decode(data.split(b"\n")[1]))
        raw[at] ^= 0x80
        damaged = base64.b64encode(bytes(raw))
        found = result_or_known_error(partial(SecretKey.parse, damaged, "sample", lambda: PASSWORD), *KNOWN)
        # Without a password salt and limits are not used; with one, several limits mean the same work.
        may_pass = 38 <= at < 54 if data is ENCRYPTED else 6 <= at < 54
        assert found == KEY if may_pass and found is not None else found is None


def test_a_key_cannot_ask_for_endless_work() -> None:
    raw = bytearray(base64.b64decode(ENCRYPTED.split(b"\n")[1]))
    raw[38:54] = b"\xff" * 16
    with pytest.raises(ConfigError) as caught:
        SecretKey.parse(base64.b64encode(bytes(raw)), "sample", lambda: PASSWORD)
    assert "more work" in caught.value.why


@settings(max_examples=200)
@given(st.integers(0, 270), st.integers(0, 40), st.binary(max_size=20))
def test_damaged_files_raise_known_errors_only(at: int, gone: int, new: bytes) -> None:
    data = KEY.render(None)
    for damaged in (data[:at] + new + data[at + gone :], new):
        result_or_known_error(partial(SecretKey.parse, damaged, "sample", lambda: "x"), *KNOWN)


def test_secrets_do_not_show() -> None:
    for text in (repr(KEY), str(KEY), repr([KEY]), repr(dataclasses.replace(KEY))):
        assert KEY.seed.hex() not in text
        assert repr(KEY.seed)[2:-1] not in text
        assert "seed" not in text


def test_signatures_verify() -> None:
    signature = KEY.sign(prehash(b"data"), "x=é")
    assert verify(prehash(b"data"), signature, KEY.public, what="f").trusted_comment == "x=é"
    assert Signature.parse(signature.render("y"), "z") == signature


def test_development_keys_are_marked_and_others_never_are() -> None:
    assert SecretKey.generate(is_development=True).public.is_development
    assert not any(SecretKey.generate().public.is_development for _ in range(50))


# --- where keys come from ---------------------------------------------------------------------------------


def test_the_file_wins_over_the_environment(tmp_path: Path, recorded: RecordedConsole) -> None:
    other = SecretKey.generate()
    secret, public = write_key_pair(tmp_path / "release", KEY, None)
    surroundings = around(OPENCOTI_SIGNING_KEY=other.render(None).decode())
    assert find_secret_key(secret, recorded.console, surroundings) == KEY
    assert find_secret_key(None, recorded.console, surroundings) == other
    assert read_public_key(str(public)) == KEY.public == read_public_key(KEY.public.text)
    assert recorded.text == ""


@pytest.mark.parametrize("change", [str, str.strip, lambda text: text.replace("\n", "\r\n") + "\n\n"])
def test_a_key_in_the_environment_may_lose_its_line_ends(change: object, recorded: RecordedConsole) -> None:
    text = change(ENCRYPTED.decode())  # type: ignore[operator]
    surroundings = around(OPENCOTI_SIGNING_KEY=text, OPENCOTI_SIGNING_PASSWORD=PASSWORD)
    assert find_secret_key(None, recorded.console, surroundings) == KEY


def test_the_password_comes_from_the_environment_or_from_a_terminal(recorded: RecordedConsole) -> None:
    text = ENCRYPTED.decode()
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return PASSWORD

    assert find_secret_key(None, recorded.console, around(ask, OPENCOTI_SIGNING_KEY=text)) == KEY
    assert len(asked) == 1
    with pytest.raises(ConfigError) as caught:
        find_secret_key(None, recorded.console, around(OPENCOTI_SIGNING_KEY=text))
    assert caught.value.error_id == "signing-password-missing"
    with pytest.raises(ConfigError) as caught:
        find_secret_key(None, recorded.console, around(OPENCOTI_SIGNING_KEY=" \n"))
    assert caught.value.error_id == "signing-key-missing"


def test_a_new_password_is_asked_for_twice() -> None:
    answers = iter(["one", "two", "", ""])
    surroundings = around(lambda _: next(answers))
    for error_id in ("signing-password-differs", "signing-password-missing"):
        with pytest.raises(ConfigError) as caught:
            surroundings.new_password()
        assert caught.value.error_id == error_id
    assert around(OPENCOTI_SIGNING_PASSWORD="three").new_password() == "three"


def test_an_empty_variable_is_as_good_as_none() -> None:
    """What GitHub Actions makes of a secret that does not exist."""
    with pytest.raises(ConfigError) as caught:
        around(OPENCOTI_SIGNING_PASSWORD="").password()
    assert caught.value.error_id == "signing-password-missing"


def test_key_files_are_private_and_never_overwritten(tmp_path: Path, recorded: RecordedConsole) -> None:
    secret, public = write_key_pair(tmp_path / "k", KEY, PASSWORD, limits=WEAK_KDF)
    assert secret.stat().st_mode & 0o777 == 0o600
    before = secret.read_bytes(), public.read_bytes()
    with pytest.raises(StorageError) as caught:
        write_key_pair(tmp_path / "k", SecretKey.generate(), None)
    assert caught.value.error_id == "key-exists"
    assert (secret.read_bytes(), public.read_bytes()) == before
    secret.chmod(0o644)
    find_secret_key(secret, recorded.console, around(OPENCOTI_SIGNING_PASSWORD=PASSWORD))
    assert "chmod 600" in recorded.text


@pytest.mark.parametrize("given", ["RWnope", "RW" + "é" * 54, "RW" + "A" * 54])
def test_a_public_key_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_public_key(given)
    assert caught.value.error_id == "public-key-malformed"
    with pytest.raises(StorageError):
        read_public_key("/does/not/exist.pub")
