"""minisign files: what the tool itself made is accepted, and everything that differs in one bit is not."""

from __future__ import annotations

import base64
import io
from functools import partial

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from opencoti.errors import ConfigError, VerificationError
from opencoti.minisign import PublicKey, Signature, SignedBy, is_weak_point, prehash, prehash_stream, verify
from tests.unit.release.samples import result_or_known_error

# Made by minisign 0.11: `minisign -G -W`, `minisign -S -m f -t a=b`, and the same with `-l`.
FILE = b"hello\n"
PUBLIC = b"RWSzKwwyaotBhG7NS1QVUQ+tPw0wX4MvX4I8AUBybX5FClzg65ppG06e"
SIGNATURE = b"""untrusted comment: signature from minisign secret key
RUSzKwwyaotBhFe37goksJ1ZtConk9D3hjTR+tflG1YqpiM8BXNBIZZKFBoBSfmBRPXqhAORsyCkEf4+9vLXhigT27AQ3BjmUQo=
trusted comment: a=b
Uw1XWSg6420wS0JV3zDuZ+XrkCuzqdrN6zgMdLteYntVfkMDgYDWQzXP3PfHvXviol06O7Q9hAOMDr1+RW8QBw==
"""
LEGACY = b"""untrusted comment: signature from minisign secret key
RWSzKwwyaotBhELJSyE3HAdYxCOFPQ5++SmqpyR0QtvgG6N3tsdJoJ4TPYuXGbEK7UOKs0iYMy1M6NHhWf1xXNGU95hJGr/YBwY=
trusted comment: timestamp:1795972196\tfile:f
xECvaDBS358hFztyzLhJLeBPwY9LY67aYrzNmDMkEydpx9uoOZ2mxpx5BTsFrC4EXpg+B/6q4L4y3BM/DS8NCw==
"""
KEY = PublicKey.parse(PUBLIC, "sample")
FREE_TEXT = range(len(b"untrusted comment: "), SIGNATURE.index(b"\n"))

P = 2**255 - 19
ORDER_8 = (
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
)
SMALL_ORDER = [value.to_bytes(32, "little") for value in (0, 1, P - 1, P, P + 1)] + [
    bytes.fromhex(text) for text in ORDER_8
]


def check(data: bytes, signature: bytes, key: PublicKey = KEY) -> SignedBy:
    return verify(prehash(data), Signature.parse(signature, "sample"), key, what="f")


def refused(data: bytes, signature: bytes, key: PublicKey = KEY) -> str:
    with pytest.raises(VerificationError) as caught:
        check(data, signature, key)
    assert caught.value.exit_code == 6
    return caught.value.error_id


def test_what_minisign_signed_is_accepted() -> None:
    assert check(FILE, SIGNATURE) == SignedBy(key=KEY, trusted_comment="a=b")
    assert KEY.name == "84418B6A320C2BB3"


def test_files_survive_a_round_trip() -> None:
    assert Signature.parse(SIGNATURE, "x").render("signature from minisign secret key") == SIGNATURE
    assert PublicKey.parse(KEY.render(), "x") == KEY
    assert KEY.text.encode() == PUBLIC


def test_a_stream_gives_the_same_hash() -> None:
    data = bytes(range(256)) * 9000
    assert prehash_stream(io.BytesIO(data)) == prehash(data)


def test_every_flipped_bit_of_the_file_fails() -> None:
    for at in range(len(FILE)):
        for bit in range(8):
            data = bytearray(FILE)
            data[at] ^= 1 << bit
            assert refused(bytes(data), SIGNATURE) == "signature-mismatch"


def test_every_flipped_bit_of_the_signature_fails() -> None:
    """Case B27. The text of the untrusted comment is signed by nobody, and changes nothing that is used."""
    known = {
        "signature-malformed",
        "signature-legacy",
        "signature-key-unknown",
        "signature-mismatch",
        "signature-comment-forged",
    }
    failed: set[str] = set()
    for at in range(len(SIGNATURE)):
        for bit in range(8):
            damaged = bytearray(SIGNATURE)
            damaged[at] ^= 1 << bit
            try:
                found = check(FILE, bytes(damaged))
            except VerificationError as error:
                failed.add(error.error_id)
            else:
                assert at in FREE_TEXT
                assert found == SignedBy(key=KEY, trusted_comment="a=b")
    assert failed == known


def test_every_removed_or_doubled_byte_fails() -> None:
    for at in range(len(SIGNATURE)):
        if at not in FREE_TEXT and at + 1 not in FREE_TEXT:  # a second blank before the text is text too
            for damaged in (
                SIGNATURE[:at] + SIGNATURE[at + 1 :],
                SIGNATURE[: at + 1] + SIGNATURE[at:],
                SIGNATURE[:at],
            ):
                with pytest.raises(VerificationError):
                    check(FILE, damaged)


def test_the_legacy_form_is_refused() -> None:
    assert refused(FILE, LEGACY) == "signature-legacy"


def test_a_signature_of_another_file_is_refused() -> None:
    assert refused(b"hello\r\n", SIGNATURE) == "signature-mismatch"


def test_another_key_with_the_same_id_is_refused() -> None:
    """Case B29: the id is no proof."""
    other = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    assert refused(FILE, SIGNATURE, PublicKey(key_id=KEY.key_id, raw=other)) == "signature-mismatch"
    assert refused(FILE, SIGNATURE, PublicKey(key_id=b"12345678", raw=KEY.raw)) == "signature-key-unknown"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n" * 5,
        SIGNATURE + b"\n",
        SIGNATURE + b"x",
        SIGNATURE + SIGNATURE,
        SIGNATURE[:-1],
        SIGNATURE.replace(b"\n", b"\r\n"),
        SIGNATURE.replace(b"trusted comment: a", b"trusted comment:a"),
        SIGNATURE.replace(b"a=b", b"a=\0b"),
        SIGNATURE.replace(b"a=b", b"a=\xff"),
        SIGNATURE.replace(b"a=b", b"a=\x1b[2J"),
        SIGNATURE.replace(b"a=b", "a=\u202eb".encode()),
        SIGNATURE.replace(b"UQo=", b"UQp="),  # the same bytes in another spelling
        SIGNATURE.replace(b"UQo=", b"UQo"),
        SIGNATURE.replace(b"Uw1X", b"Uw1X "),
        SIGNATURE.replace(b"a=b", b"a" * 11_000),
        b"\xef\xbb\xbf" + SIGNATURE,
    ],
)
def test_files_that_are_not_exactly_four_good_lines_are_refused(data: bytes) -> None:
    assert refused(FILE, data) == "signature-malformed"


@pytest.mark.parametrize("raw", SMALL_ORDER + [key[:31] + bytes([key[31] | 0x80]) for key in SMALL_ORDER])
def test_keys_under_which_anybody_can_sign_are_refused(raw: bytes) -> None:
    """Case B29: a zero slot is one of them."""
    assert is_weak_point(raw)
    with pytest.raises(ConfigError) as caught:
        PublicKey.parse(base64.b64encode(b"Ed" + KEY.key_id + raw), "sample")
    assert caught.value.error_id == "public-key-malformed"


def test_the_library_would_accept_a_forged_signature_under_such_a_key() -> None:
    """Why the check is there: neutral element as key and as R, zero as S."""
    neutral = (1).to_bytes(32, "little")
    forged = neutral + bytes(32)
    Ed25519PublicKey.from_public_bytes(neutral).verify(forged, b"any message")
    signature = Signature(key_id=KEY.key_id, signature=forged, trusted_comment="x", global_signature=forged)
    key = PublicKey(key_id=KEY.key_id, raw=neutral)
    assert refused(FILE, signature.render("x"), key) == "signature-mismatch"


def test_points_off_the_curve_are_refused_and_real_keys_are_not() -> None:
    assert is_weak_point((2).to_bytes(32, "little"))
    assert is_weak_point(b"\xff" * 32)
    assert is_weak_point(b"")
    assert not is_weak_point(KEY.raw)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        PUBLIC[:-1],
        PUBLIC + b"A",
        PUBLIC + b"\n\n",
        PUBLIC + b"\nmore",
        b" " + PUBLIC,
        b"RU" + PUBLIC[2:],
        base64.b64encode(bytes(42)),
        base64.b64encode(b"Ed" + bytes(8) + KEY.raw),
        b"untrusted comment: x\n",
        b"untrusted comment: x\n" + PUBLIC + b"\nmore",
        b"untrusted comment: \xff\n" + PUBLIC,
        b"A" * 5000,
    ],
)
def test_files_that_are_no_public_key_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        PublicKey.parse(data, "sample")
    assert caught.value.error_id == "public-key-malformed"
    assert caught.value.exit_code == 3


@settings(max_examples=400)
@given(st.integers(0, len(SIGNATURE)), st.integers(0, 80), st.binary(max_size=40))
def test_damaged_files_raise_known_errors_only(at: int, gone: int, new: bytes) -> None:
    for data in (SIGNATURE[:at] + new + SIGNATURE[at + gone :], new, new + SIGNATURE):
        for parse in (Signature.parse, PublicKey.parse):
            known = "signature-malformed", "signature-legacy", "public-key-malformed"
            result_or_known_error(partial(parse, data, "sample"), *known)


@settings(max_examples=300)
@given(st.text(max_size=60))
def test_any_comment_is_signed_text_or_refused(text: str) -> None:
    data = SIGNATURE.decode().replace("a=b", text).encode("utf-8", "surrogatepass")
    if text == "a=b":
        return
    assert refused(FILE, data) in {"signature-malformed", "signature-comment-forged"}
