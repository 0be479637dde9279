"""Names and titles as git and mail write them in a patch file. Pure.

Shape of a name: plain, or in C quotes with octal escapes when it holds odd characters; with `a/` or `b/`
before it except on rename and copy lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.header import decode_header, make_header
from typing import Final

_ESCAPES: Final = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_OCTAL: Final = re.compile(rb"[0-3][0-7]{2}")
_DEV_NULL: Final = "/dev/null"
_SUBJECT_TAG: Final = re.compile(r"^\[[^\]]*\]\s*")


class PatchSyntaxError(ValueError):
    """A patch is not written as git writes one.

    Args:
        line: number of the line, from 1.
        why: what is wrong there.
        is_crlf: the file's line ends were converted.
    """

    def __init__(self, line: int, why: str, *, is_crlf: bool = False) -> None:
        super().__init__(f"line {line}: {why}")
        self.line = line
        self.why = why
        self.is_crlf = is_crlf


def pair_of_names(rest: bytes, number: int) -> tuple[str, str] | None:
    """Split `a/OLD b/NEW`; without quotes and with spaces, only equal names can be told apart."""
    if rest.startswith(b'"'):
        old, end = _unquote(rest, number)
        tail = rest[end + 1 :]
        new = _unquote(tail, number)[0] if tail.startswith(b'"') else text_of(tail)
        return _strip(old, "a/", number), _strip(new, "b/", number)
    if rest.endswith(b'"') and b' "' in rest:
        at = rest.index(b' "')
        return _strip(text_of(rest[:at]), "a/", number), _strip(
            _unquote(rest[at + 1 :], number)[0], "b/", number
        )
    if rest.count(b" ") == 1:
        old_part, new_part = rest.split(b" ")
        return _strip(text_of(old_part), "a/", number), _strip(text_of(new_part), "b/", number)
    half = len(rest) // 2
    old, new = text_of(rest[:half]), text_of(rest[half + 1 :])
    if len(rest) % 2 and rest[half : half + 1] == b" " and old[2:] == new[2:]:
        return _strip(old, "a/", number), _strip(new, "b/", number)
    return None


def side_name(rest: bytes, prefix: bytes, number: int) -> str | None:
    """Return the name of a `---` or `+++` line, `None` for /dev/null. A tab may end the name."""
    text = _unquote(rest, number)[0] if rest.startswith(b'"') else text_of(rest.partition(b"\t")[0])
    return None if text == _DEV_NULL else _strip(text, prefix.decode(), number)


def whole_name(rest: bytes, number: int) -> str:
    """Return the name of a rename or copy line, which has no prefix."""
    return _unquote(rest, number)[0] if rest.startswith(b'"') else text_of(rest)


def _strip(name: str, prefix: str, number: int) -> str:
    if not name.startswith(prefix):
        raise PatchSyntaxError(number, f"name {name[:120]!r} does not start with {prefix}")
    return name[len(prefix) :]


def _unquote(data: bytes, number: int) -> tuple[str, int]:
    """Undo git's C quotes; return the name and the position after the closing quote."""
    result, at = bytearray(), 1
    while at < len(data) and data[at : at + 1] != b'"':
        char = data[at : at + 1]
        if char != b"\\":
            result += char
            at += 1
            continue
        following = data[at + 1 : at + 2].decode("latin-1")
        if following in _ESCAPES and following:
            result.append(_ESCAPES[following])
            at += 2
        elif _OCTAL.fullmatch(data[at + 1 : at + 4]):
            result.append(int(data[at + 1 : at + 4], 8))
            at += 4
        else:
            raise PatchSyntaxError(number, "a quoted name has an unknown escape")
    if at >= len(data):
        raise PatchSyntaxError(number, "a quoted name has no end")
    return text_of(bytes(result)), at + 1


def text_of(data: bytes) -> str:
    """Decode a name or line; bytes that are not UTF-8 survive."""
    return data.decode("utf-8", "surrogateescape")


def read_mail(lines: list[bytes]) -> tuple[str, str]:
    """Return title and description of the mail header that `git format-patch` and our `capture` write."""
    text = [text_of(line).rstrip("\r") for line in lines]
    at = next((i for i, line in enumerate(text) if line.startswith("Subject:")), None)
    if at is None:
        return "", ""
    subject = [text[at][len("Subject:") :].strip()]
    at += 1
    while at < len(text) and text[at].startswith((" ", "\t")):
        subject.append(text[at].strip())
        at += 1
    while at < len(text) and text[at]:
        at += 1
    title = _SUBJECT_TAG.sub("", _decoded(" ".join(subject)))
    return title, "\n".join(_until_separator(text[at:])).strip()


def _decoded(subject: str) -> str:
    try:
        return str(make_header(decode_header(subject)))
    except (ValueError, LookupError):
        return subject


def _until_separator(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if line == "---":
            return
        yield line
