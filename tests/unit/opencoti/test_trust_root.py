"""Roots: what a valid list of keys is, and the walk from one to the next."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opencoti.errors import ConfigError, OpencotiError, VerificationError
from opencoti.minisign import PublicKey
from opencoti.trust.chain import RootLink, TrustedRoot, anchor, walk
from opencoti.trust.document import dump_root, load_root
from opencoti.trust.keys import only_key, open_signed
from opencoti.trust.shipped import shipped_root
from release.keys import SecretKey
from tests.unit.release.samples import link, result_or_known_error, root_bytes, sign

A, B, C, D = (SecretKey.generate() for _ in range(4))
OLD, NEW, THIRD = (SecretKey.generate() for _ in range(3))
DATA = b"some bytes"


def changed(**changes: Any) -> bytes:
    return json.dumps(json.loads(root_bytes(1, [A, B], [(OLD, None)], 2)) | changes).encode()


def walk_refused(root: TrustedRoot, *links: RootLink) -> OpencotiError:
    with pytest.raises(OpencotiError) as caught:
        walk(root, links)
    return caught.value


# --- the document -----------------------------------------------------------------------------------------


def test_a_root_survives_a_round_trip_with_unknown_fields() -> None:
    data = changed(future={"a": 1})
    assert json.loads(dump_root(load_root(data, "x"))) == json.loads(data)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"threshold": 0}, "threshold"),
        ({"threshold": 3}, "never reach"),
        ({"threshold": True}, "threshold"),
        ({"version": -1}, "version"),
        ({"version": 0}, "has no keys"),
        ({"version": "1"}, "version"),
        ({"rootKeys": []}, "never reach"),
        ({"rootKeys": [A.public.text, A.public.text]}, "stands twice"),
        ({"rootKeys": [A.public.text, OLD.public.text]}, "stands twice"),
        ({"rootKeys": [A.public.text, ""]}, "rootKeys"),
        ({"rootKeys": [A.public.text, None]}, "rootKeys"),
        ({"signingKeys": [{"key": ""}]}, "signingKeys"),
        ({"signingKeys": [{"key": "RW" + "A" * 54}]}, "not an Ed25519 key"),
        ({"signingKeys": [{"key": PublicKey(key_id=bytes(8), raw=OLD.public.raw).text}]}, "empty slot"),
        ({"signingKeys": [{"key": PublicKey(key_id=b"12345678", raw=bytes(32)).text}]}, "weak key"),
        ({"signingKeys": [{"key": NEW.public.text, "lastSequence": -1}]}, "lastSequence"),
        ({"signingKeys": [{"key": NEW.public.text, "lastSequence": "7"}]}, "lastSequence"),
        ({"signingKeys": [{"key": SecretKey.generate(is_development=True).public.text}]}, "one-time"),
        ({"product": "../x"}, "product"),
    ],
)
def test_roots_that_could_trust_the_wrong_thing_are_refused(changes: dict[str, Any], why: str) -> None:
    """Case B29: an empty slot is no key, and the same key does not count twice."""
    with pytest.raises(ConfigError) as caught:
        load_root(changed(**changes), "x")
    assert caught.value.error_id == "root-malformed"
    assert why in caught.value.why


def test_one_key_under_two_ids_is_refused() -> None:
    """Two signatures by one key are not two signers."""
    twin = PublicKey(key_id=b"12345678", raw=A.public.raw)
    with pytest.raises(ConfigError, match="stands twice"):
        load_root(changed(rootKeys=[A.public.text, twin.text]), "x")


@settings(max_examples=200)
@given(st.integers(0, 600), st.integers(0, 60), st.binary(max_size=20))
def test_damaged_roots_raise_known_errors_only(at: int, gone: int, new: bytes) -> None:
    data = changed()
    for damaged in (data[:at] + new + data[at + gone :], new):
        known = "json-malformed", "root-malformed", "root-schema-unknown"
        result_or_known_error(partial(load_root, damaged, "x"), *known)


# --- lists of keys ----------------------------------------------------------------------------------------


def test_either_listed_key_verifies_and_a_third_does_not() -> None:
    """Case B29."""
    root = anchor(root_bytes(1, [A], [(OLD, None), (NEW, None)]), "x")
    for key in (OLD, NEW):
        assert open_signed(DATA, sign(DATA, key, "x"), keys=root, what="f").key.public == key.public
    with pytest.raises(VerificationError) as caught:
        open_signed(DATA, sign(DATA, THIRD, "x"), keys=root, what="f")
    assert caught.value.error_id == "signature-key-unknown"


def test_a_root_key_signs_no_release() -> None:
    root = anchor(root_bytes(1, [A], [(NEW, None)]), "x")
    with pytest.raises(VerificationError) as caught:
        open_signed(DATA, sign(DATA, A, "x"), keys=root, what="f")
    assert caught.value.error_id == "signature-key-unknown"


def test_an_empty_list_verifies_nothing() -> None:
    """Case B29."""
    root = anchor(root_bytes(1, [A], []), "x")
    with pytest.raises(VerificationError) as caught:
        open_signed(DATA, sign(DATA, NEW, "x"), keys=root, what="f")
    assert caught.value.error_id == "trust-no-keys"
    assert caught.value.exit_code == 6


def test_the_root_before_the_first_release_verifies_nothing_and_says_what_to_do() -> None:
    root = shipped_root()
    if root.version > 0:
        pytest.skip("a root with keys ships")
    with pytest.raises(VerificationError) as caught:
        open_signed(DATA, sign(DATA, NEW, "x"), keys=root, what="f")
    assert caught.value.error_id == "trust-no-keys"
    assert "release root new" in caught.value.hint
    first = link(root_bytes(1, [A], [(NEW, None)]), [A])
    assert walk_refused(root, first).error_id == "trust-no-keys"


def test_a_development_key_is_taken_only_when_told() -> None:
    key = SecretKey.generate(is_development=True)
    with pytest.raises(VerificationError) as caught:
        only_key(key.public)
    assert caught.value.error_id == "development-key"
    keys = only_key(key.public, allow_development=True)
    assert open_signed(DATA, sign(DATA, key, "x"), keys=keys, what="f").data == DATA
    with pytest.raises(VerificationError) as caught:
        open_signed(DATA, sign(DATA, key, "x"), keys=anchor(root_bytes(1, [A], [(NEW, None)]), "x"), what="f")
    assert "development build" in caught.value.hint


# --- the walk ---------------------------------------------------------------------------------------------

ONE = anchor(root_bytes(1, [A, B, C], [(OLD, None)], 2), "root 1")
TWO = root_bytes(2, [B, C, D], [(OLD, 7), (NEW, None)], 2)
THREE = root_bytes(3, [C, D], [(NEW, None)], 2)


def test_a_client_from_last_year_follows_link_by_link() -> None:
    root = walk(ONE, [link(TWO, [B, C]), link(THREE, [C, D])])
    assert root.version == 3
    assert [key.public for key in root.keys] == [NEW.public]
    assert walk(ONE, []) is ONE
    two = walk(ONE, [link(TWO, [A, B, D])])
    assert [(key.public, key.last_sequence) for key in two.keys] == [(OLD.public, 7), (NEW.public, None)]


@pytest.mark.parametrize(
    "signers",
    [
        [],
        [B],
        [B, B],
        [A, C],  # enough of the old root, one of the new
        [C, D],  # enough of the new root, one of the old
        [A, D],
        [OLD, NEW],
    ],
)
def test_too_few_signers_of_either_root_are_refused(signers: list[SecretKey]) -> None:
    assert walk_refused(ONE, link(TWO, signers)).error_id == "root-threshold"


def test_a_gap_a_repetition_and_a_step_back_are_refused() -> None:
    """The bytes are refused by number even where enough old keys signed them."""
    four = root_bytes(3, [B, C], [], 2)
    assert walk_refused(ONE, link(four, [B, C], "root-2.json")).error_id == "root-version"
    again = root_bytes(1, [B, C], [], 2)
    assert walk_refused(ONE, link(again, [B, C], "root-2.json")).error_id == "root-version"
    assert walk_refused(ONE, link(four, [B, C])).error_id == "root-comment"


def test_a_root_of_another_product_is_refused() -> None:
    other = json.dumps(json.loads(TWO) | {"product": "other"}).encode()
    assert walk_refused(ONE, link(other, [B, C])).error_id == "root-version"


def test_signatures_by_strangers_are_not_counted_and_do_no_harm() -> None:
    assert walk(ONE, [link(TWO, [THIRD, B, C])]).version == 2


def test_the_old_root_speaks_before_the_new_one_is_parsed() -> None:
    """Case B27: bad signature and broken JSON reports the signature."""
    assert walk_refused(ONE, RootLink(data=b"{", signatures=link(TWO, [B, C]).signatures)).error_id == (
        "signature-mismatch"
    )


def test_every_flipped_byte_of_a_root_fails() -> None:
    good = link(TWO, [B, C])
    for at in range(len(TWO)):
        data = TWO[:at] + bytes([TWO[at] ^ 1]) + TWO[at + 1 :]
        error = walk_refused(ONE, RootLink(data=data, signatures=good.signatures))
        assert error.error_id == "signature-mismatch"


@pytest.mark.parametrize("tail", [b"\n", b"x", b"untrusted comment: x\n"])
def test_a_signature_file_with_remains_is_refused(tail: bytes) -> None:
    good = link(TWO, [B, C])
    bad = RootLink(data=good.data, signatures=good.signatures + tail)
    assert walk_refused(ONE, bad).error_id == "signature-malformed"


def test_too_many_signatures_are_refused() -> None:
    good = link(TWO, [B, C])
    bad = RootLink(data=good.data, signatures=good.signatures * 33)
    assert walk_refused(ONE, bad).error_id == "signature-malformed"
