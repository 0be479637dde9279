"""Server-sent events, sans I/O: blocks of bytes in, whole events and then a complete stream out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from opencoti.client.failures import malformed, truncated
from opencoti.client.payloads import (
    ChatChunk,
    SessionReport,
    TextCompletion,
    Timings,
    Usage,
    parse_event,
)

DONE: Final = b"[DONE]"
C = TypeVar("C", bound=ChatChunk | TextCompletion)


class EventParser:
    """Cuts a stream of bytes into the data of its events.

    Each byte is looked at a fixed number of times, however small the blocks are that it comes in.
    """

    def __init__(self, path: str, *, max_event_bytes: int) -> None:
        self._path = path
        self._max_event_bytes = max_event_bytes
        self._rest = bytearray()  # a line whose end is not there yet
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, block: bytes) -> list[bytes]:
        """Return the data of the events that are complete now.

        Raises:
            VerificationError: `answer-malformed`, an event is too long or the lines are of no known kind.
        """
        events = []
        for line in self._lines(block):
            event = self._take(line.removesuffix(b"\r"))
            if event is not None:
                events.append(event)
        if self._size + len(self._rest) > self._max_event_bytes:
            raise malformed(self._path, f"an event is longer than {self._max_event_bytes} bytes")
        return events

    def _lines(self, block: bytes) -> list[bytes]:
        """Return the lines that end in this block."""
        if b"\n" not in block:
            self._rest += block
            return []
        first, *lines, rest = block.split(b"\n")
        self._rest += first
        whole = bytes(self._rest)
        self._rest.clear()
        self._rest += rest
        return [whole, *lines]

    def _take(self, line: bytes) -> bytes | None:
        if not line:
            event, self._data, self._size = b"\n".join(self._data), [], 0
            return event or None
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._size += len(value) + 1  # an event of nothing but empty lines has an end, too
        elif name not in (b"", b"event", b"id", b"retry"):
            raise malformed(self._path, f"its stream holds the line {line[:80]!r}")
        return None


@dataclass(frozen=True, kw_only=True)
class StreamEnd:
    """What a finished stream amounts to."""

    text: str
    reasoning: str
    finish_reason: str | None
    usage: Usage | None
    timings: Timings | None
    tool_calls: tuple[dict[str, Any], ...] = ()
    session: SessionReport | None = None


class ToolCalls:
    """Puts the calls of a streamed answer together: each piece adds to the arguments of one of them."""

    def __init__(self) -> None:
        self._calls: dict[int, dict[str, Any]] = {}

    def add(self, pieces: Iterable[dict[str, Any]]) -> None:
        """Take the pieces of one event."""
        for piece in pieces:
            index = piece.get("index")
            call = self._calls.setdefault(index if isinstance(index, int) else len(self._calls), {})
            function = piece.get("function")
            call.update({name: piece[name] for name in ("id", "type") if piece.get(name)})
            if isinstance(function, dict):
                known = call.setdefault("function", {"name": "", "arguments": ""})
                known["name"] = function.get("name") or known["name"]
                known["arguments"] += str(function.get("arguments") or "")

    def all(self) -> tuple[dict[str, Any], ...]:
        """Return the calls in their order."""
        return tuple(self._calls[index] for index in sorted(self._calls))


class StreamReader(Generic[C]):
    """Turns the blocks of a streamed answer into chunks, and keeps what they amount to."""

    def __init__(self, kind: type[C], path: str, *, max_event_bytes: int) -> None:
        self._kind = kind
        self._path = path
        self._parser = EventParser(path, max_event_bytes=max_event_bytes)
        self._texts: list[str] = []
        self._reasonings: list[str] = []
        self._tool_calls = ToolCalls()
        self._finish_reason: str | None = None
        self._usage: Usage | None = None
        self._timings: Timings | None = None
        self._session: SessionReport | None = None
        self.is_done = False

    def feed(self, block: bytes) -> list[C]:
        """Return the chunks that are complete now; what follows the end of the stream is not looked at.

        Raises:
            NetworkError: `engine-failed`, the engine reports an error.
            VerificationError: `answer-malformed`.
        """
        chunks: list[C] = []
        for data in self._parser.feed(block):
            if data == DONE:
                self.is_done = True
                break
            chunk = parse_event(self._kind, data, self._path)
            self._keep(chunk)
            chunks.append(chunk)
        return chunks

    def _keep(self, chunk: C) -> None:
        if chunk.choices:
            self._texts.append(chunk.text)
            self._finish_reason = chunk.finish_reason or self._finish_reason
        if isinstance(chunk, ChatChunk) and chunk.choices:
            delta = chunk.choices[0].delta
            self._reasonings.append(delta.reasoning_content or "")
            self._tool_calls.add(delta.tool_calls or ())
        self._usage = chunk.usage or self._usage
        self._timings = chunk.timings or self._timings
        self._session = chunk.session or self._session

    def end(self) -> StreamEnd:
        """Return the whole answer.

        Raises:
            NetworkError: `stream-truncated`, the stream ended before it was complete.
        """
        if not self.is_done or self._finish_reason is None:
            raise truncated(self._path)
        return StreamEnd(
            text="".join(self._texts),
            reasoning="".join(self._reasonings),
            finish_reason=self._finish_reason,
            usage=self._usage,
            timings=self._timings,
            session=self._session,
            tool_calls=self._tool_calls.all(),
        )
