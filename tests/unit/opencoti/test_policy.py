"""What was asked against what is signed: every way in which a good signature is not good enough."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opencoti.errors import OpencotiError, VerificationError
from opencoti.policy import Asked, Platform, VerifiedIndex, VerifiedManifest, verify_index, verify_manifest
from opencoti.trust.keys import TrustedKeys, only_key
from opencoti.trust.memory import Observation, Strength, TrustState, merge
from release.keys import SecretKey
from tests.conftest import ROOT as ROOT_FOLDER
from tests.unit.release.samples import (
    ARTIFACT,
    EXPIRES,
    MANIFEST,
    MANIFEST_COMMENT,
    MANIFEST_NAME,
    NOW,
    REPO,
    TAG,
    comment_of,
    index_dict,
    sign,
    signed_index,
    trusted_root,
)

KEY, OLD = SecretKey.generate(), SecretKey.generate()
ROOT = trusted_root(KEY)
ASKED = Asked(repo=REPO)
NOTHING = TrustState()
SHA256 = json.loads(MANIFEST)["sha256"]
LINUX = Platform(os="linux", arch="x86_64")
INDEX, INDEX_SIGNATURE = signed_index(KEY)
MANIFEST_SIGNATURE = sign(MANIFEST, KEY, MANIFEST_COMMENT)


def index(
    pair: tuple[bytes, bytes] = (INDEX, INDEX_SIGNATURE),
    *,
    asked: Asked = ASKED,
    root: TrustedKeys = ROOT,
    state: TrustState = NOTHING,
    **more: Any,
) -> VerifiedIndex:
    return verify_index(*pair, asked=asked, root=root, state=state, **{"now": NOW, **more})


def manifest(
    pair: tuple[bytes, bytes] = (MANIFEST, MANIFEST_SIGNATURE),
    *,
    asked: Asked = ASKED,
    root: TrustedKeys = ROOT,
    state: TrustState = NOTHING,
    file: str = MANIFEST_NAME,
    **more: Any,
) -> VerifiedManifest:
    return verify_manifest(*pair, file=file, asked=asked, root=root, state=state, **more)


def refusal(error: pytest.ExceptionInfo[VerificationError]) -> str:
    assert error.value.exit_code == 6
    return error.value.error_id


def index_refused(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(VerificationError) as caught:
        index(*args, **kwargs)
    return refusal(caught)


def manifest_refused(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(VerificationError) as caught:
        manifest(*args, **kwargs)
    return refusal(caught)


def state_after(*observations: Observation) -> TrustState:
    state = TrustState()
    for observation in observations:
        state = merge(state, observation)
    return state


def test_what_decides_is_there_before_any_parser_is_loaded() -> None:
    heavy = ("pydantic", "cryptography", "httpx", "platformdirs")
    code = f"import sys, opencoti.policy, opencoti.state; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT_FOLDER, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


# --- the index --------------------------------------------------------------------------------------------


def test_what_was_asked_and_signed_passes() -> None:
    found = index(asked=replace(ASKED, tag=TAG))
    assert found.index.sequence == 5
    assert found.data == INDEX
    assert found.key.public == KEY.public
    assert found.strength is Strength.SIGNATURE
    assert found.warnings == ()
    assert found.observation.seen is not None
    assert found.observation.seen.sequence == 5


def test_extra_signed_fields_pass_and_values_survive_as_they_were_written() -> None:
    """Case B27."""
    found = index(signed_index(KEY, future={"small": 1e-05, "text": "é"}))
    assert found.index.model_dump()["future"] == {"small": 1e-05, "text": "é"}
    assert b"1e-05" in found.data


@pytest.mark.parametrize("spelling", [{"indent": 1}, {"sort_keys": True}, {"separators": (",", ":")}])
def test_the_same_content_in_another_spelling_fails(spelling: dict[str, Any]) -> None:
    """Case B27."""
    again = json.dumps(json.loads(INDEX), **spelling).encode()
    assert index_refused((again, INDEX_SIGNATURE)) == "signature-mismatch"


def test_a_bad_signature_is_reported_before_broken_json() -> None:
    """Case B27."""
    assert index_refused((b"{", INDEX_SIGNATURE)) == "signature-mismatch"
    assert index_refused((b'{"a": 1, "a": 2}', INDEX_SIGNATURE)) == "signature-mismatch"
    assert index_refused((b"{", sign(b"{", OLD, comment_of(index_dict())))) == "signature-key-unknown"


def test_the_comment_is_reported_before_broken_json() -> None:
    comment = comment_of(index_dict(), tag="c9")
    assert index_refused((b"{", sign(b"{", KEY, comment)), asked=replace(ASKED, tag=TAG)) == "wrong-tag"
    with pytest.raises(OpencotiError) as caught:
        index((b"{", sign(b"{", KEY, comment_of(index_dict()))))
    assert caught.value.error_id == "json-malformed"


def test_every_flipped_byte_of_the_index_fails() -> None:
    """Case B27."""
    for at in range(len(INDEX)):
        data = INDEX[:at] + bytes([INDEX[at] ^ 0x20]) + INDEX[at + 1 :]
        assert index_refused((data, INDEX_SIGNATURE)) == "signature-mismatch"


@pytest.mark.parametrize(
    ("asked", "error_id"),
    [
        (replace(ASKED, repo="someone/else"), "wrong-repo"),
        (replace(ASKED, product="other"), "wrong-product"),
        (replace(ASKED, tag="c2"), "wrong-tag"),
        (replace(ASKED, sha256="0" * 64), "not-in-index"),
        (replace(ASKED, require=Strength.ATTESTATION), "proof-too-weak"),
    ],
)
def test_another_release_than_the_one_asked_for_is_refused(asked: Asked, error_id: str) -> None:
    assert index_refused(asked=asked) == error_id


@pytest.mark.parametrize(
    ("changes", "error_id"),
    [
        ({"file": "other.json"}, "wrong-file"),
        ({"file": MANIFEST_NAME}, "wrong-file"),
        ({"sequence": None}, "comment-incomplete"),
        ({"expires": None}, "comment-incomplete"),
        ({"tag": None}, "comment-incomplete"),
        ({"version": None}, "comment-incomplete"),
        ({"repo": None}, "comment-incomplete"),
        ({"sequence": "6"}, "index-contradicts-comment"),
        ({"expires": "2027-01-01T00:00:00Z"}, "index-contradicts-comment"),
        ({"tag": "c2"}, "index-contradicts-comment"),
        ({"version": "opencoti-1-c1"}, "index-contradicts-comment"),
        ({"sequence": "05"}, "comment-malformed"),
    ],
)
def test_comments_that_do_not_fit_the_index_are_refused(changes: dict[str, Any], error_id: str) -> None:
    comment = comment_of(index_dict(), **changes)
    assert index_refused((INDEX, sign(INDEX, KEY, comment))) == error_id


def test_a_comment_of_minisign_itself_is_no_release() -> None:
    comment = "timestamp:1795972196\tfile:opencoti-release.json\thashed"
    assert index_refused((INDEX, sign(INDEX, KEY, comment))) == "comment-malformed"


def test_a_stale_mirror_is_found_out_and_going_back_must_be_asked_for() -> None:
    state = state_after(index(signed_index(KEY, sequence=6)).observation)
    assert index_refused(state=state) == "index-rollback"
    assert index(state=state, asked=replace(ASKED, allow_downgrade=True)).index.sequence == 5
    assert index(signed_index(KEY, sequence=7), state=state).index.sequence == 7


def test_two_indexes_of_one_sequence_are_refused() -> None:
    state = state_after(index().observation)
    assert index_refused(signed_index(KEY, planSha256="f" * 64), state=state) == "index-equivocation"
    assert index(state=state).index.sequence == 5


def test_nothing_is_remembered_by_verifying() -> None:
    state = TrustState()
    index(state=state)
    assert state == TrustState()


@pytest.mark.parametrize("late_s", [0, 1, 86400 * 365])
def test_a_frozen_index_is_an_error_or_a_warning(late_s: int) -> None:
    now = index().index.expires_at + timedelta(seconds=late_s)
    assert index_refused(now=now) == "index-expired"
    warned = index(now=now, asked=replace(ASKED, on_expired="warn"))
    assert EXPIRES in warned.warnings[0]


def test_an_index_is_fresh_until_its_last_second() -> None:
    assert index(now=index().index.expires_at - timedelta(seconds=1)).warnings == ()


def test_a_pin_needs_neither_ratchet_nor_expiry() -> None:
    state = state_after(index(signed_index(KEY, sequence=6)).observation)
    late = index().index.expires_at + timedelta(days=900)
    found = index(state=state, now=late, asked=replace(ASKED, sha256=SHA256))
    assert found.index.sequence == 5
    assert found.warnings == ()


@pytest.mark.parametrize(("last", "error_id"), [(4, "signing-key-retired"), (0, "signing-key-retired")])
def test_a_retired_key_is_accepted_up_to_its_sequence(last: int, error_id: str) -> None:
    """Case B29."""
    assert index_refused(root=trusted_root((KEY, last), OLD)) == error_id
    assert index_refused(root=trusted_root((KEY, last), OLD), asked=replace(ASKED, sha256=SHA256)) == error_id
    assert index(root=trusted_root((KEY, 5), OLD)).index.sequence == 5


def test_after_a_rotation_the_old_key_cannot_bring_clients_back() -> None:
    state = state_after(
        index(signed_index(OLD, sequence=5), root=trusted_root(OLD)).observation,
        index(signed_index(KEY, sequence=6), root=trusted_root((OLD, 5), KEY)).observation,
    )
    assert index_refused(signed_index(OLD, sequence=5), root=trusted_root((OLD, 5), KEY), state=state) == (
        "index-rollback"
    )


def test_the_strength_of_proof_is_never_silently_lowered() -> None:
    state = state_after(index(proof=Strength.ATTESTATION).observation)
    assert index_refused(state=state) == "proof-weaker-than-before"
    assert index(state=state, proof=Strength.ATTESTATION).strength is Strength.ATTESTATION
    assert index(state=state, asked=replace(ASKED, allow_weaker=True)).strength is Strength.SIGNATURE
    strict = replace(ASKED, allow_weaker=True, require=Strength.ATTESTATION)
    assert index_refused(state=state, asked=strict) == "proof-too-weak"


def test_a_development_build_is_verified_only_with_its_own_key() -> None:
    key = SecretKey.generate(is_development=True)
    assert index_refused(signed_index(key)) == "signature-key-unknown"
    told = only_key(key.public, allow_development=True)
    assert index(signed_index(key), root=told).index.sequence == 5


@settings(max_examples=150)
@given(st.binary(max_size=60), st.binary(max_size=200), st.text(max_size=80))
def test_any_bytes_raise_known_errors_only(data: bytes, signature: bytes, comment: str) -> None:
    pairs = [(data, signature), (INDEX, signature)]
    if comment.isprintable():
        pairs.append((data, sign(data, KEY, comment)))
    for pair in pairs:
        for verify in (index, manifest):
            with pytest.raises(OpencotiError):
                verify(pair)


# --- the manifest -----------------------------------------------------------------------------------------


def test_a_manifest_that_the_index_lists_passes() -> None:
    found = manifest(index=index(), asked=replace(ASKED, platform=LINUX, artifact=ARTIFACT))
    assert found.manifest.name == ARTIFACT
    assert found.data == MANIFEST
    assert found.observation.seen is None


def test_a_manifest_is_tied_to_a_release_by_tag_or_pin_too() -> None:
    assert manifest(asked=replace(ASKED, tag=TAG)).manifest.sha256 == SHA256
    assert manifest(asked=replace(ASKED, sha256=SHA256)).manifest.sha256 == SHA256
    assert manifest_refused() == "manifest-unanchored"


def test_a_manifest_that_the_index_does_not_list_is_refused() -> None:
    other = MANIFEST.replace(b'"cpuOnly": true', b'"cpuOnly": false')
    assert other != MANIFEST
    assert manifest_refused((other, sign(other, KEY, MANIFEST_COMMENT)), index=index()) == "not-in-index"


def test_the_index_must_list_the_same_artifact() -> None:
    document = index_dict()
    document["artifacts"][0]["size"] += 1
    lying = index(signed_index(KEY, artifacts=document["artifacts"]))
    assert manifest_refused(index=lying) == "not-in-index"


def test_the_signature_of_another_file_fails() -> None:
    """Case B29."""
    assert manifest_refused((MANIFEST, INDEX_SIGNATURE), index=index()) == "signature-mismatch"
    assert index_refused((MANIFEST, MANIFEST_SIGNATURE)) == "wrong-file"


@pytest.mark.parametrize(
    ("old", "new", "error_id"),
    [
        (f"tag={TAG}", "tag=c2", "wrong-tag"),
        (f"file={MANIFEST_NAME}", "file=other.MANIFEST.json", "wrong-file"),
        ("product=opencoti", "product=other", "wrong-product"),
        ("version=opencoti-0.5.0", "version=opencoti-0.6.0", "manifest-contradicts-comment"),
        (f"file={MANIFEST_NAME}", f"file={MANIFEST_NAME} sequence=5", "comment-malformed"),
    ],
)
def test_comments_that_do_not_fit_the_manifest_are_refused(old: str, new: str, error_id: str) -> None:
    pair = MANIFEST, sign(MANIFEST, KEY, MANIFEST_COMMENT.replace(old, new))
    assert manifest_refused(pair, asked=replace(ASKED, tag=TAG)) == error_id
    if error_id != "wrong-tag":
        assert manifest_refused(pair, index=index()) == error_id


def test_a_manifest_offered_under_another_name_is_refused() -> None:
    name = "opencoti-llamafile-other.MANIFEST.json"
    assert manifest_refused(asked=replace(ASKED, tag=TAG), file=name) == "wrong-file"
    comment = MANIFEST_COMMENT.replace(MANIFEST_NAME, name)
    pair = MANIFEST, sign(MANIFEST, KEY, comment)
    assert manifest_refused(pair, asked=replace(ASKED, tag=TAG), file=name) == "manifest-contradicts-comment"


@pytest.mark.parametrize(
    ("changes", "error_id"),
    [
        ({"platform": Platform(os="linux", arch="aarch64")}, "wrong-platform"),
        ({"platform": Platform(os="windows", arch="x86_64")}, "wrong-platform"),
        ({"artifact": "other.llamafile"}, "wrong-artifact"),
        ({"sha256": "0" * 64}, "wrong-artifact"),
        ({"require": Strength.ATTESTATION}, "proof-too-weak"),
    ],
)
def test_another_artifact_than_the_one_asked_for_is_refused(changes: dict[str, Any], error_id: str) -> None:
    assert manifest_refused(asked=replace(ASKED, tag=TAG, **changes)) == error_id


def test_a_retired_key_needs_an_index_or_a_pin_to_say_which_release_it_signed() -> None:
    retired, revoked = trusted_root((KEY, 5), OLD), trusted_root((KEY, 0), OLD)
    by_tag, by_pin = replace(ASKED, tag=TAG), replace(ASKED, sha256=SHA256)
    assert manifest_refused(root=retired, asked=by_tag) == "signing-key-retired"
    assert manifest(root=retired, asked=by_pin).manifest.sha256 == SHA256
    assert manifest(root=retired, index=index(root=retired)).manifest.sha256 == SHA256
    assert manifest_refused(root=revoked, asked=by_pin) == "signing-key-retired"
    later = index(signed_index(OLD, sequence=6), root=retired)
    assert manifest_refused(root=retired, index=later) == "signing-key-retired"
