"""Names and folders of launches between programs that interfere at the worst moment.

The moments are placed: the interpreter tells about each system call before it is made (audit events), and a
reader of a pipe that has a name waits for its writer. So nothing here hopes for luck.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from opencoti.errors import BusyError
from opencoti.launch import child
from opencoti.launch.keeper import Keeper
from opencoti.launch.state import LOCK_NAME, STATE_NAME, Place, State, claim, read_state, sweep, write_state
from opencoti.launch.stopping import stop_engine
from tests.unit.opencoti.launch.test_state import state_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the launcher reads /proc")


@dataclass
class Moments:
    """What happens just before this thread makes a system call."""

    thread: int = field(default_factory=threading.get_ident)
    actions: dict[tuple[str, str], Callable[[], object]] = field(default_factory=dict)
    seen: list[tuple[str, str]] = field(default_factory=list)
    is_over: bool = False

    def before(self, event: str, path: Path | None, action: Callable[[], object]) -> None:
        """Do something once, before the next `event` about `path`."""
        self.actions[(event, str(path or ""))] = action

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.is_over or threading.get_ident() != self.thread:
            return
        path = os.fspath(args[0]) if args and isinstance(args[0], str | os.PathLike) else ""
        self.seen.append((event, str(path)))
        action = self.actions.pop((event, str(path)), None)
        if action is not None:
            action()


@pytest.fixture
def moments() -> Iterator[Moments]:
    moments = Moments()
    sys.addaudithook(moments.hear)  # there is no way back, so it falls silent
    yield moments
    moments.is_over = True


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is taken for an engine."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        yield process
        process.kill()


def dead(state: State) -> State:
    """Return the notes of an engine that has ended."""
    gone = replace(state.engine, start=state.engine.start + 1)
    return replace(state, engine=gone, keeper=gone)


def start_another(folder: Path) -> Place:
    """Do what another launch of this name does first."""
    place = claim(folder)
    (folder / "slots").mkdir()
    return place


def require_untouched(place: Place) -> None:
    assert (place.folder / "slots").is_dir()
    assert os.path.samestat(os.fstat(place.lock), (place.folder / LOCK_NAME).stat())
    place.release()


@pytest.mark.parametrize("has_notes", [False, True])
def test_folder_of_an_ended_engine_is_left_to_the_launch_that_has_its_name_by_now(
    tmp_path: Path, *, has_notes: bool
) -> None:
    folder = tmp_path / "e"
    claim(folder).release()
    ended = dead(state_of(os.getpid()))
    write_state(folder, ended)
    other = start_another(folder)
    if has_notes:
        write_state(folder, replace(state_of(os.getpid()), mark="cd" * 16))
    assert stop_engine(tmp_path, ended, grace_s=0).outcome == "stale"
    require_untouched(other)


def test_folder_of_an_engine_that_was_ended_goes_although_its_launcher_holds_it(tmp_path: Path) -> None:
    place = claim(tmp_path / "e")
    ended = dead(state_of(os.getpid()))
    write_state(tmp_path / "e", ended)
    stop_engine(tmp_path, ended, grace_s=0)
    assert list(tmp_path.iterdir()) == []
    other = start_another(tmp_path / "e")
    place.remove()
    place.release()
    require_untouched(other)


def test_sweep_that_locked_a_file_which_was_just_removed_removes_nothing(
    tmp_path: Path, moments: Moments
) -> None:
    folder, others = tmp_path / "e", []
    claim(folder).release()

    def take_over() -> None:
        shutil.rmtree(folder)
        others.append(start_another(folder))

    moments.before("fcntl.flock", None, take_over)
    assert sweep(tmp_path) == []
    require_untouched(others[0])


def test_sweep_removes_what_a_launcher_left_that_was_killed_beside_its_lock(tmp_path: Path) -> None:
    (tmp_path / "e").mkdir()
    assert sweep(tmp_path) == ["e"]
    assert list(tmp_path.iterdir()) == []


def test_sweep_comes_between_the_folder_of_a_claim_and_its_lock(tmp_path: Path, moments: Moments) -> None:
    folder = tmp_path / "e"
    moments.before("open", folder / LOCK_NAME, lambda: sweep(tmp_path))
    place = start_another(folder)
    assert moments.actions == {}
    assert sweep(tmp_path) == []
    require_untouched(place)


def test_claim_of_a_folder_that_is_removed_before_its_lock_is_opened(
    tmp_path: Path, moments: Moments
) -> None:
    folder = tmp_path / "engines" / "e"
    moments.before("open", folder / LOCK_NAME, folder.rmdir)
    place = start_another(folder)
    assert moments.actions == {}
    require_untouched(place)


def test_claim_below_a_folder_that_is_removed_at_the_same_time(tmp_path: Path, moments: Moments) -> None:
    folder = tmp_path / "engines" / "e"
    folder.parent.mkdir()
    moments.before("os.mkdir", folder, folder.parent.rmdir)
    place = start_another(folder)
    assert moments.actions == {}
    require_untouched(place)


def test_claim_whose_folder_is_removed_while_it_reads_the_old_notes(tmp_path: Path) -> None:
    folder = tmp_path / "e"
    folder.mkdir()
    os.mkfifo(folder / STATE_NAME)
    with ThreadPoolExecutor(1) as pool:
        claimed = pool.submit(claim, folder)
        with open(folder / STATE_NAME, "wb"):  # now it has the lock, and reads
            shutil.rmtree(folder)
        place = claimed.result(timeout=60)
    (folder / "slots").mkdir()
    require_untouched(place)


def test_name_of_a_living_engine_is_told_at_the_first_look(tmp_path: Path, moments: Moments) -> None:
    place = claim(tmp_path / "e")
    write_state(tmp_path / "e", state_of(os.getpid()))
    moments.seen.clear()
    with pytest.raises(BusyError) as caught:
        claim(tmp_path / "e")
    assert caught.value.error_id == "engine-name-taken"
    assert moments.seen.count(("fcntl.flock", "")) == 1
    place.release()


def test_name_of_an_engine_that_may_be_ending_is_waited_for(
    tmp_path: Path, moments: Moments, stranger: subprocess.Popen[bytes]
) -> None:
    folder = tmp_path / "e"
    place = claim(folder)
    write_state(folder, state_of(stranger.pid))
    moments.seen.clear()

    def end() -> None:
        moments.before("fcntl.flock", None, end_now)

    def end_now() -> None:
        stranger.kill()
        stranger.wait()
        place.release()

    moments.before("fcntl.flock", None, end)
    other = claim(folder, ending_s=120)
    assert read_state(folder) is None
    (folder / "slots").mkdir()
    require_untouched(other)


def test_engine_whose_keeper_was_killed_is_given_the_moment_that_it_takes_to_end(
    tmp_path: Path, moments: Moments, stranger: subprocess.Popen[bytes]
) -> None:
    folder = tmp_path / "e"
    claim(folder).release()
    left = state_of(stranger.pid)
    write_state(folder, replace(left, is_transient=False, keeper=dead(left).keeper))

    def end() -> None:
        moments.before("fcntl.flock", None, stranger.kill)

    moments.before("fcntl.flock", None, end)
    place = claim(folder, ending_s=120)
    assert moments.actions == {}
    (folder / "slots").mkdir()
    require_untouched(place)


def test_engine_that_stays_is_not_waited_for_however_long_it_may_be(tmp_path: Path, moments: Moments) -> None:
    place = claim(tmp_path / "e")
    write_state(tmp_path / "e", replace(state_of(os.getpid()), is_transient=False))
    moments.seen.clear()
    with pytest.raises(BusyError):
        claim(tmp_path / "e", ending_s=120)
    assert moments.seen.count(("fcntl.flock", "")) == 1
    place.release()


def _remove_as_launcher(place: Place) -> None:
    place.remove()


def _remove_as_keeper(place: Place) -> None:
    plan = {"log": "", "max_log_bytes": 1, "folder": str(place.folder), "launcher": 1, "users_lock": ""}
    keeper = Keeper(plan)
    keeper.is_orphan = True
    keeper._remove_folder()


@pytest.mark.parametrize("remove", [_remove_as_launcher, _remove_as_keeper], ids=["launcher", "keeper"])
def test_lock_is_the_last_file_that_is_removed(
    tmp_path: Path, moments: Moments, remove: Callable[[Place], None]
) -> None:
    folder = tmp_path / "e"
    place = claim(folder)
    for name in ("slots", "work"):
        (folder / name).mkdir()
        (folder / name / "a").write_bytes(b"a")
    for name in (STATE_NAME, "engine.log", "keeper.log"):
        (folder / name).write_bytes(b"a")
    # Where a folder lists its newest first, and where it lists its oldest first.
    (folder / LOCK_NAME).rename(tmp_path / "aside").rename(folder / LOCK_NAME)
    for number in range(20):
        (folder / str(number)).write_bytes(b"a")
    left: list[list[str]] = []

    def look() -> None:
        left.append(os.listdir(folder))

    class Watching(dict[tuple[str, str], Callable[[], object]]):
        def pop(self, key: tuple[str, str], *_: object) -> Any:
            return look if key[0] in ("os.remove", "os.rmdir") else None

    moments.actions = Watching()
    remove(place)
    moments.is_over = True
    place.release()
    assert len(left) > 20
    assert [names for names in left if names and LOCK_NAME not in names] == []
    assert not folder.exists()


class EndedKeeper:
    """A keeper that was let go and has ended; another thread takes note of it at the same time."""

    def __init__(self) -> None:
        self.is_first = True

    def poll(self) -> int:
        if self.is_first:
            self.is_first = False
            thread = threading.Thread(target=child.reap_detached)
            thread.start()
            thread.join()
        return 0


def test_two_threads_take_note_of_the_same_end(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[Any] = [EndedKeeper()]
    monkeypatch.setattr(child, "_DETACHED", known)
    child.reap_detached()
    assert known == []


_STALLED = """
import os, signal, sys
from opencoti.launch import keeper

class Stalled(keeper.Keeper):
    looks = 0
    def _reap(self):
        self.looks += 1
        if self.looks > 60:
            super()._reap()

keeper._prepare_signals()
one = Stalled({"log": "/nowhere/log", "max_log_bytes": 1, "folder": "", "launcher": 1, "users_lock": ""})
reading, writing = os.pipe()
one.group = os.fork()
if one.group == 0:
    os.setsid()
    os.write(writing, b"x")
    while True:
        signal.pause()
os.read(reading, 1)
one._end_all(0.0)
print(one.code)
"""


def test_end_of_an_engine_is_known_on_a_machine_that_takes_its_time_to_kill() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _STALLED], stdout=subprocess.PIPE, text=True, check=True, timeout=120
    )
    assert done.stdout == "-9\n"
