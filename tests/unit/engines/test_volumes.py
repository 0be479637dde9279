"""Which volumes of a daemon are of no use to anyone."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ci import locks
from ci.engines import volumes
from ci.engines.owner import OWNER_PID, owner_labels
from ci.engines.volumes import CLIENT, STATE, VOLUME, client_id, is_stale, named_volumes
from opencoti.files import write_atomic

NOW = datetime(2030, 1, 1, tzinfo=UTC)
MONTH_AGO = NOW - timedelta(days=30)


def volume(state: Path, *, owner: str = "me", age_days: int = 0) -> dict[str, Any]:
    created = (NOW - timedelta(days=age_days)).isoformat().replace("+00:00", "Z")
    labels = {VOLUME: "kept", CLIENT: owner, STATE: str(state)}
    return {"Name": "opencoti-out-1", "Labels": labels, "CreatedAt": created}


def stale(entry: dict[str, Any]) -> bool:
    return is_stale(entry, owner="me", oldest=MONTH_AGO)


def test_a_volume_lives_while_a_folder_names_it(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    assert stale(volume(state))
    state.write_text(json.dumps({"volumes": {"out": "opencoti-out-1"}}))
    assert not stale(volume(state))
    assert not stale(volume(state, age_days=400)), "used or not, it is ours"
    state.write_text(json.dumps({"volumes": {"out": "opencoti-out-2"}}))
    assert stale(volume(state))


def test_volumes_of_others_go_after_a_month_only(tmp_path: Path) -> None:
    assert not stale(volume(tmp_path / "x", owner="other", age_days=29))
    assert stale(volume(tmp_path / "x", owner="other", age_days=31))


def test_a_volume_for_one_run_goes_with_its_process() -> None:
    labels = {VOLUME: "run", CLIENT: "me", **owner_labels("r")}
    entry = {"Name": "opencoti-cache-1", "CreatedAt": "", "Labels": labels}
    assert not stale(entry)
    assert stale({**entry, "Labels": {**labels, OWNER_PID: "99999999"}})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"volumes": 5}', '{"volumes": ["a"]}'])
def test_a_state_that_cannot_be_read_names_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "state").write_text(text)
    assert named_volumes(tmp_path / "state") == ()


def test_a_cache_has_one_identity(tmp_path: Path) -> None:
    first = client_id(tmp_path / "a")
    assert client_id(tmp_path / "a") == first
    assert client_id(tmp_path / "b") != first


def test_a_program_that_comes_while_another_makes_the_identity_gets_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me, at_the_lock = threading.current_thread(), threading.Event()
    second: list[Future[str]] = []

    @contextmanager
    def exclusive_lock(path: Path, purpose: str, *, wait: bool) -> Iterator[None]:
        if threading.current_thread() is not me:
            at_the_lock.set()
        with locks.exclusive_lock(path, purpose, wait=wait):
            yield

    def write_slowly(path: Path, data: bytes) -> None:
        if threading.current_thread() is me:
            second.append(pool.submit(client_id, tmp_path))
            second[0].add_done_callback(lambda _: at_the_lock.set())
            assert at_the_lock.wait(60)
        write_atomic(path, data)

    monkeypatch.setattr(volumes, "exclusive_lock", exclusive_lock, raising=False)
    monkeypatch.setattr(volumes, "write_atomic", write_slowly)
    with ThreadPoolExecutor(max_workers=1) as pool:
        first = client_id(tmp_path)
        assert second[0].result(60) == first
    assert client_id(tmp_path) == first


def test_programs_that_begin_at_the_same_moment_have_one_identity(tmp_path: Path) -> None:
    number = 6
    together = threading.Barrier(number)

    def begin(cache: Path) -> str:
        together.wait(60)
        return client_id(cache)

    with ThreadPoolExecutor(max_workers=number) as pool:
        for turn in range(20):
            cache = tmp_path / str(turn)
            assert len(set(pool.map(begin, [cache] * number))) == 1


@pytest.mark.parametrize("damage", [b"", b"\n", b"\xff\xfe"])
def test_a_damaged_identity_is_made_anew_and_then_kept(damage: bytes, tmp_path: Path) -> None:
    before = client_id(tmp_path)
    [path] = [path for path in tmp_path.iterdir() if path.is_file()]
    path.write_bytes(damage)
    after = client_id(tmp_path)
    assert after != before
    assert client_id(tmp_path) == after
