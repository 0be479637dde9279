"""JSON as a border: one strict parser for documents from outside, one renderer with stable bytes.

Strict means: UTF-8, no key twice in one object, no NaN or infinity, integers of 64 bits, bounded size and
depth. It does not know any schema; the models do.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from opencoti.errors import ConfigError

MAX_DOCUMENT_BYTES = 32 << 20
MAX_DEPTH = 32
_MAX_INT = (1 << 63) - 1
_MAX_INT_DIGITS = 20  # sign and the 19 digits of the largest one; longer text is never converted


class _RefusedError(ValueError):
    """Valid JSON that this parser does not take."""


def parse_strict(data: bytes, origin: str, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> Any:
    """Return the value of a JSON document.

    Args:
        data: the document, UTF-8 without a byte order mark.
        origin: where it came from, for the message.
        max_bytes: documents longer than this are not looked at.

    Raises:
        ConfigError: `json-malformed`; says what is wrong and where.
    """
    if len(data) > max_bytes:
        _refuse(origin, f"it has {len(data)} bytes, more than the {max_bytes} allowed")
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_int=_bounded_int,
            parse_float=_finite_float,
        )
    except RecursionError:
        _refuse(origin, f"it is nested deeper than {MAX_DEPTH} levels")
    except UnicodeDecodeError as exc:
        _refuse(origin, f"byte {exc.start} is not UTF-8")
    except json.JSONDecodeError as exc:
        _refuse(origin, f"line {exc.lineno} column {exc.colno}: {exc.msg}")
    except _RefusedError as exc:
        _refuse(origin, str(exc))
    _check_shape(value, origin)
    return value


def render_json(value: Any) -> bytes:
    """Return `value` as indented UTF-8 JSON with a final newline; keys keep their order."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _RefusedError(f"key {twice[:80]!r} stands twice in one object")
    return result


def _no_constant(text: str) -> NoReturn:
    raise _RefusedError(f"{text} is not a JSON number")


def _bounded_int(text: str) -> int:
    if len(text) > _MAX_INT_DIGITS or abs(int(text)) > _MAX_INT:
        raise _RefusedError(f"number {text[:24]} does not fit in 64 bits")
    return int(text)


def _finite_float(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise _RefusedError(f"number {text[:24]} is too large")
    return number


def _check_shape(value: Any, origin: str) -> None:
    """Refuse what a later step would trip over: deep nesting and halves of surrogate pairs."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        strings = [item for item in level if isinstance(item, str)]
        strings += [key for item in level if isinstance(item, dict) for key in item]
        if any("\ud800" <= char <= "\udfff" for text in strings for char in text):
            _refuse(origin, "a string holds half of a surrogate pair")
        level = [child for item in level for child in _children(item)]
        if not level:
            return
    _refuse(origin, f"it is nested deeper than {MAX_DEPTH} levels")


def _children(item: Any) -> list[Any]:
    if isinstance(item, dict):
        return list(item.values())
    return item if isinstance(item, list) else []


def _refuse(origin: str, why: str) -> NoReturn:
    raise ConfigError(
        "json-malformed", f"cannot read {origin}", why=why, hint="get the file from its publisher again"
    )
