"""Every question that a client asks, as data: what is sent, and how the answer is read. Sans I/O.

Both clients send these and nothing else, so what is asked and what is believed is written down once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

from opencoti.client.answers import vectors_of
from opencoti.client.payloads import (
    ChatChunk,
    ChatCompletion,
    Models,
    Prompt,
    Props,
    TextCompletion,
    parse,
)
from opencoti.client.requests import Message, Sampling, chat_body, encode, streaming
from opencoti.client.sse import C

CHAT_PATH: Final = "/v1/chat/completions"
TEXT_PATH: Final = "/v1/completions"
_EMBEDDINGS_PATH: Final = "/v1/embeddings"
_MODELS_PATH: Final = "/v1/models"
_TEMPLATE_PATH: Final = "/apply-template"
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Exchange(Generic[T]):
    """One request whose answer comes in one piece; `read` turns its bytes into what they mean."""

    method: str
    path: str
    read: Callable[[bytes], T]
    body: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class StreamExchange(Generic[C]):
    """One request whose answer comes in pieces of one kind."""

    path: str
    kind: type[C]
    body: bytes


def ask_models() -> Exchange[tuple[str, ...]]:
    """Ask for the names of the served models."""
    return Exchange(
        method="GET",
        path=_MODELS_PATH,
        read=lambda data: tuple(item.id for item in parse(Models, data, _MODELS_PATH).data),
    )


def ask_props() -> Exchange[Props]:
    """Ask what the engine says about itself."""
    return Exchange(method="GET", path="/props", read=lambda data: parse(Props, data, "/props"))


def ask_health() -> Exchange[bytes]:
    """Ask whether the engine is ready."""
    return Exchange(method="GET", path="/health", read=bytes)


def ask_chat(body: bytes) -> Exchange[ChatCompletion]:
    """Ask for one answer, with a body that is there already."""
    return Exchange(
        method="POST", path=CHAT_PATH, body=body, read=lambda data: parse(ChatCompletion, data, CHAT_PATH)
    )


def stream_chat(body: bytes) -> StreamExchange[ChatChunk]:
    """Ask for one answer piece by piece, with a body that is there already."""
    return StreamExchange(path=CHAT_PATH, kind=ChatChunk, body=body)


def messages_body(messages: Sequence[Message], sampling: Sampling | None, *, is_stream: bool) -> bytes:
    """Return the body that asks for one answer to a list of messages."""
    options = (sampling or Sampling()).as_dict()
    return chat_body([encode(dict(item)) for item in messages], streaming(options) if is_stream else options)


def ask_text(prompt: str, sampling: Sampling | None) -> Exchange[TextCompletion]:
    """Ask for the continuation of a text."""
    return Exchange(
        method="POST",
        path=TEXT_PATH,
        body=_text_body(prompt, (sampling or Sampling()).as_dict()),
        read=lambda data: parse(TextCompletion, data, TEXT_PATH),
    )


def stream_text(prompt: str, sampling: Sampling | None) -> StreamExchange[TextCompletion]:
    """Ask for the continuation of a text, piece by piece."""
    body = _text_body(prompt, streaming((sampling or Sampling()).as_dict()))
    return StreamExchange(path=TEXT_PATH, kind=TextCompletion, body=body)


def _text_body(prompt: str, options: dict[str, Any]) -> bytes:
    return encode({"prompt": prompt, **options})


def ask_vectors(texts: Sequence[str]) -> Exchange[list[list[float]]]:
    """Ask for one vector per text."""
    return Exchange(
        method="POST",
        path=_EMBEDDINGS_PATH,
        body=encode({"input": list(texts)}),
        read=lambda data: vectors_of(data, _EMBEDDINGS_PATH, len(texts)),
    )


def ask_prompt(body: bytes) -> Exchange[str]:
    """Ask how the chat template renders messages."""
    return Exchange(
        method="POST",
        path=_TEMPLATE_PATH,
        body=body,
        read=lambda data: parse(Prompt, data, _TEMPLATE_PATH).prompt,
    )


def ask_erasure(slot: int | None) -> Exchange[bytes]:
    """Ask the engine to forget what a slot holds."""
    return Exchange(method="POST", path=f"/slots/{slot}?action=erase", body=b"{}", read=bytes)


def ask_forgetting(session_id: str) -> Exchange[bytes]:
    """Ask the engine to forget a session: in its slot, in memory and on disk."""
    return Exchange(method="DELETE", path=f"/sessions/{quote(session_id, safe='')}", read=bytes)
