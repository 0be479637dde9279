"""The client for ordinary programs: `opencoti.client.asynchronous` is the same for asyncio.

Only what waits is here; what is asked, read and concluded is in the modules that both share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from opencoti.client import exchanges, steps
from opencoti.client.core import BodyReader, ClientCore, StreamCore, new_conversation
from opencoti.client.exchanges import Exchange, StreamExchange, T, messages_body
from opencoti.client.failures import status_error, translated
from opencoti.client.limits import Limits
from opencoti.client.payloads import ChatChunk, ChatCompletion, Props, TextCompletion
from opencoti.client.requests import Message, Sampling
from opencoti.client.session import Conversation, PrefixBreak, Reuse, Turn
from opencoti.client.sse import C
from opencoti.errors import NetworkError, OpencotiError

if TYPE_CHECKING:
    import httpx

    from opencoti.client.asynchronous import AsyncClient


class Client(ClientCore):
    """A client of one engine; close it, or use it in a `with` block. Safe between threads.

    Args:
        url: address of the engine, like `Engine.url`.
        api_key: password that it wants, if any.
        limits: how much of an answer is taken, and for how long.
        transport: what carries the requests; another one is for tests.

    Every method raises:
        UsageError: `bad-engine-url`, `request-refused`, `request-unsupported`, `engine-refused`,
            `request-not-json`: the request is at fault.
        BusyError: `engine-loading`.
        NetworkError: `engine-unreachable`, `engine-failed`, `answer-too-slow`, `answer-too-long`,
            `answer-broken-off`, `stream-truncated`.
        VerificationError: `answer-malformed`.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str = "",
        limits: Limits | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        import httpx

        super().__init__(url, api_key=api_key, limits=limits)
        self._http = httpx.Client(**self._http_settings(), transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def as_async(self) -> AsyncClient:
        """Return a client for asyncio of the same engine; it has connections of its own."""
        from opencoti.client.asynchronous import AsyncClient

        return AsyncClient(self.base.url, api_key=self._api_key, limits=self.limits)

    def models(self) -> tuple[str, ...]:
        """Return the names of the served models."""
        return self.exchange(exchanges.ask_models())

    def props(self) -> Props:
        """Return what the engine says about itself."""
        return self.exchange(exchanges.ask_props())

    def is_healthy(self) -> bool:
        """Tell whether the engine answers and is ready."""
        try:
            self.exchange(exchanges.ask_health())
        except OpencotiError:
            return False
        return True

    def chat(self, messages: Sequence[Message], sampling: Sampling | None = None) -> ChatCompletion:
        """Ask for one answer to a list of messages (`{"role": …, "content": …}`)."""
        return self.exchange(exchanges.ask_chat(messages_body(messages, sampling, is_stream=False)))

    def stream_chat(
        self, messages: Sequence[Message], sampling: Sampling | None = None
    ) -> ChunkStream[ChatChunk]:
        """Ask for one answer, piece by piece. Use the result in a `with` block, or read it to its end."""
        return self.begin(exchanges.stream_chat(messages_body(messages, sampling, is_stream=True)))

    def complete(self, prompt: str, sampling: Sampling | None = None) -> TextCompletion:
        """Ask for the continuation of a text, without chat template."""
        return self.exchange(exchanges.ask_text(prompt, sampling))

    def stream_complete(self, prompt: str, sampling: Sampling | None = None) -> ChunkStream[TextCompletion]:
        """Ask for the continuation of a text, piece by piece."""
        return self.begin(exchanges.stream_text(prompt, sampling))

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text, in their order."""
        return self.exchange(exchanges.ask_vectors(texts)) if texts else []

    def session(
        self,
        *,
        system: str = "",
        is_isolated: bool = False,
        session_id: str = "",
        has_reasoning: bool = False,
    ) -> Session:
        """Begin a conversation that reuses its prefix; use it in a `with` block.

        Args:
            system: text of the system message.
            is_isolated: share nothing: a slot of its own, erased before and after.
            session_id: name for engines that know sessions; a random one if empty.
            has_reasoning: send earlier reasoning back to the engine.
        """
        talk = new_conversation(
            system=system, is_isolated=is_isolated, session_id=session_id, has_reasoning=has_reasoning
        )
        return Session(self, talk)

    def exchange(self, exchange: Exchange[T]) -> T:
        """Ask one question of `opencoti.client.exchanges` and return what its answer means."""
        path = exchange.path
        with (
            translated(path),
            self._http.stream(exchange.method, path, content=exchange.body) as response,
        ):
            body = self._read(response, path)
        return exchange.read(body)

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send one request and return the whole body of its answer."""
        return self.exchange(Exchange(method=method, path=path, body=body, read=bytes))

    def stream(self, kind: type[C], path: str, body: bytes) -> ChunkStream[C]:
        """Send one request and return the stream of its answer."""
        return self.begin(StreamExchange(path=path, kind=kind, body=body))

    def begin(self, exchange: StreamExchange[C]) -> ChunkStream[C]:
        """Ask one question of `opencoti.client.exchanges` whose answer comes in pieces, and return them."""
        with translated(exchange.path):
            request = self._http.build_request("POST", exchange.path, content=exchange.body)
            response = self._http.send(request, stream=True)
            try:
                if response.status_code != 200:
                    self._read(response, exchange.path)
                return ChunkStream(response, exchange, self.limits)
            except BaseException:
                response.close()
                raise

    def run(self, plan: steps.Steps[T]) -> T:
        """Ask what the steps of a session want to know, one after the other; return their result."""
        try:
            wanted = next(plan)
            while True:
                try:
                    answer = self.exchange(wanted)
                except OpencotiError as error:
                    wanted = plan.throw(error)
                else:
                    wanted = plan.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            plan.close()

    def _read(self, response: httpx.Response, path: str) -> bytes:
        """Return the body of an answer, or raise what its status says."""
        reader = BodyReader(response, path, self.limits)
        for block in response.iter_raw():
            if not reader.take(block):
                break
        if reader.is_error:
            raise status_error(response.status_code, reader.body, path)
        return reader.body


class ChunkStream(StreamCore[C]):
    """The pieces of one answer, to be read once. Closing it early tells the engine to stop.

    After the last piece `end` holds the whole answer.
    """

    def __iter__(self) -> Iterator[C]:
        try:
            with translated(self._path):
                for block in self._response.iter_raw():
                    yield from self._feed(block)
                    if self._reader.is_done:
                        break
            self._end = self._reader.end()
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        self._response.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Session:
    """A conversation over a client. Close it, or use it in a `with` block: that frees its slot.

    A turn that fails leaves the history as it was.
    """

    def __init__(self, client: Client, conversation: Conversation) -> None:
        self.conversation = conversation
        self._client = client
        self._is_open = False

    def send(self, content: str | Message, sampling: Sampling | None = None) -> Turn:
        """Say something and return the answer."""
        self._open()
        talk = self.conversation
        body = talk.next_body(content, sampling or Sampling(), is_stream=False)
        return self._client.run(steps.take_turn(talk, body))

    def send_history(self, messages: Sequence[Message], sampling: Sampling | None = None) -> Turn:
        """Send the whole history that the caller keeps; `Turn.prefix_break` says where it was changed."""
        self._open()
        talk = self.conversation
        body = talk.history_body(messages, sampling or Sampling(), is_stream=False)
        return self._client.run(steps.take_turn(talk, body))

    @contextmanager
    def stream(self, content: str | Message, sampling: Sampling | None = None) -> Iterator[SessionStream]:
        """Say something and yield the answer piece by piece; its `turn` is there after the last piece.

        A stream that is left early does not count: the history stays as it was.
        """
        self._open()
        body = self.conversation.next_body(content, sampling or Sampling(), is_stream=True)
        with self._client.begin(exchanges.stream_chat(body)) as chunks:
            yield SessionStream(self._client, self.conversation, chunks)

    def find_break(self, reuse: Reuse | None) -> PrefixBreak | None:
        """Say where the prefix broke in the turn that was just accepted, None if it did not."""
        return self._client.run(steps.find_break(self.conversation, reuse))

    def _open(self) -> None:
        if not self._is_open:
            self._client.run(steps.open_session(self.conversation, self._client.slots))
            self._is_open = True

    def close(self) -> None:
        """Free the slot; an isolated session also erases what the engine remembers of it."""
        if self._is_open:
            self._is_open = False
            self._client.run(steps.close_session(self.conversation, self._client.slots))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SessionStream:
    """The pieces of one turn; iterate over it, then read `turn`."""

    def __init__(self, client: Client, conversation: Conversation, chunks: ChunkStream[ChatChunk]) -> None:
        self._client = client
        self._conversation = conversation
        self._chunks = chunks
        self._turn: Turn | None = None

    def __iter__(self) -> Iterator[ChatChunk]:
        yield from self._chunks
        self._turn = self._client.run(steps.end_streamed_turn(self._conversation, self._chunks.end))

    @property
    def turn(self) -> Turn:
        """The whole turn. Raises `NetworkError` (`stream-truncated`) before the last piece was read."""
        if self._turn is None:
            raise NetworkError("stream-truncated", "the turn was not read to its end")
        return self._turn
