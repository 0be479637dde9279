"""Signing: what the comment says, and that nothing a client would refuse is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opencoti.errors import OpencotiError
from opencoti.policy import Asked, verify_index, verify_manifest
from opencoti.trust.comment import Comment
from opencoti.trust.keys import TrustedKeys, only_key
from opencoti.trust.memory import TrustState
from release.keys import SecretKey
from release.sign import Facts, Signed, sign_files
from release.verify import verify_file
from tests.unit.release.samples import (
    MANIFEST,
    MANIFEST_COMMENT,
    MANIFEST_NAME,
    NOW,
    REPO,
    TAG,
    comment_of,
    index_bytes,
    index_dict,
    trusted_root,
)

KEY, OLD = SecretKey.generate(), SecretKey.generate()
ROOT = trusted_root(KEY)
NOTHING = Facts()
SAID = Facts(repo=REPO, tag=TAG)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / MANIFEST_NAME).write_bytes(MANIFEST)
    (tmp_path / "SHA256SUMS").write_bytes(b"0" * 64 + b"  x\n")
    return tmp_path


@pytest.fixture
def staged(folder: Path) -> Path:
    (folder / "opencoti-release.json").write_bytes(index_bytes())
    return folder


def sign(
    folder: Path, *names: str, facts: Facts = NOTHING, key: SecretKey = KEY, keys: TrustedKeys = ROOT
) -> list[Signed]:
    return sign_files([folder / name for name in names], key=key, facts=facts, keys=keys, now=NOW)


def refused(folder: Path, *names: str, **more: Any) -> OpencotiError:
    with pytest.raises(OpencotiError) as caught:
        sign(folder, *names, **more)
    assert not list(folder.glob("*.minisig")), "nothing is written after a refusal"
    return caught.value


def test_a_staged_release_tells_everything_itself(staged: Path) -> None:
    signed = sign(staged, "opencoti-release.json", MANIFEST_NAME, "SHA256SUMS")
    version = MANIFEST_COMMENT.replace(MANIFEST_NAME, "SHA256SUMS")
    assert [item.comment.render() for item in signed] == [
        comment_of(index_dict()),
        MANIFEST_COMMENT,
        version,
    ]


def test_clients_accept_what_was_signed(staged: Path) -> None:
    sign(staged, "opencoti-release.json", MANIFEST_NAME)
    asked = Asked(repo=REPO)
    index = verify_index(
        (staged / "opencoti-release.json").read_bytes(),
        (staged / "opencoti-release.json.minisig").read_bytes(),
        asked=asked,
        root=ROOT,
        state=TrustState(),
        now=NOW,
    )
    manifest = verify_manifest(
        MANIFEST,
        (staged / f"{MANIFEST_NAME}.minisig").read_bytes(),
        file=MANIFEST_NAME,
        asked=asked,
        root=ROOT,
        state=TrustState(),
        index=index,
    )
    assert manifest.manifest.sha256 == index.index.artifacts[0].sha256


def test_without_an_index_the_user_says_it(folder: Path) -> None:
    signed = sign(folder, MANIFEST_NAME, facts=replace(SAID, notes=(("x-why", "test"),)))
    assert signed[0].comment.render() == f"{MANIFEST_COMMENT} x-why=test"
    sums = replace(SAID, version="opencoti-1-c1", product="other")
    assert sign(folder, "SHA256SUMS", facts=sums)[0].comment == Comment(
        product="other", repo=REPO, tag=TAG, version="opencoti-1-c1", file="SHA256SUMS"
    )


@pytest.mark.parametrize(
    ("names", "facts", "error_id"),
    [
        ([MANIFEST_NAME], Facts(tag=TAG), "sign-fact-missing"),
        ([MANIFEST_NAME], Facts(repo=REPO), "sign-fact-missing"),
        (["SHA256SUMS"], SAID, "sign-fact-missing"),
        ([MANIFEST_NAME], replace(SAID, version="opencoti-9-c1"), "sign-contradiction"),
        ([MANIFEST_NAME], replace(SAID, sequence="5"), "sign-contradiction"),
        ([MANIFEST_NAME], replace(SAID, tag="c1 repo=x/y"), "comment-malformed"),
        ([MANIFEST_NAME], replace(SAID, notes=(("x-a", "b c"),)), "comment-malformed"),
        (["absent.bin"], replace(SAID, version="opencoti-1-c1"), "storage-failed"),
    ],
)
def test_missing_and_contradicting_facts_are_refused(
    folder: Path, names: list[str], facts: Facts, error_id: str
) -> None:
    assert refused(folder, *names, facts=facts).error_id == error_id


@pytest.mark.parametrize(
    "facts",
    [
        Facts(tag="c2"),
        Facts(repo="a/b"),
        Facts(product="other"),
        Facts(sequence="6"),
        Facts(expires="2027-01-01T00:00:00Z"),
    ],
)
def test_the_user_cannot_contradict_the_index(staged: Path, facts: Facts) -> None:
    assert refused(staged, "opencoti-release.json", facts=facts).error_id == "sign-contradiction"


def test_the_user_may_repeat_the_index(staged: Path) -> None:
    facts = Facts(tag=TAG, sequence="5", expires="2026-09-01T00:00:00Z")
    assert len(sign(staged, "opencoti-release.json", "SHA256SUMS", facts=facts)) == 2


def test_a_key_that_clients_do_not_know_signs_nothing(staged: Path) -> None:
    """Case B29."""
    error = refused(staged, "opencoti-release.json", keys=trusted_root(OLD))
    assert error.error_id == "signing-key-not-listed"
    assert error.exit_code == 6
    assert refused(staged, "SHA256SUMS", keys=trusted_root()).error_id == "signing-key-not-listed"


def test_a_retired_key_signs_no_new_release(staged: Path) -> None:
    """Case B29."""
    retired = trusted_root((KEY, 4), OLD)
    assert refused(staged, "opencoti-release.json", keys=retired).error_id == "signing-key-retired"
    assert refused(staged, MANIFEST_NAME, keys=retired).error_id == "signing-key-retired"


def test_one_refusal_stops_all(staged: Path) -> None:
    (staged / "broken.MANIFEST.json").write_bytes(b"{}")
    assert refused(staged, "opencoti-release.json", "broken.MANIFEST.json").error_id == "not-in-index"


def test_a_manifest_that_the_index_does_not_list_is_not_signed(staged: Path) -> None:
    (staged / MANIFEST_NAME).write_bytes(MANIFEST + b"\n")
    assert refused(staged, MANIFEST_NAME).error_id == "not-in-index"


def test_an_expired_or_malformed_index_is_not_signed(staged: Path) -> None:
    path = staged / "opencoti-release.json"
    path.write_bytes(index_bytes(expires="2026-05-02T00:00:00Z"))
    assert refused(staged, path.name).error_id == "index-expired"
    path.write_bytes(index_bytes(sequence=0))
    assert refused(staged, path.name).error_id == "index-malformed"


def test_a_root_is_signed_elsewhere(folder: Path) -> None:
    (folder / "root-2.json").write_bytes(b"{}")
    error = refused(folder, "root-2.json", facts=replace(SAID, version="opencoti-1-c1"))
    assert error.error_id == "sign-root"


def test_a_development_key_signs_when_told(staged: Path) -> None:
    key = SecretKey.generate(is_development=True)
    told = only_key(key.public, allow_development=True)
    sign(staged, "opencoti-release.json", key=key, keys=told)
    with pytest.raises(OpencotiError) as caught:
        verify_file(staged / "opencoti-release.json", keys=ROOT, repo=None, tag=None, now=NOW)
    assert caught.value.error_id == "signature-key-unknown"


# --- verify -----------------------------------------------------------------------------------------------


def verify(path: Path, **more: Any) -> Any:
    return verify_file(path, **{"keys": ROOT, "repo": None, "tag": None, "now": NOW, **more})


def test_signed_files_verify(staged: Path) -> None:
    names = ("opencoti-release.json", MANIFEST_NAME, "SHA256SUMS")
    sign(staged, *names)
    for name in names:
        assert verify(staged / name, repo=REPO, tag=TAG).key == KEY.public
        for wrong in ({"repo": "a/b"}, {"tag": "c2"}):
            with pytest.raises(OpencotiError) as caught:
                verify(staged / name, **wrong)
            assert caught.value.error_id == f"wrong-{next(iter(wrong))}"
        (staged / name).write_bytes((staged / name).read_bytes() + b" ")
        with pytest.raises(OpencotiError) as caught:
            verify(staged / name)
        assert caught.value.error_id == "signature-mismatch"


def test_an_expired_index_is_told(staged: Path) -> None:
    sign(staged, "opencoti-release.json")
    found = verify(staged / "opencoti-release.json", now=NOW.replace(year=2030))
    assert "out of date" in found.warnings[0]


def test_a_missing_signature_is_told(staged: Path) -> None:
    with pytest.raises(OpencotiError) as caught:
        verify(staged / "SHA256SUMS")
    assert caught.value.error_id == "signature-missing"
    assert caught.value.exit_code == 6
