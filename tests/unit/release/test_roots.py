"""Making roots: drafts, signatures by several people, and what clients do with the result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from opencoti.errors import OpencotiError
from opencoti.minisign import prehash
from opencoti.trust.chain import RootLink, anchor, walk
from release.keys import SecretKey
from release.roots import add_keys, change_root, check_roots, new_root, read_roots, retire_key, sign_root

A, B, C, SIGNER, NEXT = (SecretKey.generate() for _ in range(5))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose first root, of keys A and B with threshold 2, is final."""
    make_draft(tmp_path)
    sign_root(tmp_path, key=A)
    sign_root(tmp_path, key=B)
    return tmp_path


def make_draft(folder: Path, threshold: int = 2) -> Path:
    return new_root(
        folder,
        product="opencoti",
        threshold=threshold,
        root_keys=[A.public, B.public],
        signing_keys=[SIGNER.public],
    )


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(OpencotiError) as caught:
        act()
    return caught.value.error_id


def test_there_is_no_root_at_first(tmp_path: Path) -> None:
    assert check_roots(tmp_path) is None
    assert refusal(lambda: sign_root(tmp_path, key=A)) == "root-missing"
    assert refusal(lambda: change_root(tmp_path, lambda _: {})) == "root-missing"


def test_a_first_root_needs_its_own_threshold(tmp_path: Path) -> None:
    make_draft(tmp_path)
    assert refusal(lambda: check_roots(tmp_path)) == "root-threshold"
    sign_root(tmp_path, key=A)
    sign_root(tmp_path, key=A)
    assert refusal(lambda: check_roots(tmp_path)) == "root-threshold"
    sign_root(tmp_path, key=B)
    root = check_roots(tmp_path)
    assert root is not None
    assert root.version == 1
    assert refusal(lambda: make_draft(tmp_path)) == "root-exists"


def test_a_threshold_that_cannot_be_met_is_refused(tmp_path: Path) -> None:
    assert refusal(lambda: make_draft(tmp_path, threshold=3)) == "root-malformed"
    assert list(tmp_path.iterdir()) == []


def test_strangers_and_signing_keys_cannot_sign_a_root(tmp_path: Path) -> None:
    make_draft(tmp_path)
    for key in (C, SIGNER):
        assert refusal(lambda key=key: sign_root(tmp_path, key=key)) == "root-signer"  # type: ignore[misc]
    made = A.sign(prehash(b"other"), "product=opencoti file=root-1.json").render("x")
    assert refusal(lambda: sign_root(tmp_path, made=made)) == "signature-mismatch"
    data = (tmp_path / "root-1.json").read_bytes()
    made = A.sign(prehash(data), "product=opencoti file=root-2.json").render("x")
    assert refusal(lambda: sign_root(tmp_path, made=made)) == "root-signer"
    assert not (tmp_path / "root-1.json.minisig").exists()


def test_a_signature_made_elsewhere_is_added(tmp_path: Path) -> None:
    make_draft(tmp_path)
    data = (tmp_path / "root-1.json").read_bytes()
    for key in (A, B):
        sign_root(tmp_path, made=key.sign(prehash(data), "product=opencoti file=root-1.json").render("x"))
    assert check_roots(tmp_path) is not None


def test_rotation_of_a_signing_key(folder: Path) -> None:
    """Case B29: add, then retire by sequence; a client that has root 1 follows."""
    first = (folder / "root-1.json").read_bytes()
    change_root(folder, lambda root: add_keys(root, root_keys=[], signing_keys=[NEXT.public]))
    path = change_root(folder, lambda root: retire_key(root, SIGNER.public.name.lower(), 41))
    assert path.name == "root-2.json"
    assert (folder / "root-1.json").read_bytes() == first
    assert json.loads(path.read_bytes())["signingKeys"] == [
        {"key": SIGNER.public.text, "lastSequence": 41},
        {"key": NEXT.public.text, "lastSequence": None},
    ]
    sign_root(folder, key=A)
    assert refusal(lambda: change_root(folder, lambda _: {"threshold": 1})) == "root-half-signed"
    sign_root(folder, key=B)
    links = [RootLink(data=root.data, signatures=root.signatures) for root in read_roots(folder)[1:]]
    client = walk(anchor(first, "shipped"), links)
    assert [key.accepts(42) for key in client.keys] == [False, True]
    assert client == check_roots(folder)


def test_rotation_of_a_root_key_needs_both_sides(folder: Path) -> None:
    change_root(folder, lambda root: add_keys(root, root_keys=[C.public], signing_keys=[]))
    change_root(folder, lambda root: retire_key(root, B.public.name, None))
    sign_root(folder, key=A)
    sign_root(folder, key=C)
    assert refusal(lambda: check_roots(folder)) == "root-threshold"  # root 1 has only A's signature on it
    sign_root(folder, key=B)
    root = check_roots(folder)
    assert root is not None
    assert root.root_keys == (A.public, C.public)


def test_a_root_key_cannot_go_below_the_threshold(folder: Path) -> None:
    before = sorted(folder.iterdir())
    assert refusal(lambda: change_root(folder, lambda root: retire_key(root, B.public.name, None))) == (
        "root-malformed"
    )
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("name", "last", "error_id"),
    [
        (SIGNER.public.name, None, "root-retire"),
        (SIGNER.public.name, -1, "root-retire"),
        (A.public.name, 4, "root-retire"),
        (C.public.name, 4, "root-key-unknown"),
    ],
    # Key names are made anew in every process.
    ids=lambda value: (
        str(value) if value is None or isinstance(value, int) or value.startswith("root-") else "key"
    ),
)
def test_retiring_says_what_is_missing(folder: Path, name: str, last: int | None, error_id: str) -> None:
    assert refusal(lambda: change_root(folder, lambda root: retire_key(root, name, last))) == error_id


def test_a_retired_key_does_not_come_back(folder: Path) -> None:
    change_root(folder, lambda root: retire_key(root, SIGNER.public.name, 5))
    assert refusal(lambda: change_root(folder, lambda root: retire_key(root, SIGNER.public.name, 6))) == (
        "root-retire"
    )
    path = change_root(folder, lambda root: retire_key(root, SIGNER.public.name, 0))
    assert json.loads(path.read_bytes())["signingKeys"][0]["lastSequence"] == 0


def test_a_changed_old_root_is_found(folder: Path) -> None:
    path = folder / "root-1.json"
    path.write_bytes(path.read_bytes().replace(b'"threshold": 2', b'"threshold": 1'))
    assert refusal(lambda: check_roots(folder)) == "signature-mismatch"


def test_the_root_that_ships_is_in_order(real_layout: object) -> None:
    check_roots(Path(real_layout.root) / "opencoti" / "trust")  # type: ignore[attr-defined]
