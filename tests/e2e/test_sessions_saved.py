"""Sessions on disk: they go on after a restart, and no file that is not whole and right is ever used."""

from __future__ import annotations

import os
import random
import resource
import signal
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.paths import Layout
from ci.smoke.model import VOCABULARY
from opencoti.errors import MissingError
from tests.e2e.session_engine import (
    CONTEXT,
    OWN_CACHES,
    UNIFIED,
    Sessions,
    assert_alike,
    digest_of,
    other_model,
    running,
    saved_files,
    wait_for,
)
from tests.fakes.tiny_gemma import make_tiny_gemma
from tests.fakes.tiny_mamba import make_tiny_mamba

pytestmark = pytest.mark.engine

SAVE = "--session-save-path"
PREFIX = 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where states are saved; the engine makes it."""
    return tmp_path / "states"


def fill(layout: Layout, tmp_path: Path, folder: Path, *names: str) -> dict[str, list[int]]:
    """Have each session take a turn, and the engine end in good order; return the histories."""
    with running(layout, tmp_path, *OWN_CACHES, SAVE, str(folder)) as sessions:
        for name in names:
            sessions.turn(name, sessions.noise(PREFIX))
        assert sessions.engine.stop(grace_s=60) == 0
        return sessions.histories


@pytest.mark.parametrize(
    ("kind", "end"), [(OWN_CACHES, signal.SIGKILL), (UNIFIED, signal.SIGTERM)], ids=["killed", "ended"]
)
def test_sessions_go_on_after_a_restart(
    real_layout: Layout, tmp_path: Path, folder: Path, kind: tuple[str, ...], end: signal.Signals
) -> None:
    names = [f"s{number}" for number in range(6)]  # more than slots
    with running(real_layout, tmp_path, *kind, SAVE, str(folder)) as sessions:
        system = sessions.noise(PREFIX // 2)
        for name in names:
            sessions.turn(name, [*system, *sessions.noise(PREFIX // 2)])
        wait_for(lambda: len(saved_files(folder)) == len(names))
        os.kill(sessions.engine.pid, end)
        sessions.engine.wait(60)
        histories = sessions.histories
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in saved_files(folder)} == {0o600}
    assert not any(name in path.name for name in names for path in folder.iterdir())
    with running(real_layout, tmp_path, *kind, SAVE, str(folder)) as sessions:
        sessions.histories = histories
        for name in names:
            answer = sessions.turn(name, sessions.noise(10))
            assert answer.computed <= 10 + PREFIX // 100
            assert answer.session["restored_from"] == "disk"
        assert all(item["on_disk"] for item in sessions.listed())
        assert sessions.http.delete("/sessions/s0").status_code == 200
        deleted = digest_of("s0")
        assert not any(path.name.startswith(deleted) for path in saved_files(folder))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def of_another(path: Path) -> None:
    digest = digest_of("other")
    path.rename(path.with_name(digest + path.name[64:]))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "truncated": cut,
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "head": lambda path: flip(path, 200),
    "prompt": lambda path: flip(path, 600),
    "state": lambda path: flip(path, path.stat().st_size - 1000),
    "noise": lambda path: path.write_bytes(random.Random(1).randbytes(5000)),
    "another-session": of_another,
}


def test_damaged_and_foreign_files_are_refused_and_deleted(
    real_layout: Layout, tmp_path: Path, folder: Path
) -> None:
    names = {what: what if what != "another-session" else "victim" for what in DAMAGE}
    histories = fill(real_layout, tmp_path, folder, *names.values())
    paths = {path.name[:64]: path for path in saved_files(folder)}
    for what, name in names.items():
        DAMAGE[what](paths[digest_of(name)])
    (folder / ".tmp-0123456789abcdef").write_bytes(b"left by a killed engine")
    (folder / "notes.txt").write_text("not ours")
    (folder / "link.kv").symlink_to(folder / "notes.txt")
    planted = folder / f"{'0' * 64}-{'0' * 16}-{'0' * 16}.kv"
    planted.symlink_to(folder / "notes.txt")
    with running(real_layout, tmp_path, *OWN_CACHES, SAVE, str(folder)) as sessions:
        asked = [*names.values(), "other"]
        for name in asked:
            sessions.histories = {name: histories.get(name, histories["victim"])}
            answer = sessions.turn(name, sessions.noise(5))
            assert answer.session["restored_from"] in {None, "copy", "memory"}, name
            if name != "other":  # it may share what "victim" has computed since
                assert answer.session["reused"] == 0, name
        sessions.engine.stop(grace_s=60)
    left = {path.name for path in folder.iterdir()}
    assert {"notes.txt", "link.kv"} <= left
    assert planted.name not in left
    assert (folder / "notes.txt").read_text() == "not ours"
    assert not any(name.startswith(".tmp-") for name in left)
    # What is there now was written by this engine and holds the new turn.
    assert len(left) == 2 + len(asked)


def test_state_of_another_model_is_not_used(real_layout: Layout, tmp_path: Path, folder: Path) -> None:
    histories = fill(real_layout, tmp_path, folder, "a")
    model = other_model(real_layout, tmp_path)
    with running(real_layout, tmp_path, SAVE, str(folder), model=model) as sessions:
        sessions.histories = {"a": list(histories["a"])}
        assert sessions.turn("a", [5]).session["reused"] == 0
    with running(real_layout, tmp_path, *OWN_CACHES, SAVE, str(folder), "--cache-type-k", "q8_0") as sessions:
        sessions.histories = {"a": list(histories["a"])}
        assert sessions.turn("a", [5]).session["reused"] == 0


def test_space_is_capped_and_a_full_disk_is_no_failure(
    real_layout: Layout, tmp_path: Path, folder: Path
) -> None:
    words = (*OWN_CACHES, SAVE, str(folder), "--session-save-max-mib", "1")
    with running(real_layout, tmp_path, *words) as sessions:
        for number in range(6):  # about 270 KiB each
            sessions.turn(f"s{number}", sessions.noise(PREFIX))
            newest = digest_of(f"s{number}")
            wait_for(lambda name=newest: any(p.name.startswith(name) for p in saved_files(folder)))  # type: ignore[misc]
        assert 0 < sum(path.stat().st_size for path in saved_files(folder)) <= 1 << 20
        # No file may become larger than 100 kB now: a write fails in the middle, as on a full disk.
        resource.prlimit(sessions.engine.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
        first = sessions.turn("late", sessions.noise(PREFIX))
        wait_for(lambda: "was not saved" in sessions.engine.log_path.read_text(errors="replace"))
        second = sessions.turn("late", sessions.noise(5))
        assert (first.session["reused"], second.session["restored_from"]) == (0, "slot")
        # That turn may be at writing too; it fails as well.
        wait_for(lambda: not any(path.name.startswith(".tmp-") for path in folder.iterdir()))


def test_files_of_a_time_to_come_make_room_as_well(real_layout: Layout, tmp_path: Path, folder: Path) -> None:
    """The clock was put back, or another machine's was ahead."""
    words = (*OWN_CACHES, SAVE, str(folder), "--session-save-max-mib", "1")
    with running(real_layout, tmp_path, *words) as sessions:
        for name in "abc":
            sessions.turn(name, sessions.noise(PREFIX))
        wait_for(lambda: len(saved_files(folder)) == 3)
        tomorrow = time.time() + 86400
        for path in saved_files(folder):
            os.utime(path, (tomorrow, tomorrow))
        sessions.turn("d", sessions.noise(PREFIX))
        newest = digest_of("d")
        wait_for(lambda: any(path.name.startswith(newest) for path in saved_files(folder)))
        assert len(saved_files(folder)) == 3


def go_on(sessions: Sessions, names: list[str]) -> None:
    for name in names:
        sessions.turn(name, sessions.noise(5))


@pytest.mark.parametrize("make", [make_tiny_gemma, make_tiny_mamba], ids=["window", "recurrent"])
def test_models_that_cannot_go_back_by_one_token_go_on_as_well(
    make: Callable[[Path, Path], Path], real_layout: Layout, tmp_path: Path, folder: Path
) -> None:
    model = make(real_layout.sources / "llama.cpp" / VOCABULARY, tmp_path / "model.gguf")
    words = ("--parallel", "2", SAVE, str(folder))
    names = ("a", "b", "c")  # more than slots
    with running(real_layout, tmp_path, *words, model=model) as sessions:
        system = sessions.noise(700)
        for name in names:
            sessions.turn(name, [*system, *sessions.noise(500)])
        for name in names:
            assert sessions.turn(name, sessions.noise(30)).computed <= 30 + 20
        histories = sessions.histories
        sessions.engine.stop(grace_s=60)
    with running(real_layout, tmp_path, *words, model=model) as sessions:
        sessions.histories = histories
        for name in names:
            answer = sessions.turn(name, sessions.noise(30))
            assert answer.session["restored_from"] == "disk"
            assert answer.computed <= 30 + 20


def test_two_engines_share_a_folder(real_layout: Layout, tmp_path: Path, folder: Path) -> None:
    words = (*OWN_CACHES, SAVE, str(folder))
    with (
        running(real_layout, tmp_path, *words) as one,
        running(real_layout, tmp_path, *words) as other,
    ):
        names = [f"s{number}" for number in range(6)]
        for name in names:
            one.turn(name, one.noise(PREFIX))
        wait_for(lambda: len(saved_files(folder)) == len(names))
        other.histories = {name: list(history) for name, history in one.histories.items()}
        moved = other.turn("s3", other.noise(5))
        assert moved.session["restored_from"] == "disk"
        assert moved.computed <= 5 + PREFIX // 100
        # Both write states of the same sessions at the same time.
        threads = [threading.Thread(target=go_on, args=(each, names)) for each in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(each.turn(name, [7]).computed <= 20 for each in (one, other) for name in names)


def test_killed_at_any_moment_it_uses_nothing_that_is_not_whole(
    real_layout: Layout, tmp_path: Path, folder: Path
) -> None:
    dice = random.Random(3)
    histories: dict[str, list[int]] = {}
    probe = {"n_predict": 2, "n_probs": 8}
    for _ in range(2):
        with running(real_layout, tmp_path, *OWN_CACHES, SAVE, str(folder)) as sessions:
            sessions.histories = {name: list(history) for name, history in histories.items()}
            answers = {}
            for name in ("a", "b", "c", "d", "e"):
                known = len(histories.get(name, []))
                answers[name] = sessions.turn(name, sessions.noise(400), **probe)
                assert answers[name].session["reused"] <= known
            check(sessions, answers["e"].logprobs, sessions.histories["e"][:-2], probe)
            histories = {name: list(history) for name, history in sessions.histories.items()}
            # The moment of the kill, not a wait for something to be ready: states are being written.
            time.sleep(dice.uniform(0.0, 0.03))
            os.kill(sessions.engine.pid, signal.SIGKILL)
            sessions.engine.wait(60)
    with running(real_layout, tmp_path, *OWN_CACHES, SAVE, str(folder)):
        assert not any(path.name.startswith(".tmp-") for path in folder.iterdir())


def check(sessions: Sessions, kept: dict[int, float], prompt: list[int], probe: dict[str, int]) -> None:
    """What was computed from kept state is what is computed from the prompt alone."""
    fresh = sessions.ask(prompt, cache_prompt=False, **probe).logprobs
    if fresh:
        assert_alike(fresh, kept)


def test_a_turn_that_the_client_gives_up_is_saved_as_far_as_it_came(
    real_layout: Layout, tmp_path: Path, folder: Path
) -> None:
    """In the slot of another session, as usual where there are more sessions than slots."""
    words = ("--parallel", "1", "--cache-ram", "0", SAVE, str(folder))
    with running(real_layout, tmp_path, *words) as sessions:
        sessions.turn("other", sessions.noise(PREFIX))
        text = sessions.noise(PREFIX)
        body = {"prompt": text, "n_predict": 20_000, "ignore_eos": True, "stream": True, "session_id": "a"}
        with sessions.http.stream("POST", "/completion", json=body) as answer:
            assert next(answer.iter_lines()).startswith("data: ")
        wait_for(lambda: len(saved_files(folder)) == 2)
        os.kill(sessions.engine.pid, signal.SIGKILL)
        sessions.engine.wait(60)
    with running(real_layout, tmp_path, *words) as sessions:
        again = sessions.ask([*text, 5], "a")
        assert again.session["restored_from"] == "disk"
        assert again.computed <= 1 + PREFIX // 100


def test_a_request_that_is_refused_in_the_slot_of_another_session_gets_none_of_its_text(
    real_layout: Layout, tmp_path: Path, folder: Path
) -> None:
    words = ("--parallel", "1", "--cache-ram", "0", SAVE, str(folder))
    with running(real_layout, tmp_path, *words) as sessions:
        secret = sessions.noise(300)
        sessions.ask(secret, "a")
        wait_for(lambda: len(saved_files(folder)) == 1)
        too_long = {"prompt": sessions.noise(CONTEXT + 1), "n_predict": 1, "session_id": "b"}
        assert sessions.http.post("/completion", json=too_long).status_code == 400
        assert sessions.http.delete("/sessions/a").status_code == 200
        assert sessions.listed() == []
        assert sessions.ask([*secret, 5], "c").session["reused"] == 0
        assert sessions.engine.stop(grace_s=60) == 0
    (only,) = saved_files(folder)
    assert only.name.startswith(digest_of("c"))


def test_a_state_that_cannot_be_deleted_is_told(real_layout: Layout, tmp_path: Path, folder: Path) -> None:
    """A folder in the place of the file stands in for a disk that has become read-only."""
    with running(real_layout, tmp_path, *OWN_CACHES, SAVE, str(folder)) as sessions:
        sessions.turn("a", sessions.noise(PREFIX))
        wait_for(lambda: len(saved_files(folder)) == 1)
        (state,) = saved_files(folder)
        state.unlink()
        state.mkdir()
        refused = sessions.http.delete("/sessions/a")
        assert refused.status_code == 500
        assert "could not be deleted: Is a directory" in refused.json()["error"]["message"]
        assert [item["slot"] for item in sessions.listed()] == [None]
        state.rmdir()
        assert sessions.http.delete("/sessions/a").status_code == 404


def test_folder_that_others_may_write_to_is_refused(real_layout: Layout, tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    with (
        pytest.raises(MissingError) as caught,
        running(real_layout, tmp_path, SAVE, str(open_folder)),
    ):
        pass
    assert "others may write" in str(caught.value)
