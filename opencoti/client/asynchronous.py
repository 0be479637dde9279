"""The client for asyncio; `opencoti.client.sync` is the same for ordinary programs."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self

from opencoti.client.answers import (
    answer_of,
    client_headers,
    erase_path,
    full_turn,
    require_plain,
    require_stream,
    turn_of,
    vectors_of,
)
from opencoti.client.failures import status_error, translated
from opencoti.client.limits import Budget, Limits
from opencoti.client.payloads import (
    ChatChunk,
    ChatCompletion,
    Models,
    Prompt,
    Props,
    TextCompletion,
    parse,
)
from opencoti.client.requests import (
    Base,
    Message,
    Sampling,
    chat_body,
    encode,
    streaming,
)
from opencoti.client.session import Conversation, PrefixBreak, Reuse, SlotTable, Turn, compare_prompts
from opencoti.client.sse import C, StreamEnd, StreamReader
from opencoti.errors import NetworkError, OpencotiError

if TYPE_CHECKING:
    import httpx

CHAT_PATH = "/v1/chat/completions"
TEXT_PATH = "/v1/completions"


class AsyncClient:
    """A client of one engine; close it, or use it with `async with`. Safe between threads.

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

        self.base = Base.parse(url)
        self.limits = limits or Limits()
        self.slots = SlotTable()
        self._http = httpx.AsyncClient(
            base_url=self.base.url,
            headers=client_headers(api_key),
            timeout=httpx.Timeout(self.limits.idle_s, connect=self.limits.connect_s),
            trust_env=not self.base.is_loopback,
            follow_redirects=False,
            transport=transport,
        )

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
        return tuple(
            item.id for item in parse(Models, await self.request("GET", "/v1/models"), "/v1/models").data
        )

    async def props(self) -> Props:
        """Return what the engine says about itself."""
        return parse(Props, await self.request("GET", "/props"), "/props")

    async def is_healthy(self) -> bool:
        """Tell whether the engine answers and is ready."""
        try:
            await self.request("GET", "/health")
        except OpencotiError:
            return False
        return True

    async def chat(self, messages: Sequence[Message], sampling: Sampling | None = None) -> ChatCompletion:
        """Ask for one answer to a list of messages (`{"role": …, "content": …}`)."""
        body = chat_body([encode(dict(item)) for item in messages], (sampling or Sampling()).as_dict())
        return parse(ChatCompletion, await self.request("POST", CHAT_PATH, body), CHAT_PATH)

    async def stream_chat(
        self, messages: Sequence[Message], sampling: Sampling | None = None
    ) -> AsyncChunkStream[ChatChunk]:
        """Ask for one answer, piece by piece. Use the result with `async with`, or read it to its end."""
        options = streaming((sampling or Sampling()).as_dict())
        return await self.stream(
            ChatChunk, CHAT_PATH, chat_body([encode(dict(m)) for m in messages], options)
        )

    async def complete(self, prompt: str, sampling: Sampling | None = None) -> TextCompletion:
        """Ask for the continuation of a text, without chat template."""
        body = encode({"prompt": prompt, **(sampling or Sampling()).as_dict()})
        return parse(TextCompletion, await self.request("POST", TEXT_PATH, body), TEXT_PATH)

    async def stream_complete(
        self, prompt: str, sampling: Sampling | None = None
    ) -> AsyncChunkStream[TextCompletion]:
        """Ask for the continuation of a text, piece by piece."""
        body = encode({"prompt": prompt, **streaming((sampling or Sampling()).as_dict())})
        return await self.stream(TextCompletion, TEXT_PATH, body)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text, in their order."""
        if not texts:
            return []
        path = "/v1/embeddings"
        return vectors_of(await self.request("POST", path, encode({"input": list(texts)})), path, len(texts))

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
        name = session_id or secrets.token_hex(8)
        talk = Conversation(
            system=system, is_isolated=is_isolated, session_id=name, has_reasoning=has_reasoning
        )
        return AsyncSession(self, talk)

    async def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send one request and return the whole body of its answer."""
        with translated(path):
            async with self._http.stream(method, path, content=body) as response:
                if response.status_code != 200:
                    raise status_error(response.status_code, await self._error_body(response), path)
                require_plain(response, path)
                budget = Budget(path, max_bytes=self.limits.body_bytes, total_s=self.limits.total_s)
                parts = []
                async for block in response.aiter_raw():
                    budget.spend(len(block))
                    parts.append(block)
        return b"".join(parts)

    async def stream(self, kind: type[C], path: str, body: bytes) -> AsyncChunkStream[C]:
        """Send one request and return the stream of its answer."""
        request = self._http.build_request("POST", path, content=body)
        with translated(path):
            response = await self._http.send(request, stream=True)
        try:
            if response.status_code != 200:
                with translated(path):
                    raise status_error(response.status_code, await self._error_body(response), path)
            require_stream(response, path)
        except BaseException:
            await response.aclose()
            raise
        return AsyncChunkStream(response, kind, path, self.limits)

    async def _error_body(self, response: httpx.Response) -> bytes:
        budget = Budget(response.url.path, max_bytes=1 << 40, total_s=self.limits.connect_s)
        body = b""
        async for block in response.aiter_raw():
            budget.spend(len(block))
            body += block
            if len(body) >= self.limits.error_bytes:
                break
        return body[: self.limits.error_bytes]


class AsyncChunkStream(Generic[C]):
    """The pieces of one answer, to be read once. Closing it early tells the engine to stop.

    After the last piece `end` holds the whole answer.
    """

    def __init__(self, response: httpx.Response, kind: type[C], path: str, limits: Limits) -> None:
        self._response = response
        self._path = path
        self._reader = StreamReader(kind, path, max_event_bytes=limits.event_bytes)
        self._budget = Budget(path, max_bytes=limits.stream_bytes, total_s=limits.total_s)
        self._end: StreamEnd | None = None

    @property
    def end(self) -> StreamEnd:
        """The whole answer. Raises `NetworkError` (`stream-truncated`) before the last piece was read."""
        return self._end or self._reader.end()

    async def __aiter__(self) -> AsyncIterator[C]:
        try:
            with translated(self._path):
                async for block in self._response.aiter_raw():
                    self._budget.spend(len(block))
                    for chunk in self._reader.feed(block):
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
        return await self._ask(self.conversation.next_body(content, sampling or Sampling(), is_stream=False))

    async def send_history(self, messages: Sequence[Message], sampling: Sampling | None = None) -> Turn:
        """Send the whole history that the caller keeps; `Turn.prefix_break` says where it was changed."""
        await self._open()
        return await self._ask(
            self.conversation.history_body(messages, sampling or Sampling(), is_stream=False)
        )

    @asynccontextmanager
    async def stream(
        self, content: str | Message, sampling: Sampling | None = None
    ) -> AsyncIterator[AsyncSessionStream]:
        """Say something and yield the answer piece by piece; its `turn` is there after the last piece.

        A stream that is left early does not count: the history stays as it was.
        """
        await self._open()
        body = self.conversation.next_body(content, sampling or Sampling(), is_stream=True)
        async with await self._client.stream(ChatChunk, CHAT_PATH, body) as chunks:
            yield AsyncSessionStream(self, chunks)

    async def _ask(self, body: bytes) -> Turn:
        answer = parse(ChatCompletion, await self._client.request("POST", CHAT_PATH, body), CHAT_PATH)
        reuse = self.conversation.accept(answer.choices[0].message, answer.usage, answer.timings)
        return full_turn(answer, reuse, await self.find_break(reuse))

    async def find_break(self, reuse: Reuse | None) -> PrefixBreak | None:
        """Say where the prefix broke in the turn that was just accepted, None if it did not."""
        known = self.conversation.take_break()
        if known is not None or reuse is None or reuse.is_stable:
            return known
        bodies = self.conversation.template_bodies()
        path = "/apply-template"
        with suppress(OpencotiError):
            if bodies is not None:
                before, after = [
                    parse(Prompt, await self._client.request("POST", path, body), path) for body in bodies
                ]
                return compare_prompts(before.prompt, after.prompt)
        return PrefixBreak(kind="unknown", position=reuse.cache_n)

    async def _open(self) -> None:
        if self._is_open:
            return
        self.conversation.settle(await self._client.props(), self._client.slots)
        self._is_open = True
        if self.conversation.is_isolated:
            # Where slots cannot be erased, not reusing what is in it has the same effect.
            self.conversation.must_start_clean = not await self._erase()

    async def _erase(self) -> bool:
        try:
            await self._client.request("POST", erase_path(self.conversation), b"{}")
        except OpencotiError:
            return False
        return True

    async def close(self) -> None:
        """Free the slot; an isolated session also erases what the engine remembers of it."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self.conversation.is_isolated:
                await self._erase()
        finally:
            if self.conversation.slot is not None:
                self._client.slots.give_back(self.conversation.slot)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncSessionStream:
    """The pieces of one turn; iterate over it, then read `turn`."""

    def __init__(self, session: AsyncSession, chunks: AsyncChunkStream[ChatChunk]) -> None:
        self._session = session
        self._chunks = chunks
        self._turn: Turn | None = None

    async def __aiter__(self) -> AsyncIterator[ChatChunk]:
        async for chunk in self._chunks:
            yield chunk
        end = self._chunks.end
        reuse = self._session.conversation.accept(answer_of(end), end.usage, end.timings)
        self._turn = turn_of(end, reuse, await self._session.find_break(reuse))

    @property
    def turn(self) -> Turn:
        """The whole turn. Raises `NetworkError` (`stream-truncated`) before the last piece was read."""
        if self._turn is None:
            raise NetworkError("stream-truncated", "the turn was not read to its end")
        return self._turn
