"""What an answer of GitHub that is no success means. Pure, but for the blocks of a body that it is given."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from opencoti.errors import NetworkError
from release.remote.model import NotThereError, PassingError, RefusedError

# What GitHub's documentation asks to wait where a secondary limit names no time.
_SECONDARY_WAIT_S = 60.0
_MAX_TEXT = 300
_MAX_BODY_BYTES = 1 << 20


def failure_of(status: int, headers: Mapping[str, Any], data: object, *, what: str, now: float) -> Exception:
    """Return the exception that an answer stands for.

    Args:
        status: its status, 300 or more.
        headers: its headers, names in lower case.
        data: its body, parsed if it is JSON.
        what: what was asked for, for messages.
        now: seconds since 1970, for an answer without a date.
    """
    if status == 401:
        return NetworkError(
            "github-token-refused",
            f"cannot {what}",
            why="GitHub does not accept the token",
            hint="set GITHUB_TOKEN to a valid token; they expire",
        )
    if _is_limit(status, headers, data):
        return PassingError(f"rate limit (status {status})", wait_s=_wait_s(headers, now))
    if status == 403:
        return permission_error(headers, what)
    if status == 404:
        return NotThereError(what)
    if status == 422:
        return RefusedError(_reasons(data), _codes(data))
    if status >= 500 or status in (408, 409, 425):
        return PassingError(f"status {status}")
    return NetworkError(
        "github-answer-unexpected",
        f"cannot {what}",
        why=f"status {status} {_message(data)}".rstrip(),
        hint="check GITHUB_API_URL, and whether the repository was renamed",
    )


def broken_off(exc: BaseException) -> Exception:
    """Return what a failure of an HTTP library stands for: one that may pass, or a certificate."""
    seen: BaseException | None = exc
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            return NetworkError(
                "github-untrusted",
                "the certificate of GitHub is not trusted",
                why=getattr(seen, "verify_message", "") or str(seen),
                hint="behind a proxy or for Enterprise with a CA of its own, name that in SSL_CERT_FILE",
            )
        seen = seen.__cause__ or seen.__context__
    return PassingError(f"the connection failed ({type(exc).__name__})")


def redirected(api_url: str, what: str) -> NetworkError:
    """Return what to say of an answer that leads to another host, which must not get the token."""
    return NetworkError(
        "github-redirected",
        f"cannot {what}",
        why=f"{api_url} leads to another address, and the token would go there",
        hint="set GITHUB_API_URL to the address of the API itself",
    )


def json_of(blocks: Iterable[bytes]) -> Any:
    """Return the value of a short JSON body, None where it is none. Raises `PassingError` for a long one."""
    body = bytearray()
    for block in blocks:
        body += block
        if len(body) > _MAX_BODY_BYTES:
            raise PassingError("the answer is far too long")
    try:
        return json.loads(bytes(body))
    except (ValueError, RecursionError):
        return None


def permission_error(headers: Mapping[str, Any], what: str) -> NetworkError:
    """Return what to say of a refusal that names the permission it misses, as far as it does."""
    needed = headers.get("x-accepted-github-permissions") or headers.get("x-accepted-oauth-scopes")
    has = headers.get("x-oauth-scopes")
    why = f"the token lacks a permission; needed: {_clean(needed or 'contents=write')}"
    return NetworkError(
        "github-permission",
        f"cannot {what}",
        why=why + (f"; it has: {_clean(has)}" if has else ""),
        hint="in a workflow add `permissions: contents: write` to this job; else make a token that has it "
        "(and `workflows: write` where the commit changes a workflow)",
    )


def _is_limit(status: int, headers: Mapping[str, Any], data: object) -> bool:
    if status == 429:
        return True
    if status != 403:
        return False
    is_spent = str(headers.get("x-ratelimit-remaining", "")) == "0"
    page = data.get("documentation_url") if isinstance(data, dict) else None
    return "retry-after" in headers or is_spent or (isinstance(page, str) and "rate-limit" in page)


def _wait_s(headers: Mapping[str, Any], now: float) -> float:
    """Return what the answer asks for: `Retry-After`, else the reset of a spent limit, else a minute."""
    if (seconds := _number(headers.get("retry-after"))) is not None:
        return seconds
    reset = _number(headers.get("x-ratelimit-reset"))
    if reset is not None and str(headers.get("x-ratelimit-remaining", "")) == "0":
        return max(1.0, reset - _date(headers, now) + 1.0)
    return _SECONDARY_WAIT_S


def _date(headers: Mapping[str, Any], now: float) -> float:
    """Return the clock of the server, which is what its reset time is meant by."""
    try:
        return parsedate_to_datetime(str(headers.get("date", ""))).timestamp()
    except ValueError:
        return now


def _number(text: object) -> float | None:
    try:
        value = float(str(text))
    except ValueError:
        return None
    return value if 0 <= value < 1e12 else None


def _errors(data: object) -> list[dict[str, Any]]:
    errors = data.get("errors") if isinstance(data, dict) else None
    return [item for item in errors if isinstance(item, dict)] if isinstance(errors, list) else []


def _codes(data: object) -> frozenset[tuple[str, str]]:
    return frozenset((str(item.get("field", "")), str(item.get("code", ""))) for item in _errors(data))


def _reasons(data: object) -> str:
    texts = [
        " ".join(str(item[key]) for key in ("field", "code", "message") if item.get(key))
        for item in _errors(data)
    ]
    return _clean("; ".join([_message(data), *texts]).strip("; "))


def _message(data: object) -> str:
    return _clean(data.get("message", "")) if isinstance(data, dict) else ""


def _clean(text: object) -> str:
    """Return text of the remote so that it cannot write to a terminal or a log as it likes."""
    return "".join(char if char.isprintable() else " " for char in str(text))[:_MAX_TEXT]
