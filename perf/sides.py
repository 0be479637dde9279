"""The two servers of a bench: the stock one and ours, of one pin, started alike and asked in turns.

"Stock" is the same source with the patches that build and package it, and without those that change what the
server does: `python -m ci build cpu --series-until 0003` makes it. What a server offers is read off its own
help, so that a feature that is not there is said and not measured as if it were.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from select import select
from socket import socket
from typing import Any, Final, Literal

from ci import process
from ci.paths import Layout
from ci.pins import SourcePin
from ci.smoke.loopback import Loopback
from ci.smoke.scratch import Scratch, scratch_folder
from ci.smoke.server import Server
from opencoti import procfs
from opencoti.errors import BuildError, MissingError
from opencoti.hashing import sha256_file
from perf.devices import BenchDevice
from perf.texts import Message
from perf.validity import Counted, same_text_problem

STOCK_UNTIL: Final = "0003"
"""The last patch of the series that changes nothing of what the server does."""
SERVER: Final = "llama-server"
_READY_S: Final = 900.0
_STOP_S: Final = 60.0
_ANSWER_S: Final = 3600.0
_BUSY_S: Final = 60.0
_NOTICE_S: Final = 1.5  # more than the second after which a server looks for its client
_SAVE_OPTION: Final = "--session-save-path"
_LAZY_OPTIONS: Final = ("--slot-initial-ctx", "--slot-shrink-idle-ms")

SideName = Literal["stock", "ours"]


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two servers, and what it offers."""

    name: SideName
    binary: Path
    sha256: str
    has_sessions: bool
    has_lazy_slots: bool

    @classmethod
    def look(cls, name: SideName, binary: Path) -> Side:
        """Ask a server what it offers.

        Raises:
            MissingError: `perf-no-server`; `program-missing`.
            BuildError: `bench-command-failed`, it does not even print its help.
        """
        if not binary.is_file():
            hint = f"python -m ci build cpu --series-until {STOCK_UNTIL}" if name == "stock" else ""
            raise MissingError(
                "perf-no-server",
                f"there is no {name} server {binary}",
                hint=hint or "python -m ci build cpu, or name one with --server",
            )
        done = process.run([binary.absolute(), "--help"], timeout_s=60)
        if not done.is_ok:
            raise BuildError(
                "bench-command-failed", f"{binary} --help ended with {done.code}", why=done.error_text[-300:]
            )
        text = done.text + done.error_text
        return cls(
            name=name,
            binary=binary.absolute(),
            sha256=sha256_file(binary),
            has_sessions=_SAVE_OPTION in text,
            has_lazy_slots=all(option in text for option in _LAZY_OPTIONS),
        )


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Both servers, and the device that they compute on."""

    stock: Side
    ours: Side
    device: BenchDevice

    def notes(self) -> tuple[str, ...]:
        """Say what ours lacks, so that nobody takes two equal servers for a comparison."""
        lacking = []
        if not self.ours.has_sessions:
            lacking.append("the server under test offers no sessions")
        if not self.ours.has_lazy_slots:
            lacking.append("the server under test offers no lazy slots")
        if self.stock.sha256 == self.ours.sha256:
            lacking.append("both servers are the same file: whatever differs is noise")
        return tuple(lacking)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer: its text, its numbers, and what the server says of the session."""

    text: str
    counted: Counted
    session: dict[str, Any]


class Running:
    """A server that answers. `started` ends it."""

    def __init__(self, side: Side, server: Server, client: Loopback) -> None:
        self.side = side
        self.server = server
        self._client = client
        self._spent_s = procfs.processor_seconds(server.engine_pid)

    @property
    def log(self) -> str:
        """What it wrote so far."""
        return self.server.log.read_text(encoding="utf-8", errors="replace")

    @property
    def memory_bytes(self) -> int:
        """The memory that is its own: mapped files such as the model are not counted."""
        return procfs.anonymous_bytes(self.server.engine_pid)

    def chat(self, messages: Sequence[Message], *, tokens: int, session_id: str = "") -> Answer:
        """Send a conversation and wait for its answer of exactly `tokens` tokens.

        Raises:
            VerificationError: `smoke-request-failed`.
        """
        body: dict[str, Any] = {
            "messages": list(messages),
            "max_tokens": tokens,
            "temperature": 0,
            "seed": 1,
            "ignore_eos": True,
        }
        if session_id and self.side.has_sessions:
            body["session_id"] = session_id
        started = time.perf_counter()
        answer = self._client.post("/v1/chat/completions", body, timeout_s=_ANSWER_S)
        wall_s = time.perf_counter() - started
        return _read(answer, tokens, wall_s=wall_s, cpu_s=self._spent())

    @contextmanager
    def second(self) -> Iterator[Running]:
        """Yield another connection to the same server, for a request at the same time."""
        with self.server.client() as client:
            yield Running(self.side, self.server, client)

    @contextmanager
    def reading(self, messages: Sequence[Message], *, tokens: int) -> Iterator[bool]:
        """Have a slot read a prompt while the block runs, and give it up then.

        Yields whether at least `tokens` of it had been read and it was not over. A server notices after a
        second that nobody waits any more; that is waited for, else what is measured next would share with it.
        A stock server begins that second anew with every answer to somebody else, so it is seldom asked.

        Raises:
            BuildError: `perf-never-busy`, so much was not read in a minute; `perf-never-idle`, it went on
                for longer after it was given up.
        """
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=_BUSY_S)
        body = json.dumps({"messages": list(messages), "max_tokens": 1, "temperature": 0})
        try:
            connection.request(
                "POST", "/v1/chat/completions", body, headers={"Content-Type": "application/json"}
            )
            yield self._wait_read(tokens, connection.sock)
        finally:
            connection.close()
        self._wait_idle()

    def _wait_idle(self) -> None:
        end = time.monotonic() + _BUSY_S
        while any(slot["is_processing"] for slot in self._client.get("/slots", timeout_s=60)):
            if time.monotonic() > end:
                raise BuildError(
                    "perf-never-idle", f"the {self.side.name} server goes on with what nobody waits for"
                )
            time.sleep(_NOTICE_S)

    def _wait_read(self, tokens: int, answer: socket) -> bool:
        end = time.monotonic() + _BUSY_S
        while time.monotonic() < end:
            for slot in self._client.get("/slots", timeout_s=60):
                if slot["is_processing"] and slot["n_prompt_tokens_processed"] >= tokens:
                    return True
            if select([answer], [], [], 0)[0]:
                return False
        raise BuildError(
            "perf-never-busy", f"no slot of the {self.side.name} server read {tokens} tokens in a minute"
        )

    def _spent(self) -> float:
        """Return the processor time since the last answer: what was tidied up after that one counts too."""
        before, self._spent_s = self._spent_s, procfs.processor_seconds(self.server.engine_pid)
        return self._spent_s - before

    def forget_spent(self) -> None:
        """Leave what was computed until now out of the processor time of the next answer."""
        self._spent()

    def render(self, messages: Sequence[Message]) -> str:
        """Return the prompt that a conversation becomes."""
        answer = self._client.post("/apply-template", {"messages": list(messages)}, timeout_s=60)
        return str(answer["prompt"])

    def identity(self) -> dict[str, str]:
        """Return what it says it was built from; empty texts from a server that does not say."""
        told = self._client.get("/props", timeout_s=60).get("opencoti") or {}
        return {name: str(told.get(name, "")) for name in ("upstream_commit", "patch_set", "version_string")}


def _read(answer: Any, asked: int, *, wall_s: float, cpu_s: float) -> Answer:
    timings = answer["timings"]
    counted = Counted(
        total_n=int(answer["usage"]["prompt_tokens"]),
        cache_n=int(timings["cache_n"]),
        prompt_n=int(timings["prompt_n"]),
        prompt_s=float(timings["prompt_ms"]) / 1000,
        predicted_n=int(timings["predicted_n"]),
        predicted_s=float(timings["predicted_ms"]) / 1000,
        asked_n=asked,
        wall_s=wall_s,
        cpu_s=cpu_s,
    )
    message = answer["choices"][0]["message"]
    return Answer(
        text=str(message.get("content") or ""), counted=counted, session=answer.get("session") or {}
    )


def default_server(layout: Layout, pin: SourcePin, *, is_stock: bool) -> Path:
    """Return where `python -m ci build cpu` puts its server, or the one of `--series-until`."""
    suffix = f"-until-{STOCK_UNTIL}" if is_stock else ""
    return layout.dist / "backends" / "cpu" / f"{pin.version}{suffix}" / SERVER


@contextmanager
def started(
    side: Side, device: BenchDevice, arguments: Sequence[str | Path], *, layout: Layout
) -> Iterator[Running]:
    """Start a server on loopback in a home of its own, and end it afterwards.

    Raises:
        OpencotiError: those of `Server.wait_ready` and `Server.stop`.
    """
    with scratch_folder(layout.build / "perf") as scratch:
        log = scratch.root / "server.log"
        argv = [device.place(side.binary, scratch.root), *device.arguments, *arguments]
        with open(log, "wb") as file:
            child = process.spawn(
                [*argv, "--host", "127.0.0.1", "--port", "0", "--no-ui"],
                log=file,
                cwd=scratch.work,
                env=_environment(scratch) | dict(device.variables),
            )
        server = Server(child, scratch=scratch, log=log)
        try:
            server.wait_ready(port=0, timeout_s=_READY_S)
            with server.client() as client:
                yield Running(side, server, client)
            server.stop(grace_s=_STOP_S)
        finally:
            server.kill()


@contextmanager
def both(
    sides: Sides,
    arguments: Sequence[str | Path],
    *,
    layout: Layout,
    ours: Sequence[str | Path] = (),
) -> Iterator[tuple[Running, Running]]:
    """Start stock and ours; `ours` are arguments that only the latter gets. One computes while one waits."""
    with ExitStack() as stack:
        yield (
            stack.enter_context(started(sides.stock, sides.device, arguments, layout=layout)),
            stack.enter_context(started(sides.ours, sides.device, [*arguments, *ours], layout=layout)),
        )


def in_turn(pair: tuple[Running, Running], number: int) -> tuple[Running, Running]:
    """Return the two in the order of this round: each goes first in half of them."""
    return pair if number % 2 else (pair[1], pair[0])


def differing_texts(stock: Sequence[Answer], ours: Sequence[Answer]) -> list[str]:
    """Say which answers of a pair differ although nothing was left to chance.

    Only where both computed the same part of the prompt: a model of noise answers otherwise after the last
    bits of a sum have changed, and they do when a prompt is cut into other batches.
    """
    pairs = zip(stock, ours, strict=True)
    alike = ((a, b) for a, b in pairs if a.counted.prompt_n == b.counted.prompt_n)
    return [problem for a, b in alike if (problem := same_text_problem(a.text, b.text))]


def require_same_pin(pair: tuple[Running, Running]) -> dict[str, str]:
    """Check that both servers are of one upstream commit; return how to name them.

    Raises:
        BuildError: `perf-other-pin`.
    """
    stock, ours = (running.identity() for running in pair)
    if stock["upstream_commit"] != ours["upstream_commit"]:
        raise BuildError(
            "perf-other-pin",
            "the two servers are not of the same upstream commit",
            why=f"stock is of {stock['upstream_commit'] or 'none that it names'}, "
            f"ours of {ours['upstream_commit'] or 'none that it names'}",
            hint=f"build both from one pin: python -m ci build cpu --series-until {STOCK_UNTIL}",
        )
    return {
        "upstream commit": ours["upstream_commit"],
        **{
            f"{running.side.name} server": f"{told['version_string']}, patch set {told['patch_set'][:12]}, "
            f"sha256 {running.side.sha256[:12]}"
            for running, told in zip(pair, (stock, ours), strict=True)
        },
    }


def _environment(scratch: Scratch) -> dict[str, str]:
    """Return the environment of a smoke test without its trap, which a stock server would load."""
    return {
        name: value for name, value in scratch.environment(os.environ).items() if name != "GGML_BACKEND_PATH"
    }
