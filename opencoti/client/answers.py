"""What the two clients do alike with an answer: checks of its headers, vectors, turns. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opencoti.client.failures import malformed
from opencoti.client.payloads import AnswerMessage, ChatCompletion, Embeddings, parse
from opencoti.client.requests import require_vectors
from opencoti.client.session import PrefixBreak, Reuse, Turn
from opencoti.client.sse import StreamEnd

if TYPE_CHECKING:
    import httpx


def client_headers(api_key: str) -> dict[str, str]:
    """Return the headers of every request. No compression: a small answer could unpack into a huge one."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "opencoti", "Content-Type": "application/json"}
    return headers | ({"Authorization": f"Bearer {api_key}"} if api_key else {})


def require_plain(response: httpx.Response, path: str) -> None:
    """Raise `VerificationError` (`answer-malformed`) for an answer that is packed all the same."""
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise malformed(path, f"it is packed with {encoding[:40]!r}, which nobody asked for")


def require_stream(response: httpx.Response, path: str) -> None:
    """Raise `VerificationError` (`answer-malformed`) for an answer that is no stream of events."""
    require_plain(response, path)
    kind = response.headers.get("Content-Type", "")
    if not kind.lower().startswith("text/event-stream"):
        raise malformed(path, f"a stream of events was asked for, and it is {kind[:60]!r}")


def vectors_of(body: bytes, path: str, wanted: int) -> list[list[float]]:
    """Return the vectors of an answer, in the order of the texts."""
    data = sorted(parse(Embeddings, body, path).data, key=lambda item: item.index)
    if [item.index for item in data] != list(range(len(data))):
        raise malformed(path, "its vectors are not numbered from 0")
    vectors = [list(item.embedding) for item in data]
    if why := require_vectors(vectors, wanted):
        raise malformed(path, why)
    return vectors


def answer_of(end: StreamEnd) -> AnswerMessage:
    """Return a streamed answer as a message."""
    return AnswerMessage(
        content=end.text, reasoning_content=end.reasoning or None, tool_calls=end.tool_calls or None
    )


def turn_of(end: StreamEnd, reuse: Reuse | None, prefix_break: PrefixBreak | None) -> Turn:
    """Return a streamed answer as a turn."""
    return Turn(
        text=end.text,
        reasoning=end.reasoning,
        finish_reason=end.finish_reason,
        usage=end.usage,
        timings=end.timings,
        session=end.session,
        reuse=reuse,
        prefix_break=prefix_break,
    )


def full_turn(answer: ChatCompletion, reuse: Reuse | None, prefix_break: PrefixBreak | None) -> Turn:
    """Return an answer that came in one piece as a turn."""
    return Turn(
        text=answer.text,
        reasoning=answer.choices[0].message.reasoning_content or "",
        finish_reason=answer.finish_reason,
        usage=answer.usage,
        timings=answer.timings,
        session=answer.session,
        reuse=reuse,
        prefix_break=prefix_break,
    )
