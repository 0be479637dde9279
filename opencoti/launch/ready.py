"""Waiting for an engine: its own socket, its health, its model, and one token (case B45).

The port is read off the kernel's socket table, from sockets that processes of this launch hold. So nobody can
take it in between, no log is parsed, and an answer of somebody else never counts.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from opencoti import procfs
from opencoti.console import Console
from opencoti.errors import BusyError, MissingError, OpencotiError, VerificationError
from opencoti.launch.child import Child
from opencoti.launch.failures import died_error, log_tail, tail_lines
from opencoti.launch.options import LaunchOptions
from opencoti.launch.probe import Address, Answer, NoAnswerError, ask
from opencoti.procfs import Listener

_FIRST_POLL_S: Final = 0.004
_LAST_POLL_S: Final = 0.1
_POLL_SHARE: Final = 0.02  # of the time that has passed: what a poll may add to a launch
_PROBE_TIMEOUT_S: Final = 10.0
_TOKEN_TIMEOUT_S: Final = 300.0
_DEATH_SIGN_S: Final = 1.0
_DEATH_NEWS_S: Final = 10.0
_LOADING: Final = 503
_THOROUGH_POLL: Final = 20
_MAX_NAME: Final = 1024


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A ready engine: where it listens, as which process, and what it says it serves."""

    pid: int
    host: str
    port: int
    model: str
    alias: str
    slots: int


class _StillLoadingError(Exception):
    """The engine answers that it is loading, although its health is good."""


class Cancelled(BaseException):
    """Whoever asked for the launch does not want it any more."""


class Waiter:
    """Waits for one engine. Owns nothing: the caller ends the engine when this raises."""

    def __init__(
        self,
        child: Child,
        options: LaunchOptions,
        *,
        log: Path,
        alias: str,
        api_key: str,
        console: Console,
        cancel: threading.Event | None = None,
        kept_log: Path | None = None,
    ) -> None:
        self._child = child
        self._options = options
        self._log = log
        self._alias = alias
        self._api_key = api_key
        self._console = console
        self._cancel = cancel
        self._kept_log = kept_log
        self._polls = 0
        self._early = ""

    def wait(self) -> Ready:
        """Wait until everything is proved.

        Raises:
            MissingError: `engine-died`, `engine-not-ready`, `engine-mute`, `engine-hijacked`.
            StorageError: `engine-cannot-unpack`.
            BusyError: `port-in-use`, somebody else has the wanted port.
            VerificationError: `engine-open-to-all`, `engine-other-port`, `engine-other-model`, `port-shared`.
        """
        started = time.monotonic()
        end = started + self._options.ready_timeout_s
        while True:
            pid, listener, address = self._wait_healthy(started, end)
            try:
                model, alias, slots = self._check_model(address)
                self._make_one_token(address, end)
            except _StillLoadingError as early:
                # It said 200 to /health before it was ready: what it can do counts, and not what it says.
                self._early = str(early)
                self._wait_a_little(started)
                continue
            self._require_alone(listener)
            return Ready(
                pid=pid, host=address.host, port=listener.port, model=model, alias=alias, slots=slots
            )

    def _wait_healthy(self, started: float, end: float) -> tuple[int, Listener, Address]:
        state = self._early or "it does not listen on any port"
        while time.monotonic() < end:
            held = self._own_listener()
            if held is not None:
                pid, listener = held
                address = Address(
                    host=connect_host(self._options.host), port=listener.port, api_key=self._api_key
                )
                state = self._unhealthy(address)
                if not state:
                    return pid, listener, address
            elif self._options.port:
                self._require_free_port()
            self._wait_a_little(started)
        raise MissingError(
            "engine-not-ready",
            f"the engine was not ready within {self._options.ready_timeout_s:.0f} s",
            why=f"{state}; its last lines:{log_tail(self._log)}",
            hint="a slow disk may need a longer --timeout",
        )

    def _wait_a_little(self, started: float) -> None:
        self._tell(started)
        passed = time.monotonic() - started
        self._pause(min(_LAST_POLL_S, max(_FIRST_POLL_S, passed * _POLL_SHARE)))

    def _own_listener(self) -> tuple[int, Listener] | None:
        """Return the process and socket of this launch that listens."""
        self._polls += 1
        # All members every now and then only: for them every process of the machine is looked at.
        is_thorough = self._polls % _THOROUGH_POLL == 0
        pids = self._child.members() if is_thorough else procfs.descendants(self._child.engine.pid)
        sockets = procfs.sockets_of(pids)
        if not sockets:
            return None
        found = [item for item in procfs.listeners() if item.inode in sockets]
        for item in found:
            self._require_meant(item)
        return (sockets[found[0].inode], found[0]) if found else None

    def _require_meant(self, listener: Listener) -> None:
        """Check that a socket of the engine is where it was told, whatever `.args` in the artifact says."""
        if not listener.is_loopback and not self._options.allow_remote:
            raise VerificationError(
                "engine-open-to-all",
                f"the engine listens on port {listener.port} beyond this machine",
                why="its own arguments (`.args` in the artifact) say so",
                hint="use another artifact, or --allow-remote if that is meant",
            )
        if self._options.port not in (0, listener.port):
            raise VerificationError(
                "engine-other-port",
                f"the engine listens on port {listener.port} and not on {self._options.port}",
                why="its own arguments (`.args` in the artifact) say so",
            )

    def _require_free_port(self) -> None:
        family = procfs.descendants(self._child.engine.pid)
        if foreign_listener(self._options.port, procfs.sockets_of(family)) is None:
            return
        other = foreign_listener(self._options.port, procfs.sockets_of(self._child.members()))
        if other is not None:
            raise port_in_use(other)

    def _unhealthy(self, address: Address) -> str:
        """Return what is missing, empty when the engine says it is ready."""
        try:
            answer = ask(address, "/health", timeout_s=_PROBE_TIMEOUT_S)
        except NoAnswerError as exc:
            return f"port {address.port} is open, but {exc}"
        # A careless server says 200 while it is loading; the body and the token below decide.
        if answer.status == 200 and answer.field("status") in ("ok", None):
            return ""
        return f"/health says {answer.status}"

    def _check_model(self, address: Address) -> tuple[str, str, int]:
        props = self._demand(address, "/props", None, _PROBE_TIMEOUT_S)
        served = props.field("model_path")
        served = served if isinstance(served, str) else ""
        wanted = self._options.model
        if wanted is not None and not is_same_file(served, wanted):
            raise _other_model(f"/props says it serves {served[:200]!r}, not {wanted}")
        models = self._demand(address, "/v1/models", None, _PROBE_TIMEOUT_S).field("data")
        names = (
            [item.get("id") for item in models if isinstance(item, dict)] if isinstance(models, list) else []
        )
        if not names or (self._alias and self._alias not in names):
            raise _other_model(f"/v1/models lists {str(names)[:200]}, not {self._alias or 'a model'}")
        slots = props.field("total_slots")
        model = as_told(served) if wanted is None else str(wanted.absolute())
        return model, self._alias or as_told(str(names[0])), slots if isinstance(slots, int) else 1

    def _make_one_token(self, address: Address, end: float) -> None:
        timeout_s = max(_PROBE_TIMEOUT_S, min(_TOKEN_TIMEOUT_S, end - time.monotonic()))
        if self._options.purpose == "embedding":
            answer = self._demand(address, "/v1/embeddings", {"input": "a"}, timeout_s)
            is_done = bool(answer.field("data"))
        else:
            body = {"prompt": "a", "max_tokens": 1, "cache_prompt": False, "ignore_eos": True}
            answer = self._demand(address, "/v1/completions", body, timeout_s)
            usage = answer.field("usage")
            is_done = isinstance(usage, dict) and usage.get("completion_tokens") == 1
        if not is_done:
            raise self._mute(f"its first answer is {str(answer.document)[:200]}")

    def _demand(self, address: Address, path: str, body: dict[str, Any] | None, timeout_s: float) -> Answer:
        try:
            answer = ask(address, path, body=body, timeout_s=timeout_s)
        except NoAnswerError as exc:
            self._require_no_death()
            raise self._mute(str(exc)) from exc
        if answer.status == _LOADING:
            raise _StillLoadingError(f"/health says 200, but {path} says {_LOADING}")
        if answer.status != 200 or answer.document is None:
            raise self._mute(f"{path} gives status {answer.status}: {str(answer.document)[:200]}")
        return answer

    def _require_no_death(self) -> None:
        """Check that an answer did not break off because the engine died.

        The connection ends before its process does, and the news of that may come late on a busy machine. An
        engine that still listens lives, so it is not waited for longer than a moment.
        """
        self._require_alive(_DEATH_SIGN_S)
        if self._own_listener() is None:
            self._require_alive(_DEATH_NEWS_S)

    def _mute(self, why: str) -> OpencotiError:
        return MissingError(
            "engine-mute",
            "the engine listens, but does not answer as it should",
            why=f"{why}; its last lines:{log_tail(self._log)}",
        )

    def _require_alone(self, listener: Listener) -> None:
        """Check that nobody else takes connections at the same address (two may share a port)."""
        for item in procfs.listeners():
            if item.inode != listener.inode and (item.port, item.address) == (
                listener.port,
                listener.address,
            ):
                raise VerificationError(
                    "port-shared",
                    f"port {listener.port} is shared with another program",
                    why=f"{procfs.owner_of(item)} takes a part of the requests",
                    hint="choose another port, or leave it to the kernel with --port 0",
                )

    def _require_alive(self, patience_s: float = 0) -> None:
        if self._child.wait(patience_s):
            if self._options.port:
                other = foreign_listener(self._options.port, {})
                if other is not None:
                    raise port_in_use(other)
            raise died_error(self._child.code, self._log, when="before it was ready", kept_log=self._kept_log)

    def _pause(self, seconds: float) -> None:
        if self._child.wait(seconds):
            self._require_alive()
        if self._cancel is not None and self._cancel.is_set():
            raise Cancelled

    def _tell(self, started: float) -> None:
        if self._polls % 10 == 0:
            seconds = time.monotonic() - started
            last = tail_lines(self._log, 1)
            self._console.status(
                f"still loading, {seconds:.0f} s of at most {self._options.ready_timeout_s:.0f} s: "
                f"{last[0] if last else 'no output yet'}"
            )


def connect_host(host: str) -> str:
    """Return the address at which this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "localhost": "127.0.0.1"}.get(host, host)  # noqa: S104


def foreign_listener(port: int, own: dict[int, int]) -> Listener | None:
    """Return a socket on `port` that none of the given ones is, None if there is none."""
    return next((item for item in procfs.listeners() if item.port == port and item.inode not in own), None)


def port_in_use(listener: Listener) -> BusyError:
    """Say who has a port."""
    return BusyError(
        "port-in-use",
        f"port {listener.port} is in use by another program",
        why=f"{procfs.owner_of(listener)} listens there",
        hint="stop it, choose another --port, or leave it to the kernel with --port 0",
    )


def as_told(name: str) -> str:
    """Return a name that an engine gives itself, as text that can be written down and printed."""
    return "".join(c if c.isprintable() else "?" for c in name[:_MAX_NAME])


def is_same_file(served: str, wanted: Path) -> bool:
    """Tell whether what an engine says it serves is the wanted file; it may say anything."""
    if not served:
        return False
    if Path(served) in (wanted, wanted.absolute()):
        return True
    try:
        return os.path.samefile(served, wanted)
    except (OSError, ValueError):  # also text that no path can be
        return False


def _other_model(why: str) -> VerificationError:
    return VerificationError(
        "engine-other-model",
        "the engine serves another model than the one that was asked for",
        why=why,
        hint="its own arguments (`.args` in the artifact) may name one; launch it without --model then",
    )
