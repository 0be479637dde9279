"""What is written down about a launch, and who it is believed to be about (case B47)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from opencoti import procfs
from opencoti.errors import BusyError
from opencoti.launch import state as states
from opencoti.launch.state import State, claim, known_states, read_state, sweep, write_state
from opencoti.launch.stopping import stop_engine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the launcher reads /proc")


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with us."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        yield process
        process.kill()


def state_of(pid: int, *, name: str = "e", start_offset: int = 0) -> State:
    who = procfs.identify(pid)
    assert who is not None
    who = replace(who, start=who.start + start_offset)
    return State(
        name=name,
        phase="ready",
        is_transient=True,
        mark="ab" * 16,
        keeper=who,
        engine=who,
        started="2026-01-01T00:00:00+00:00",
        artifact="/a",
        model="/m",
        alias="m",
        host="127.0.0.1",
        port=4242,
        is_isolated=False,
        libraries=("/x.so",),
    )


def test_state_survives_writing_and_reading(tmp_path: Path) -> None:
    state = state_of(os.getpid())
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state
    assert state.condition() == "ready"
    assert (tmp_path / "state.json").stat().st_mode & 0o777 == 0o600
    assert "mark" not in state.as_dict()


def test_recycled_number_is_stale_and_never_signalled(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    state = state_of(stranger.pid, start_offset=-500)
    folder = tmp_path / "e"
    folder.mkdir()
    write_state(folder, state)
    assert state.condition() == "stale"
    assert stop_engine(tmp_path, state, grace_s=0).outcome == "stale"
    assert stranger.poll() is None
    assert not folder.exists()


def test_process_of_another_boot_is_stale(tmp_path: Path) -> None:
    state = state_of(os.getpid())
    assert replace(state, engine=replace(state.engine, boot="another")).condition() == "stale"


def test_process_of_another_user_is_stale_and_no_crash() -> None:
    state = state_of(os.getpid())
    assert replace(state, engine=replace(state.engine, pid=1)).condition() == "stale"


def test_stale_state_does_not_hinder_a_new_launch(tmp_path: Path, stranger: subprocess.Popen[bytes]) -> None:
    folder = tmp_path / "e"
    folder.mkdir()
    write_state(folder, state_of(stranger.pid, start_offset=1))
    (folder / "engine.log").write_text("old")
    place = claim(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["lock"]
    place.release()


def test_live_state_and_held_lock_do(tmp_path: Path) -> None:
    place = claim(tmp_path / "e")
    with pytest.raises(BusyError) as caught:
        claim(tmp_path / "e")
    assert caught.value.error_id == "engine-name-taken"
    place.release()
    write_state(tmp_path / "e", state_of(os.getpid()))
    with pytest.raises(BusyError) as caught:
        claim(tmp_path / "e")
    assert "http://127.0.0.1:4242" in caught.value.why


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b'{"schema": "opencoti.engine/9"}', b"\xff", b'{"schema": "opencoti.engine/1"}'],
)
def test_damaged_state_is_nothing(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / states.STATE_NAME).write_bytes(damage)
    assert read_state(tmp_path / "e") is None
    assert list(known_states(tmp_path)) == []


@pytest.mark.parametrize("pid", ["1", "0", "-1", '"7"', "true"])
def test_process_numbers_that_would_hit_others_are_refused(tmp_path: Path, pid: str) -> None:
    write_state(tmp_path, state_of(os.getpid()))
    path = tmp_path / states.STATE_NAME
    path.write_text(path.read_text().replace(f'"pid": {os.getpid()}', f'"pid": {pid}'))
    assert read_state(tmp_path) is None


def test_state_under_another_name_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    write_state(tmp_path / "other", state_of(os.getpid()))
    assert list(known_states(tmp_path)) == []


def test_sweep_removes_what_killed_launches_left_and_nothing_else(tmp_path: Path) -> None:
    for name, offset in (("dead", 7), ("alive", 0), ("held", 7)):
        place = claim(tmp_path / name)
        write_state(tmp_path / name, state_of(os.getpid(), name=name, start_offset=offset))
        if name == "held":
            held = place
        else:
            place.release()
    assert sweep(tmp_path) == ["dead"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alive", "held"]
    held.release()
