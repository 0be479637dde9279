"""What to ask a server, and what its answer means for the bytes that are already on disk. Pure.

Rules: RFC 9110 §13.1.5 (If-Range takes strong validators only), §14.4 (Content-Range), §15.3.7 (206).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from opencoti.errors import NetworkError

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")
_DIGITS = re.compile(r"[0-9]{1,19}")
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_STALE_RANGE = {412, 416}


class TransferFailure(Exception):  # noqa: N818 - an event that is handled, not an error that is shown
    """An attempt failed in a way that another one may mend.

    Args:
        reason: for the user, without the address.
        retry_after_s: pause that the server asked for.
        is_range_useless: do not ask this server for a part again.
    """

    def __init__(
        self, reason: str, *, retry_after_s: float | None = None, is_range_useless: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.is_range_useless = is_range_useless


@dataclass(frozen=True, kw_only=True)
class Head:
    """Status and headers of an answer; the names of headers are lowercase."""

    status: int
    headers: Mapping[str, str]

    @property
    def etag(self) -> str:
        """The entity tag if it is a strong one that can be sent back, else nothing."""
        etag = self._returnable("etag")
        return etag if etag.startswith('"') else ""

    @property
    def last_modified(self) -> str:
        """The date of the file as the server wrote it, if it can be sent back."""
        return self._returnable("last-modified")

    @property
    def is_encoded(self) -> bool:
        """Whether the body is compressed, so that lengths and ranges do not count file bytes."""
        return self.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity")

    @property
    def is_html(self) -> bool:
        """Whether the answer calls itself a web page."""
        return self.headers.get("content-type", "").strip().lower().startswith("text/html")

    def _returnable(self, name: str) -> str:
        """Return a header if a request may hold it, else nothing."""
        text = self.headers.get(name, "").strip()
        return text if is_returnable(text) else ""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What is asked for: the bytes from `offset` up to `end`, if the file still has the validator.

    `end` is the first byte that is not asked for; None asks for everything from `offset` on.
    """

    offset: int = 0
    end: int | None = None
    etag: str = ""
    last_modified: str = ""
    total: int | None = None

    @property
    def is_part(self) -> bool:
        """Whether less than the whole file is asked for, as far as the server can tell."""
        return self.offset > 0 or self.end is not None

    def headers(self) -> dict[str, str]:
        """Return the request headers. Bytes must come as they are: `identity`."""
        headers = {"accept-encoding": "identity", "accept": "*/*"}
        if self.is_part:
            headers["range"] = f"bytes={self.offset}-{'' if self.end is None else self.end - 1}"
            if validator := self.etag or self.last_modified:
                headers["if-range"] = validator
        return headers


@dataclass(frozen=True, kw_only=True)
class BodyPlan:
    """Where the body of an answer belongs.

    Attributes:
        offset: its first byte is this byte of the file.
        total: size of the whole file, where the server said it.
    """

    offset: int
    total: int | None


def is_returnable(text: str) -> bool:
    """Tell whether a header of a request may hold this."""
    return text.isascii() and text.isprintable()


def judge(ask: Ask, head: Head, url: str, *, now: datetime | None = None) -> BodyPlan:
    """Decide what an answer means.

    Raises:
        TransferFailure: it is worth another attempt.
        NetworkError: `not-found` or `http-refused`; it is not.
    """
    if head.status == 200:
        return BodyPlan(offset=0, total=_content_length(head))
    if head.status == 206:
        return _judge_part(ask, head)
    if head.status in _STALE_RANGE and ask.is_part:
        raise TransferFailure(
            f"the server cannot go on from byte {ask.offset} (status {head.status})", is_range_useless=True
        )
    if head.status in _TRANSIENT:
        raise TransferFailure(
            f"the server answered with status {head.status}", retry_after_s=_retry_after(head, now)
        )
    raise _refusal(head.status, url)


def _judge_part(ask: Ask, head: Head) -> BodyPlan:
    match = _CONTENT_RANGE.fullmatch(head.headers.get("content-range", "").strip())
    if not ask.is_part or match is None or head.is_encoded:
        raise _useless("the server answered with a part that was not asked for")
    first, last = int(match[1]), int(match[2])
    total = None if match[3] == "*" else int(match[3])
    if first != ask.offset:
        raise _useless(f"asked for byte {ask.offset} on, the server sent byte {first} on")
    wanted = total if ask.end is None else ask.end
    if last < first or (wanted is not None and last != wanted - 1):
        asked = "the rest of the file" if ask.end is None else f"bytes {ask.offset}-{ask.end - 1}"
        raise _useless(f"the server sent bytes {first}-{last} of {match[3]}, not {asked}")
    length = _content_length(head)
    if length is not None and length != last - first + 1:
        raise _useless(f"Content-Range and Content-Length disagree ({last - first + 1} and {length} bytes)")
    if ask.total not in (None, total) or (ask.etag and head.etag and ask.etag != head.etag):
        raise _useless("the file on the server changed")
    return BodyPlan(offset=first, total=last + 1 if total is None and ask.end is None else total)


def _content_length(head: Head) -> int | None:
    text = head.headers.get("content-length", "").strip()
    return int(text) if _DIGITS.fullmatch(text) and not head.is_encoded else None


def _useless(reason: str) -> TransferFailure:
    return TransferFailure(reason, is_range_useless=True)


def _retry_after(head: Head, now: datetime | None) -> float | None:
    """Return the pause of a Retry-After header in seconds: a number, or a date of any of HTTP's forms."""
    text = head.headers.get("retry-after", "").strip()
    if _DIGITS.fullmatch(text):
        return float(text)
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - (now or datetime.now(UTC))).total_seconds())


def _refusal(status: int, url: str) -> NetworkError:
    if status in (404, 410):
        return NetworkError(
            "not-found",
            f"there is nothing at {url}",
            why=f"the server answered with status {status}",
            hint="check owner, repository, tag and asset of the pin (or the address), and OPENCOTI_MIRROR",
        )
    return NetworkError(
        "http-refused",
        f"the server does not give {url}",
        why=f"it answered with status {status}",
        hint="check the address, and whether a proxy or a login stands in between",
    )
