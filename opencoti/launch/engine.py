"""From options to a running engine: the named steps of a launch, and the handle that comes out of it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypedDict

from opencoti import procfs
from opencoti.console import Console
from opencoti.errors import MissingError, UsageError, storage_error
from opencoti.formats import is_ape
from opencoti.launch.binary import Binary, Search, checkout_root, find_binary
from opencoti.launch.child import Child, ChildPlan
from opencoti.launch.command import engine_arguments
from opencoti.launch.environment import engine_environment
from opencoti.launch.failures import died_error
from opencoti.launch.options import LaunchOptions, Sharing, parse_gpu
from opencoti.launch.state import Place, State, claim, engines_folder, sweep, write_state

DEFAULT_GRACE_S: Final = 10.0
_KEPT_FAILURES: Final = 5
_ENDING_S: Final = 15.0  # a killed starter's engine may be ending; nobody else has the name of a shared one
_MAX_KEY_BYTES: Final = 4096


class Engine:
    """A ready engine, owned by this process.

    Use it in a `with` block, or call `stop`. However this process ends, the engine ends with it, unless
    `detach` was called.
    """

    def __init__(self, child: Child, place: Place, state: State) -> None:
        self._child = child
        self._place = place
        self._is_detached = False
        self._is_stopped = False
        self.state = state

    @property
    def url(self) -> str:
        """Base address, like `http://127.0.0.1:41234`."""
        return self.state.url

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return self.state.port

    @property
    def pid(self) -> int:
        """Number of its process."""
        return self.state.engine.pid

    @property
    def log_path(self) -> Path:
        """Its log; older lines are in the file of the same name with `.1`."""
        return self._place.log

    @property
    def exit_code(self) -> int | None:
        """How it ended: its code, negative for a signal; None while it runs or where nobody knows."""
        return self._child.code

    def is_alive(self) -> bool:
        """Tell whether it runs."""
        return not self._child.wait(0)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it ends by itself, at most `timeout_s` seconds; tell whether it has."""
        return self._child.wait(timeout_s)

    def require_alive(self) -> None:
        """Raise `MissingError` (`engine-died`) with its exit code and last lines if it has ended."""
        if self._child.wait(0):
            raise died_error(self._child.code, self.log_path, when="by itself")

    def stop(self, *, grace_s: float = DEFAULT_GRACE_S) -> int | None:
        """End it with SIGTERM, after `grace_s` seconds with SIGKILL; return its exit code.

        Afterwards no process, port or file of it is left. Does nothing the second time. An interruption
        during the grace shortens it; the engine is gone in that case too. A detached engine is left alone.
        """
        if self._is_detached:
            return None
        if self._is_stopped:
            return self._child.code  # its name may be another launch's by now
        try:
            return self._child.stop(grace_s=grace_s) if not self._child.has_ended else self._child.code
        finally:
            self._child.kill()
            self._place.remove()
            self._place.release()
            self._place = replace(self._place, lock=-1)
            self._is_stopped = True

    def detach(self) -> State:
        """Let it go on when this process ends; `python -m opencoti.launch stop NAME` ends it.

        Afterwards this object is of no more use but for its `state`.

        Raises:
            MissingError: `engine-died`, it is gone already.
            StorageError: its notes cannot be written; it was ended, and `stop` removes its files.
        """
        if not self._child.detach():
            raise died_error(self._child.code, self.log_path, when="by itself")
        try:
            # Only now: who reads that it stays must not get one whose keeper ends it with its launcher.
            write_state(self._place.folder, replace(self.state, is_transient=False))
        except BaseException:
            self._child.kill()
            raise
        self.state = replace(self.state, is_transient=False)
        self._is_detached = True
        self._place.release()
        self._place = replace(self._place, lock=-1)
        return self.state

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _Watched(TypedDict, total=False):
    users_lock: str
    idle_s: float


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """Everything that is known before the engine starts."""

    options: LaunchOptions
    binary: Binary
    place: Place
    environ: Mapping[str, str]
    mark: str
    alias: str
    api_key: str


def launch(
    options: LaunchOptions,
    console: Console | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cancel: threading.Event | None = None,
) -> Engine:
    """Start an engine and wait until it is ready.

    Ready means: this process, alive, listening where it was told, serving this model, and one token made.
    May be called from any thread. On any error nothing is left behind but a copy of the log.

    Args:
        options: what is wanted.
        console: told about progress; silent if None.
        environ: environment to read instead of this process's.
        cancel: set it from another thread to give up.

    Raises:
        UsageError: `bad-launch-option` and others, see `LaunchOptions.require_valid`.
        MissingError: `engine-not-found`, `engine-died`, `engine-not-ready`, `engine-mute`, `gpu-not-usable`…
        BusyError: `engine-name-taken`, `port-in-use`.
        VerificationError: `engine-other-model`, `engine-open-to-all`, `engine-other-port`, `port-shared`.
        StorageError: a folder cannot be written, the engine may not be run.
    """
    _require_linux()
    console = console or Console(quiet=True)
    given = os.environ if environ is None else environ
    options.require_valid()
    options = replace(options, host="127.0.0.1" if options.host == "localhost" else options.host)
    binary = find_binary(
        Search(
            environ=given,
            explicit=options.binary,
            pin=options.pin,
            checkout=checkout_root(),
            allow_fetch=options.allow_fetch,
        ),
        console,
    )
    if options.port:
        _require_free(options.port)
    folder = engines_folder(given)
    sweep(folder)
    name = options.name or f"run-{os.urandom(5).hex()}"
    place = claim(folder / name, ending_s=_ENDING_S if options.sharing else 0.0)
    prepared = _Prepared(
        options=options,
        binary=binary,
        place=place,
        environ=given,
        mark=os.urandom(16).hex(),
        alias=options.alias or (options.model.name if options.model else ""),
        api_key=read_api_key(options.api_key_file),
    )
    console.info(f"engine: {binary.path} ({binary.named_by})")
    return _start(prepared, console, cancel)


def _require_free(port: int) -> None:
    from opencoti.launch.ready import foreign_listener, port_in_use

    if (other := foreign_listener(port, {})) is not None:
        raise port_in_use(other)


def _start(prepared: _Prepared, console: Console, cancel: threading.Event | None) -> Engine:
    child: Child | None = None
    try:
        plan = _plan(prepared)
        child = Child.start(plan)
        # The engine loads meanwhile.
        from opencoti.launch import gpu as gpus
        from opencoti.launch.ready import Waiter

        state = _loading_state(prepared, child)
        write_state(prepared.place.folder, state)
        waiter = Waiter(
            child,
            prepared.options,
            log=prepared.place.log,
            alias=prepared.alias,
            api_key=prepared.api_key,
            console=console,
            cancel=cancel,
            kept_log=_kept_log(prepared.place),
        )
        ready = waiter.wait()
        libraries = gpus.mapped_libraries(ready.pid)
        gpu = parse_gpu(prepared.options.gpu)
        if gpu not in ("auto", "disable"):
            gpus.require_mapped(libraries, gpu)
        state = replace(
            state,
            phase="ready",
            engine=procfs.identify(ready.pid) or state.engine,
            host=ready.host,
            port=ready.port,
            model=ready.model,
            alias=ready.alias,
            libraries=libraries,
        )
        write_state(prepared.place.folder, state)
        return Engine(child, prepared.place, state)
    except BaseException:
        if child is not None:
            _end_failed(child)
        _keep_log(prepared.place)
        prepared.place.remove()
        prepared.place.release()
        raise


def _end_failed(child: Child) -> None:
    """End an engine that did not become ready; a second interruption must not leave it behind."""
    try:
        child.stop(grace_s=1.0)
    finally:
        child.kill()


def _plan(prepared: _Prepared) -> ChildPlan:
    options, place = prepared.options, prepared.place
    env = engine_environment(
        prepared.environ,
        mark=prepared.mark,
        home=_home_of_user(),
        fallback=str(place.folder.parent.parent / "extracted"),
        pass_env=options.pass_env,
        env=options.env,
    )
    slots, work = place.folder / "slots", place.folder / "work"
    try:
        # Empty and private: nothing that lies in the caller's working directory can be picked up.
        for folder in (slots, work):
            folder.mkdir(mode=0o700)
    except OSError as exc:
        raise storage_error(exc, f"cannot write {place.folder}") from exc
    for_ape, gpu = is_ape(prepared.binary.path), parse_gpu(options.gpu)
    devices: tuple[str, ...] = ()
    if gpu not in ("auto", "disable") and not for_ape:
        from opencoti.launch import gpu as gpus

        devices = gpus.require_devices(prepared.binary.path, gpu, env)
    words = engine_arguments(
        options,
        alias=prepared.alias,
        devices=devices,
        slots_folder=slots,
        for_ape=for_ape,
        knows_origins=prepared.binary.named_by != "PATH",  # an engine of any age
    )
    return ChildPlan(
        argv=[str(prepared.binary.path), *words],
        env=env,
        cwd=work,
        folder=place.folder,
        log=place.log,
        lock=place.lock,
        mark=prepared.mark,
        is_ape=for_ape,
        max_log_bytes=options.max_log_bytes,
        **_watched(options.sharing),
    )


def _watched(sharing: Sharing | None) -> _Watched:
    """Return what the keeper of a shared engine looks at to end it when nobody uses it."""
    if sharing is None or sharing.idle_s is None:
        return {}
    return {"users_lock": str(sharing.users_lock), "idle_s": sharing.idle_s}


def _loading_state(prepared: _Prepared, child: Child) -> State:
    from opencoti.launch.ready import connect_host

    options = prepared.options
    return State(
        name=prepared.place.folder.name,
        phase="loading",
        is_transient=True,
        mark=prepared.mark,
        keeper=child.keeper,
        engine=child.engine,
        started=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        artifact=os.fsencode(prepared.binary.path).decode("utf-8", "replace"),  # for people only
        model=str(options.model or ""),
        alias=prepared.alias,
        host=connect_host(options.host),
        port=options.port,
        is_isolated=options.is_isolated,
        fingerprint=options.sharing.fingerprint if options.sharing else "",
    )


def _keep_log(place: Place) -> None:
    """Copy the log of a failed launch to `failed/`, of which the newest few stay."""
    kept = _kept_log(place)
    with suppress(OSError):
        if place.log.stat().st_size == 0:
            return
        import shutil

        kept.parent.mkdir(exist_ok=True, mode=0o700)
        shutil.copyfile(place.log, kept)
        logs = sorted(kept.parent.glob("*.log"), key=lambda path: path.stat().st_mtime_ns)
        for path in logs[:-_KEPT_FAILURES]:
            path.unlink()


def _kept_log(place: Place) -> Path:
    return place.folder.parent.parent / "failed-engines" / f"{place.folder.name}.log"


def _home_of_user() -> str | None:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir or None
    except KeyError:
        return None


def read_api_key(path: Path | None) -> str:
    """Return the password in the first line of a file, empty without one.

    Raises:
        UsageError: `api-key-unreadable`.
    """
    if path is None:
        return ""
    try:
        with open(path, encoding="utf-8") as file:
            key = file.readline(_MAX_KEY_BYTES).strip()
    except (OSError, UnicodeDecodeError) as exc:
        why = "it is not UTF-8" if isinstance(exc, UnicodeDecodeError) else exc.strerror or ""
        raise _unusable_key(f"cannot read {path}", why) from exc
    if not key:
        raise _unusable_key(f"{path} holds no password", "its first line is empty")
    return key


def _unusable_key(what: str, why: str) -> UsageError:
    return UsageError(
        "api-key-unreadable",
        what,
        why=why,
        hint="--api-key-file wants a text file with the password in its first line",
    )


def _require_linux() -> None:
    if sys.platform != "linux":
        raise MissingError(
            "launch-needs-linux",
            "the launcher runs on Linux only",
            why="it reads from /proc which process listens where",
            hint="start the engine by hand, and point opencoti.client at it",
        )
