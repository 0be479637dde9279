"""What a running engine says it can do: its own words, asked once with the standard library's means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from opencoti.launch.probe import Address, NoAnswerError, ask
from opencoti.tier.provider import Capabilities

_TIMEOUT_S: Final = 5.0
_SESSION_FEATURE: Final = "session-id"


def measured(address: Address, promised: Capabilities) -> Capabilities:
    """Return capabilities with what `/props` knows; unchanged where it says nothing usable."""
    try:
        answer = ask(address, "/props", timeout_s=_TIMEOUT_S)
    except NoAnswerError:
        return promised
    return with_props(promised, answer.document) if answer.status == 200 else promised


def with_props(promised: Capabilities, props: Any) -> Capabilities:
    """Put the fields of `/props` into capabilities. Pure."""
    settings = _object(_object(props).get("default_generation_settings"))
    features = _object(_object(props).get("opencoti")).get("features")
    knows_sessions = isinstance(features, list) and _SESSION_FEATURE in features
    return replace(
        promised,
        slots=_count(_object(props).get("total_slots")) or promised.slots,
        context_tokens=_count(settings.get("n_ctx")) or promised.context_tokens,
        reuse="session-id" if knows_sessions else promised.reuse,
    )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
