"""The client for asyncio: `opencoti.client.sync` is the same for ordinary programs.

Only what waits is here; what is asked, read and concluded is in the modules that both share.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
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


class AsyncClient(ClientCore):
    """A client of one engine; close it, or use it with `async with`, from one event loop.

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
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        import httpx

        super().__init__(url, api_key=api_key, limits=limits)
        self._http = httpx.AsyncClient(**self._http_settings(), transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def models(self) -> tuple[str, ...]:
        """Return the names of the served models."""
        return await self.exchange(exchanges.ask_models())

    async def props(self) -> Props:
        """Return what the engine says about itself."""
        return await self.exchange(exchanges.ask_props())

    async def is_healthy(self) -> bool:
        """Tell whether the engine answers and is ready."""
        try:
            await self.exchange(exchanges.ask_health())
        except OpencotiError:
            return False
        return True

    async def chat(self, messages: Sequence[Message], sampling: Sampling | None = None) -> ChatCompletion:
        """Ask for one answer to a list of messages (`{"role": …, "content": …}`)."""
        return await self.exchange(exchanges.ask_chat(messages_body(messages, sampling, is_stream=False)))

    async def stream_chat(
        self, messages: Sequence[Message], sampling: Sampling | None = None
    ) -> AsyncChunkStream[ChatChunk]:
        """Ask for one answer, piece by piece. Use the result with `async with`, or read it to its end."""
        return await self.begin(exchanges.stream_chat(messages_body(messages, sampling, is_stream=True)))

    async def complete(self, prompt: str, sampling: Sampling | None = None) -> TextCompletion:
        """Ask for the continuation of a text, without chat template."""
        return await self.exchange(exchanges.ask_text(prompt, sampling))

    async def stream_complete(
        self, prompt: str, sampling: Sampling | None = None
    ) -> AsyncChunkStream[TextCompletion]:
        """Ask for the continuation of a text, piece by piece."""
        return await self.begin(exchanges.stream_text(prompt, sampling))

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text, in their order."""
        return await self.exchange(exchanges.ask_vectors(texts)) if texts else []

    def session(
        self,
        *,
        system: str = "",
        is_isolated: bool = False,
        session_id: str = "",
        has_reasoning: bool = False,
    ) -> AsyncSession:
        """Begin a conversation that reuses its prefix; use it with `async with`.

        Args:
            system: text of the system message.
            is_isolated: share nothing: a slot of its own, erased before and after.
            session_id: name for engines that know sessions; a random one if empty.
            has_reasoning: send earlier reasoning back to the engine.
        """
        talk = new_conversation(
            system=system, is_isolated=is_isolated, session_id=session_id, has_reasoning=has_reasoning
        )
        return AsyncSession(self, talk)

    async def exchange(self, exchange: Exchange[T]) -> T:
        """Ask one question of `opencoti.client.exchanges` and return what its answer means."""
        path = exchange.path
        with translated(path):
            async with self._http.stream(exchange.method, path, content=exchange.body) as response:
                body = await self._read(response, path)
        return exchange.read(body)

    async def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send one request and return the whole body of its answer."""
        return await self.exchange(Exchange(method=method, path=path, body=body, read=bytes))

    async def stream(self, kind: type[C], path: str, body: bytes) -> AsyncChunkStream[C]:
        """Send one request and return the stream of its answer."""
        return await self.begin(StreamExchange(path=path, kind=kind, body=body))

    async def begin(self, exchange: StreamExchange[C]) -> AsyncChunkStream[C]:
        """Ask one question of `opencoti.client.exchanges` whose answer comes in pieces, and return them."""
        with translated(exchange.path):
            request = self._http.build_request("POST", exchange.path, content=exchange.body)
            response = await self._http.send(request, stream=True)
            try:
                if response.status_code != 200:
                    await self._read(response, exchange.path)
                return AsyncChunkStream(response, exchange, self.limits)
            except BaseException:
                await response.aclose()
                raise

    async def run(self, plan: steps.Steps[T]) -> T:
        """Ask what the steps of a session want to know, one after the other; return their result."""
        try:
            wanted = next(plan)
            while True:
                try:
                    answer = await self.exchange(wanted)
                except OpencotiError as error:
                    wanted = plan.throw(error)
                else:
                    wanted = plan.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            plan.close()

    async def _read(self, response: httpx.Response, path: str) -> bytes:
        """Return the body of an answer, or raise what its status says."""
        reader = BodyReader(response, path, self.limits)
        async for block in response.aiter_raw():
            if not reader.take(block):
                break
        if reader.is_error:
            raise status_error(response.status_code, reader.body, path)
        return reader.body


class AsyncChunkStream(StreamCore[C]):
    """The pieces of one answer, to be read once. Closing it early tells the engine to stop.

    After the last piece `end` holds the whole answer.
    """

    async def __aiter__(self) -> AsyncIterator[C]:
        try:
            with translated(self._path):
                async for block in self._response.aiter_raw():
                    for chunk in self._feed(block):
                        yield chunk
                    if self._reader.is_done:
                        break
            self._end = self._reader.end()
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connection."""
        await self._response.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncSession:
    """A conversation over a client. Close it, or use it with `async with`: that frees its slot.

    A turn that fails leaves the history as it was.
    """

    def __init__(self, client: AsyncClient, conversation: Conversation) -> None:
        self.conversation = conversation
        self._client = client
        self._is_open = False

    async def send(self, content: str | Message, sampling: Sampling | None = None) -> Turn:
        """Say something and return the answer."""
        await self._open()
        talk = self.conversation
        body = talk.next_body(content, sampling or Sampling(), is_stream=False)
        return await self._client.run(steps.take_turn(talk, body))

    async def send_history(self, messages: Sequence[Message], sampling: Sampling | None = None) -> Turn:
        """Send the whole history that the caller keeps; `Turn.prefix_break` says where it was changed."""
        await self._open()
        talk = self.conversation
        body = talk.history_body(messages, sampling or Sampling(), is_stream=False)
        return await self._client.run(steps.take_turn(talk, body))

    @asynccontextmanager
    async def stream(
        self, content: str | Message, sampling: Sampling | None = None
    ) -> AsyncIterator[AsyncSessionStream]:
        """Say something and yield the answer piece by piece; its `turn` is there after the last piece.

        A stream that is left early does not count: the history stays as it was.
        """
        await self._open()
        body = self.conversation.next_body(content, sampling or Sampling(), is_stream=True)
        async with await self._client.begin(exchanges.stream_chat(body)) as chunks:
            yield AsyncSessionStream(self._client, self.conversation, chunks)

    async def find_break(self, reuse: Reuse | None) -> PrefixBreak | None:
        """Say where the prefix broke in the turn that was just accepted, None if it did not."""
        return await self._client.run(steps.find_break(self.conversation, reuse))

    async def _open(self) -> None:
        if not self._is_open:
            await self._client.run(steps.open_session(self.conversation, self._client.slots))
            self._is_open = True

    async def close(self) -> None:
        """Free the slot; an isolated session also erases what the engine remembers of it."""
        if self._is_open:
            self._is_open = False
            await self._client.run(steps.close_session(self.conversation, self._client.slots))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncSessionStream:
    """The pieces of one turn; iterate over it, then read `turn`."""

    def __init__(
        self, client: AsyncClient, conversation: Conversation, chunks: AsyncChunkStream[ChatChunk]
    ) -> None:
        self._client = client
        self._conversation = conversation
        self._chunks = chunks
        self._turn: Turn | None = None

    async def __aiter__(self) -> AsyncIterator[ChatChunk]:
        async for chunk in self._chunks:
            yield chunk
        self._turn = await self._client.run(steps.end_streamed_turn(self._conversation, self._chunks.end))

    @property
    def turn(self) -> Turn:
        """The whole turn. Raises `NetworkError` (`stream-truncated`) before the last piece was read."""
        if self._turn is None:
            raise NetworkError("stream-truncated", "the turn was not read to its end")
        return self._turn
