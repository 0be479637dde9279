"""What a client remembers: monotonic, per key, written whole, and never quietly forgotten."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opencoti import state
from opencoti.errors import ConfigError, VerificationError
from opencoti.trust.chain import anchor
from opencoti.trust.memory import Observation, Scope, Seen, Strength, TrustState, check_ratchet, merge
from release.keys import SecretKey
from tests.conftest import ROOT
from tests.unit.release.samples import link, result_or_known_error, root_bytes, trusted_root

SCOPE = Scope(repo="a/b", product="opencoti")
OLD, NEW = SecretKey.generate(), SecretKey.generate()
ONE, TWO = "1" * 64, "2" * 64


def seen(key: SecretKey, sequence: int, sha256: str = ONE) -> Seen:
    return Seen(key=key.public.text, sequence=sequence, sha256=sha256)


def observed(item: Seen | None, strength: Strength = Strength.SIGNATURE, **more: bool) -> Observation:
    return Observation(scope=SCOPE, strength=strength, seen=item, **more)


def remembered(*items: Seen) -> TrustState:
    result = TrustState()
    for item in items:
        result = merge(result, observed(item))
    return result


def ratchet(
    candidate: Seen, known: TrustState, *keys: SecretKey | tuple[SecretKey, int | None]
) -> str | None:
    try:
        check_ratchet(candidate, known.memory(SCOPE), trusted_root(*keys))
    except VerificationError as error:
        return error.error_id
    return None


def test_newer_and_equal_pass_older_and_contradicting_do_not() -> None:
    known = remembered(seen(NEW, 5))
    assert ratchet(seen(NEW, 6), known, NEW) is None
    assert ratchet(seen(NEW, 5), known, NEW) is None
    assert ratchet(seen(NEW, 4), known, NEW) == "index-rollback"
    assert ratchet(seen(NEW, 5, TWO), known, NEW) == "index-equivocation"


def test_the_last_index_of_a_retired_key_cannot_be_replayed() -> None:
    known = remembered(seen(OLD, 7), seen(NEW, 8))
    assert ratchet(seen(OLD, 7), known, (OLD, 7), NEW) == "index-rollback"


def test_a_stolen_key_that_ran_ahead_does_not_lock_clients_out() -> None:
    known = remembered(seen(OLD, 9_000_000))
    assert ratchet(seen(NEW, 8), known, OLD, NEW) == "index-rollback"
    assert ratchet(seen(NEW, 8), known, (OLD, 7), NEW) is None
    assert ratchet(seen(NEW, 8), known, NEW) is None


def test_other_repos_and_products_are_apart() -> None:
    known = remembered(seen(NEW, 5))
    assert known.memory(Scope(repo="a/c", product="opencoti")).seen == ()
    assert known.memory(Scope(repo="a/b", product="other")).strength is None


def test_nothing_remembered_goes_down() -> None:
    known = merge(remembered(seen(NEW, 5)), observed(seen(NEW, 9), Strength.ATTESTATION))
    known = merge(known, observed(seen(NEW, 6, TWO), Strength.HASH))
    known = merge(known, observed(None, Strength.SIGNATURE))
    assert known.memory(SCOPE).strength is Strength.ATTESTATION
    assert known.memory(SCOPE).seen == (seen(NEW, 9),)


def test_two_processes_that_saw_different_indexes_are_told_when_storing(tmp_path: Path) -> None:
    state.remember(tmp_path, observed(seen(NEW, 5)))
    with pytest.raises(VerificationError) as caught:
        state.remember(tmp_path, observed(seen(NEW, 5, TWO)))
    assert caught.value.error_id == "index-equivocation"
    assert state.load(tmp_path) == remembered(seen(NEW, 5))
    state.remember(tmp_path, observed(seen(NEW, 5, TWO), allow_replacement=True))
    assert state.load(tmp_path).memory(SCOPE).seen == (seen(NEW, 5, TWO),)


def test_what_is_written_is_read_back_and_others_may_not_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "trust"
    assert state.load(folder) == TrustState()
    state.remember(folder, observed(seen(NEW, 5)), observed(seen(OLD, 3), Strength.ATTESTATION))
    assert state.load(folder).memory(SCOPE).strength is Strength.ATTESTATION
    assert len(state.load(folder).memory(SCOPE).seen) == 2
    assert (folder / state.SEEN_NAME).stat().st_mode & 0o777 == 0o600


def test_many_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from opencoti import state;"
        "from opencoti.trust.memory import *;"
        "n = int(sys.argv[2]); [state.remember(Path(sys.argv[1]), Observation(scope=Scope(repo=f'a/r{n}',"
        " product='p'), strength=Strength.SIGNATURE, seen=Seen(key='k', sequence=s, sha256='0'*64)))"
        " for s in range(1, 6)]"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(n)], cwd=ROOT) for n in range(4)
    ]
    assert [process.wait(timeout=60) for process in running] == [0] * 4
    found = state.load(tmp_path).memories
    assert [(memory.scope.repo, memory.seen[0].sequence) for memory in found] == [
        (f"a/r{n}", 5) for n in range(4)
    ]


GOOD = json.loads(state.render_state(remembered(seen(NEW, 5))))


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        None,
        "x",
        GOOD | {"schema": "opencoti.seen/2"},
        GOOD | {"seen": {}},
        GOOD | {"seen": [1]},
        GOOD | {"seen": "ab"},
        GOOD | {"seen": [GOOD["seen"][0] | {"indexes": {}}]},
        GOOD | {"seen": [GOOD["seen"][0] | {"strength": "SIGNATURE"}]},
        GOOD | {"seen": [GOOD["seen"][0] | {"strength": ["signature"]}]},
        GOOD | {"seen": GOOD["seen"] * 2},
        GOOD | {"seen": [GOOD["seen"][0] | {"strength": "strong"}]},
        GOOD | {"seen": [GOOD["seen"][0] | {"repo": None}]},
        GOOD | {"seen": [GOOD["seen"][0] | {"indexes": [{"key": "k", "sequence": True, "sha256": "0"}]}]},
        GOOD | {"seen": [GOOD["seen"][0] | {"indexes": [{"key": "k", "sequence": 0, "sha256": "0"}]}]},
    ],
)
def test_a_damaged_memory_is_an_error_and_no_fresh_start(document: object, tmp_path: Path) -> None:
    (tmp_path / state.SEEN_NAME).write_text(json.dumps(document))
    with pytest.raises(ConfigError) as caught:
        state.remember(tmp_path, observed(seen(NEW, 6)))
    assert caught.value.error_id == "seen-malformed"
    assert "remove it" in caught.value.hint
    assert json.loads((tmp_path / state.SEEN_NAME).read_text()) == document


@settings(max_examples=200)
@given(st.integers(0, 300), st.integers(0, 40), st.binary(max_size=20))
def test_damaged_files_raise_known_errors_only(at: int, gone: int, new: bytes) -> None:
    data = state.render_state(remembered(seen(NEW, 5)))
    for damaged in (data[:at] + new + data[at + gone :], new):
        result_or_known_error(partial(state.parse_state, damaged, "x"), "seen-malformed", "json-malformed")


def test_the_folder_follows_the_cache_variable_and_else_lies_outside_the_cache(tmp_path: Path) -> None:
    assert state.trust_folder({"OPENCOTI_CACHE_DIR": str(tmp_path)}) == tmp_path / "trust"
    assert state.trust_folder({}).name == "trust"


def test_a_fetched_root_is_kept_and_verified_again(tmp_path: Path) -> None:
    a, b = SecretKey.generate(), SecretKey.generate()
    one = anchor(root_bytes(1, [a], [(OLD, None)]), "root 1")
    two = link(root_bytes(2, [b], [(NEW, None)]), [a, b])
    three = link(root_bytes(3, [b], []), [b])
    assert state.load_root(tmp_path, one) is one
    newer = state.remember_root(tmp_path, one, two)
    state.remember_root(tmp_path, newer, three)
    assert state.load_root(tmp_path, one).version == 3
    assert state.load_root(tmp_path, newer).version == 3  # a newer program starts further on

    (tmp_path / "root-2.json").write_bytes(two.data.replace(b'"threshold": 1', b'"threshold": 1 '))
    with pytest.raises(VerificationError) as caught:
        state.load_root(tmp_path, one)
    assert caught.value.error_id == "signature-mismatch"


def test_a_refused_root_is_not_kept(tmp_path: Path) -> None:
    a, b = SecretKey.generate(), SecretKey.generate()
    one = anchor(root_bytes(1, [a], []), "root 1")
    with pytest.raises(VerificationError):
        state.remember_root(tmp_path, one, link(root_bytes(2, [b], []), [b]))
    assert list(tmp_path.iterdir()) == []
