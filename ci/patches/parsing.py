"""A git patch file as data: header, touched files, hunks. Pure.

Reads what `git apply` reads, every name line included, so that the lint judges what git would act on. A
text that git might take for a patch but that is not written as git writes one is refused, not guessed at.

Shape of the value: `diff --git a/OLD b/NEW`, extended header lines (`old mode`, `new file mode`,
`rename from`, …), `--- a/OLD`, `+++ b/NEW`, hunks. Names with odd characters stand in C quotes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from ci.patches.names import (
    PatchSyntaxError,
    pair_of_names,
    read_mail,
    side_name,
    whole_name,
)

_HUNK: Final = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_MODE: Final = re.compile(rb"[0-7]{6}")
_NO_NEWLINE: Final = b"\\ "


@dataclass(frozen=True, kw_only=True)
class Hunk:
    """One block of a file's changes."""

    number: int
    old_start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]


@dataclass(kw_only=True)
class FileChange:
    """What a patch does to one file. `names` are all names that its header lines give."""

    line: int
    names: set[str] = field(default_factory=set)
    old_name: str = ""
    new_name: str = ""
    modes: set[str] = field(default_factory=set)
    is_new: bool = False
    is_deleted: bool = False
    is_moved: bool = False
    is_binary: bool = False
    hunks: list[Hunk] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name that the file has afterwards, or had if it is deleted."""
        return self.old_name if self.is_deleted else self.new_name

    @property
    def new_mode(self) -> str:
        """The mode that a link or submodule is recognised by, empty when the patch does not give it."""
        return next((mode for mode in sorted(self.modes) if mode in ("120000", "160000")), "")


@dataclass(frozen=True, kw_only=True)
class ParsedPatch:
    """A patch file as data."""

    title: str
    description: str
    changes: tuple[FileChange, ...]

    @property
    def touched(self) -> tuple[str, ...]:
        """Every name in it, sorted."""
        return tuple(sorted({name for change in self.changes for name in change.names}))


def parse_patch(data: bytes) -> ParsedPatch:
    """Read a patch file.

    Raises:
        PatchSyntaxError: it has no change in it, or something git would not have written.
    """
    reader = _Reader(data.removesuffix(b"\n").split(b"\n"))
    mail: list[bytes] = []
    while reader.has_more and not _starts_change(reader):
        mail.append(reader.take())
    changes: list[FileChange] = []
    while reader.has_more:
        if reader.peek().startswith(b"diff --git "):
            changes.append(_read_change(reader))
        elif _starts_change(reader):
            raise PatchSyntaxError(reader.number, "a change without its `diff --git` line")
        else:
            reader.take()
    if not changes:
        raise PatchSyntaxError(1, "there is no `diff --git` line in it")
    title, description = read_mail(mail)
    return ParsedPatch(title=title, description=description, changes=tuple(changes))


class _Reader:
    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines
        self._at = 0

    @property
    def has_more(self) -> bool:
        return self._at < len(self._lines)

    @property
    def number(self) -> int:
        return self._at + 1

    def peek(self, ahead: int = 0) -> bytes:
        at = self._at + ahead
        return self._lines[at] if at < len(self._lines) else b""

    def take(self) -> bytes:
        line = self.peek()
        self._at += 1
        return line


def _starts_change(reader: _Reader) -> bool:
    """Tell whether git would start reading a change here, also one in the older form without `diff --git`."""
    line = reader.peek()
    if line.startswith((b"diff --git ", b"@@ -", b"GIT binary patch")):
        return True
    return line.startswith(b"--- ") and reader.peek(1).startswith(b"+++ ")


def _read_change(reader: _Reader) -> FileChange:
    change = FileChange(line=reader.number)
    first = _header(reader)
    while reader.has_more:
        line = reader.peek()
        if line.startswith((b"--- ", b"@@ -", b"GIT binary patch", b"Binary files ")):
            break
        if not _read_extended(reader, change):
            break
    if reader.peek().startswith(b"--- "):
        _read_names(reader, change)
        _read_hunks(reader, change)
    elif reader.peek().startswith(b"GIT binary patch"):
        change.is_binary = True
        reader.take()
    elif reader.peek().startswith((b"@@ -", b"Binary files ")):
        raise PatchSyntaxError(reader.number, "a change without names or without its content")
    _settle_names(change, first[len(b"diff --git ") :])
    return change


def _header(reader: _Reader) -> bytes:
    number, line = reader.number, reader.take()
    if line.endswith(b"\r"):
        raise PatchSyntaxError(number, "the header line ends in CR LF", is_crlf=True)
    return line


def _read_extended(reader: _Reader, change: FileChange) -> bool:
    """Read one extended header line; return whether there was one."""
    line = reader.peek()
    for words, action in _EXTENDED:
        if line.startswith(words):
            number, rest = reader.number, _header(reader)[len(words) :]
            action(change, rest, number)
            return True
    if line == b"\r" or line.endswith(b"\r"):
        raise PatchSyntaxError(reader.number, "the header line ends in CR LF", is_crlf=True)
    return False


def _set_mode(change: FileChange, rest: bytes, number: int) -> None:
    if not _MODE.fullmatch(rest):
        raise PatchSyntaxError(number, f"mode {rest[:20]!r} is not six octal digits")
    change.modes.add(rest.decode())


def _set_new(change: FileChange, rest: bytes, number: int) -> None:
    _set_mode(change, rest, number)
    change.is_new = True


def _set_deleted(change: FileChange, rest: bytes, number: int) -> None:
    _set_mode(change, rest, number)
    change.is_deleted = True


def _set_from(change: FileChange, rest: bytes, number: int) -> None:
    change.old_name = whole_name(rest, number)
    change.is_moved = True
    change.names.add(change.old_name)


def _set_to(change: FileChange, rest: bytes, number: int) -> None:
    change.new_name = whole_name(rest, number)
    change.names.add(change.new_name)


def _set_index(change: FileChange, rest: bytes, number: int) -> None:
    _, _, mode = rest.partition(b" ")
    if mode:
        _set_mode(change, mode, number)


def _ignore(change: FileChange, rest: bytes, number: int) -> None:
    return None


_EXTENDED: Final = (
    (b"old mode ", _set_mode),
    (b"new mode ", _set_mode),
    (b"deleted file mode ", _set_deleted),
    (b"new file mode ", _set_new),
    (b"copy from ", _set_from),
    (b"copy to ", _set_to),
    (b"rename from ", _set_from),
    (b"rename to ", _set_to),
    (b"rename old ", _set_from),
    (b"rename new ", _set_to),
    (b"similarity index ", _ignore),
    (b"dissimilarity index ", _ignore),
    (b"index ", _set_index),
)


def _read_names(reader: _Reader, change: FileChange) -> None:
    """Read the `---` and `+++` lines; they must say the same as the lines before."""
    number = reader.number
    old = side_name(_header(reader)[4:], b"a/", number)
    if not reader.peek().startswith(b"+++ "):
        raise PatchSyntaxError(reader.number, "a `---` line without its `+++` line")
    number = reader.number
    new = side_name(_header(reader)[4:], b"b/", number)
    if old is not None:
        change.old_name = _agree(change.old_name, old, number)
    if new is not None:
        change.new_name = _agree(change.new_name, new, number)
    change.names |= {name for name in (old, new) if name is not None}
    if (old is None) != change.is_new or (new is None) != change.is_deleted:
        raise PatchSyntaxError(
            number, "/dev/null and the `new file`/`deleted file` line contradict each other"
        )


def _agree(known: str, found: str, number: int) -> str:
    if known and known != found:
        raise PatchSyntaxError(number, f"the header names {known!r} and {found!r} for one file")
    return found


def _settle_names(change: FileChange, rest: bytes) -> None:
    """Compare with the names of the `diff --git` line, which are the only ones for a mode change."""
    pair = pair_of_names(rest, change.line)
    if pair is None:
        if not change.names:
            raise PatchSyntaxError(change.line, "the names of the `diff --git` line cannot be told apart")
        pair = (change.old_name or change.new_name, change.new_name or change.old_name)
    change.old_name = _agree(change.old_name, pair[0], change.line)
    change.new_name = _agree(change.new_name, pair[1], change.line)
    change.names |= set(pair)
    if change.old_name != change.new_name and not change.is_moved:
        raise PatchSyntaxError(change.line, "two names, but no rename or copy lines")


def _read_hunks(reader: _Reader, change: FileChange) -> None:
    while reader.peek().startswith(b"@@ -"):
        change.hunks.append(_read_hunk(reader, len(change.hunks) + 1))
    if not change.hunks:
        raise PatchSyntaxError(reader.number, "names without a hunk after them")


def _read_hunk(reader: _Reader, number: int) -> Hunk:
    line_number, header = reader.number, reader.take()
    match = _HUNK.match(header)
    if match is None:
        raise PatchSyntaxError(line_number, f"hunk header {header[:60]!r} is malformed")
    old_start, old_count, _, new_count = (int(value) if value is not None else 1 for value in match.groups())
    old: list[bytes] = []
    new: list[bytes] = []
    while old_count > len(old) or new_count > len(new) or reader.peek().startswith(_NO_NEWLINE):
        if not reader.has_more:
            raise PatchSyntaxError(line_number, f"hunk {number} is cut short")
        _read_hunk_line(reader, old, new)
    if len(old) != old_count or len(new) != new_count:
        raise PatchSyntaxError(line_number, f"hunk {number} has other lines than its header counts")
    if old == new:
        raise PatchSyntaxError(line_number, f"hunk {number} changes nothing")
    return Hunk(number=number, old_start=old_start, old=tuple(old), new=tuple(new))


def _read_hunk_line(reader: _Reader, old: list[bytes], new: list[bytes]) -> None:
    number, before, line = reader.number, reader.peek(-1), reader.take()
    # An editor may have stripped the blank of an empty context line; git reads it all the same.
    kind, body = line[:1] or b" ", line[1:] + b"\n"
    if line.startswith(_NO_NEWLINE):
        _drop_newline(old, new, before[:1] or b" ")
        return
    if kind not in (b" ", b"-", b"+"):
        raise PatchSyntaxError(number, f"a line of a hunk starts with {kind!r}")
    if kind != b"+":
        old.append(body)
    if kind != b"-":
        new.append(body)


def _drop_newline(old: list[bytes], new: list[bytes], kind: bytes) -> None:
    """Act on git's line about a missing newline, which is about the line before it."""
    if kind != b"+" and old:
        old[-1] = old[-1].removesuffix(b"\n")
    if kind != b"-" and new:
        new[-1] = new[-1].removesuffix(b"\n")
