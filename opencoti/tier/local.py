"""The tier of this machine: one engine for all programs of this user, started when the first one needs it.

The engine runs under the name `tier-NAME` with a keeper of its own (`opencoti.launch`), so it outlives the
program that started it; it ends when nobody has held a lease for `idle_s` seconds. Who uses it is a matter of
locks that the kernel keeps (`opencoti.tier.users`): programs may be killed at any moment, also while they are
starting the engine. What runs is written down once, in the notes of the launch.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from opencoti import procfs
from opencoti.console import Console
from opencoti.errors import BusyError, OpencotiError, UsageError
from opencoti.launch.asynchronous import made_in_thread
from opencoti.launch.child import reap_detached
from opencoti.launch.engine import Engine, launch, read_api_key
from opencoti.launch.options import LaunchOptions, Sharing
from opencoti.launch.probe import Address, NoAnswerError, ask
from opencoti.launch.state import STATE_NAME, State, engines_folder, read_state
from opencoti.launch.stopping import stop_engine
from opencoti.tier.fingerprint import fingerprint
from opencoti.tier.lease import Lease
from opencoti.tier.measure import measured
from opencoti.tier.provider import Capabilities, Health
from opencoti.tier.users import Patience, UserLock

DEFAULT_IDLE_S: Final = 300.0
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
_SLACK_S: Final = 30.0  # for an engine that is just ending, and for a first unpacking
_TAKE_OVER_S: Final = 1.0
_HEALTH_TIMEOUT_S: Final = 5.0
_GRACE_S: Final = 10.0
Start = Callable[..., Engine]


class LocalTier:
    """A `TierProvider` over the engine of this machine.

    Programs that name the same tier share its engine. They must want the same: an engine with other
    options is replaced while nobody uses it, and is `tier-other-options` while somebody does.

    Args:
        options: the engine that is wanted; `name` and `sharing` in it are set here.
        name: of the tier; another one is another engine.
        idle_s: how long the engine stays after the last lease, in seconds; None: until it is stopped. The
            wish of the program that starts it counts.
        console: told about progress while an engine starts; silent if None.
        environ: environment to read instead of this process's.
        wait_s: how long `acquire` waits for other programs; None: as long as a start may take.
        start: what starts an engine; another one is for tests.

    Raises:
        UsageError: `bad-tier-name`, or the options are not valid (see `LaunchOptions.require_valid`).
        ConfigError: `no-cache-folder`.
    """

    def __init__(
        self,
        options: LaunchOptions,
        *,
        name: str = "local",
        idle_s: float | None = DEFAULT_IDLE_S,
        console: Console | None = None,
        environ: Mapping[str, str] | None = None,
        wait_s: float | None = None,
        start: Start = launch,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise UsageError(
                "bad-tier-name",
                f"{name[:60]!r} is no name of a tier",
                why="expected small letters, digits, -",
            )
        if idle_s is not None and not 0 <= idle_s <= 365 * 86_400:
            raise UsageError("bad-launch-option", f"--idle {idle_s!r} is not usable", why="expected seconds")
        options.require_valid()
        self._environ = os.environ if environ is None else environ
        self._engines = engines_folder(self._environ)
        self._users = self._engines.parent / "tiers" / name / "users"
        self._name = name
        self._console = console or Console(quiet=True)
        self._wait_s = options.ready_timeout_s + _SLACK_S if wait_s is None else wait_s
        self._start_engine = start
        wish = fingerprint(options, self._environ)
        sharing = Sharing(fingerprint=wish, users_lock=self._users, idle_s=idle_s)
        self._options = replace(options, name=f"tier-{name}", sharing=sharing)

    @property
    def name(self) -> str:
        """Name of the tier."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """What the options promise; a lease knows more."""
        is_chat = self._options.purpose == "chat"
        return Capabilities(
            has_chat=is_chat,
            has_embeddings=not is_chat,
            reuse="slots" if is_chat else "none",
            is_isolated=self._options.is_isolated,
            is_local=True,
            slots=self._options.parallel,
        )

    def health(self) -> Health:
        """Say how the engine is, without starting it."""
        try:
            lock = UserLock.try_take(self._users, "shared")
        except OpencotiError as error:
            return Health(status="failed", detail=str(error))
        if lock is None:
            return Health(status="starting", detail="another program is starting or ending it")
        try:
            state = self._running()
        finally:
            lock.release()
        return Health(status="stopped") if state is None else self._ask(state)

    def acquire(self, *, cancel: threading.Event | None = None) -> Lease:
        """Return a lease; start the engine if no program of this user has done so.

        Raises:
            BusyError: `tier-other-options`, programs use it with other options; `tier-busy`.
            OpencotiError: as `opencoti.launch.launch`.
            Cancelled: `cancel` was set.
        """
        patience = Patience(self._wait_s, cancel)
        take_over: Patience | None = None
        while True:
            seen = self._running()  # tells which lock is called for; counts only when seen again under it
            is_other = seen is not None and not self._is_wanted(seen)
            is_up = (seen is not None and not is_other) or self._try_bring_up(cancel)
            if is_up and (lease := self._try_join()):
                return lease
            if seen is None and not is_up:
                self._forget_leases_of_the_dead()
            take_over = (take_over or Patience(_TAKE_OVER_S)) if is_other and not is_up else None
            if take_over is not None and take_over.is_over:
                if self._is_used():
                    raise self._other_options_error()
                take_over = None  # somebody starts or ends it
            self._console.status(f"waiting for the engine of tier {self._name}")
            if not patience.wait():
                raise self._busy_error()

    async def acquire_async(self) -> Lease:
        """Return a lease without blocking the event loop; a cancelled task leaves no engine and no lease."""

        def acquire(cancel: threading.Event) -> Lease:
            return self.acquire(cancel=cancel)

        return await made_in_thread(acquire, Lease.release)

    def stop(self) -> bool:
        """End the engine now; tell whether there was one.

        Raises:
            BusyError: `tier-in-use`, a program holds a lease.
            StorageError, BusyError: as `opencoti.launch.stopping.stop_engine`.
        """
        lock = self._try_alone()
        if lock is None:
            raise BusyError(
                "tier-in-use",
                f"other programs use the engine of tier {self._name}",
                hint=f"`python -m opencoti.launch stop tier-{self._name}` ends it all the same",
            )
        try:
            state = self._running()
            if state is not None:
                stop_engine(self._engines, state, grace_s=_GRACE_S)
            return state is not None
        finally:
            lock.release()

    def _try_join(self) -> Lease | None:
        """Return a lease on the engine that runs, if it is the wanted one and nobody is ending it."""
        lock = UserLock.try_take(self._users, "shared")
        if lock is None:
            return None
        with _released_on_error(lock):
            state = self._running()
            if state is not None and self._is_wanted(state) and lock.is_current:
                return self._lease(lock, state)
        lock.release()
        return None

    def _try_bring_up(self, cancel: threading.Event | None) -> bool:
        """Start the engine unless it runs by now; False if others use, start or end the one there is."""
        lock = UserLock.try_take(self._users, "alone")
        if lock is None:
            return False
        try:
            state = self._running()
            if state is None or not self._is_wanted(state):
                self._end_what_is_left()
                self._start_detached(cancel)
            lock.mark()
            return True
        finally:
            lock.release()

    def _try_alone(self) -> UserLock | None:
        """Take the lock alone, once who starts or ends the engine is done; None while programs use it.

        Those who only look hold it for a moment, so one try says nothing.
        """
        patience, look = Patience(_SLACK_S), Patience(_TAKE_OVER_S)
        while (lock := UserLock.try_take(self._users, "alone")) is None:
            if (look.is_over and self._is_used()) or not patience.wait():
                return None
        return lock

    def _is_used(self) -> bool:
        """Tell whether programs hold leases, where the lock could not be had alone: it can be shared then."""
        lock = UserLock.try_take(self._users, "shared")
        if lock is not None:
            lock.release()
        return lock is not None

    def _forget_leases_of_the_dead(self) -> None:
        """Let those who still hold leases of an engine that is gone keep nobody from starting another."""
        lock = UserLock.try_take(self._users, "shared")
        if lock is None:
            return
        try:
            folder = self._engines / self._options.name
            left = read_state(folder)
            if left is None:
                is_gone = not (folder / STATE_NAME).exists()
            else:
                is_gone = left.condition() == "stale" and not procfs.is_same_process(left.keeper)
            if is_gone:
                lock.forget()
        finally:
            lock.release()

    def _end_what_is_left(self) -> None:
        """End an engine with other options, or what a killed starter or keeper left. Hold the lock alone."""
        left = read_state(self._engines / self._options.name)
        if left is not None and left.fingerprint:
            stop_engine(self._engines, left, grace_s=_GRACE_S)

    def _other_options_error(self) -> BusyError:
        return BusyError(
            "tier-other-options",
            f"the engine of tier {self._name} runs with other options, and programs use it",
            why=f"`python -m opencoti.launch status tier-{self._name}` shows it",
            hint="wait until they are done, ask for the same options, or name another tier",
        )

    def _busy_error(self) -> BusyError:
        return BusyError(
            "tier-busy",
            f"the engine of tier {self._name} is being started, ended or used by other programs",
            why=f"for more than {self._wait_s:.0f} s",
            hint="`python -m opencoti.launch status` shows it; wait, and try again",
        )

    def _start_detached(self, cancel: threading.Event | None) -> None:
        engine = self._start_engine(self._options, self._console, environ=self._environ, cancel=cancel)
        try:
            engine.detach()
        except BaseException:
            engine.stop()
            raise

    def _running(self) -> State | None:
        """Return the engine that runs, None where there is none that will stay."""
        reap_detached()
        state = read_state(self._engines / self._options.name)
        if state is None or state.is_transient or state.condition() != "ready":
            return None
        return state if procfs.is_same_process(state.keeper) else None

    def _is_wanted(self, state: State) -> bool:
        return self._options.sharing is not None and state.fingerprint == self._options.sharing.fingerprint

    def _lease(self, lock: UserLock, state: State) -> Lease:
        lock.mark()
        key = read_api_key(self._options.api_key_file)

        def give_back() -> None:
            lock.mark()
            lock.release()

        return Lease(
            url=state.url,
            model=state.alias,
            capabilities=measured(Address(host=state.host, port=state.port, api_key=key), self.capabilities),
            api_key=key,
            release=give_back,
            is_alive=lambda: state.condition() != "stale",
        )

    def _ask(self, state: State) -> Health:
        try:
            answer = ask(Address(host=state.host, port=state.port), "/health", timeout_s=_HEALTH_TIMEOUT_S)
        except NoAnswerError as exc:
            return Health(status="failed", url=state.url, model=state.alias, detail=str(exc))
        if answer.status != 200:
            detail = f"/health says {answer.status}"
            return Health(status="failed", url=state.url, model=state.alias, detail=detail)
        return Health(status="ready", url=state.url, model=state.alias)


@contextmanager
def _released_on_error(lock: UserLock) -> Iterator[None]:
    try:
        yield
    except BaseException:
        lock.release()
        raise
