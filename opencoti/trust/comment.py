"""The trusted comment of every signature of ours: a strict line of `key=value` pairs.

    comment = pair *( " " pair )          one blank between pairs, none at the ends
    pair    = key "=" value               each key at most once, in the order of the table below
    value   = 1 to 200 of A-Z a-z 0-9 . _ + - / : @

| key | value |
|---|---|
| `product` | product, such as `opencoti` |
| `repo` | `<owner>/<name>` |
| `tag` | tag of the release |
| `version` | versionString |
| `file` | name of the signed file |
| `sequence` | number of the release from 1, on the index only |
| `expires` | `YYYY-MM-DDTHH:MM:SSZ`, on the index only |
| `x-…` | notes that a reader may ignore; any other unknown key is refused |

One comment has one spelling: what is parsed and written again gives the same text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NoReturn

from opencoti.errors import VerificationError
from opencoti.files import is_safe_name

INDEX_NAME: Final = "opencoti-release.json"
KEYS: Final = ("product", "repo", "tag", "version", "file", "sequence", "expires")
MAX_SEQUENCE: Final = (1 << 53) - 1

_MAX_CHARS = 4000
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_PAIR = re.compile(r"([a-z][a-z0-9-]{0,31})=([A-Za-z0-9._+/:@-]{1,200})")
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}")
_SEQUENCE = re.compile(r"[1-9][0-9]{0,15}")


@dataclass(frozen=True, kw_only=True)
class Comment:
    """A trusted comment. Parsed from a verified signature, or made to be signed."""

    product: str
    file: str
    repo: str | None = None
    tag: str | None = None
    version: str | None = None
    sequence: int | None = None
    expires: datetime | None = None
    notes: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str, what: str) -> Comment:
        """Read a trusted comment.

        Args:
            text: the comment, without the words `trusted comment: `.
            what: the signed file, for the message.

        Raises:
            VerificationError: `comment-malformed`.
        """
        if len(text) > _MAX_CHARS:
            _refuse(what, f"it is longer than {_MAX_CHARS} characters")
        pairs = [_split(pair, what) for pair in text.split(" ")]
        comment = cls.from_pairs(dict(pairs), what)
        if comment.render() != text:
            _refuse(what, "a key stands twice, or the keys are not in their order")
        return comment

    @classmethod
    def from_pairs(cls, pairs: Mapping[str, str], what: str) -> Comment:
        """Make a comment from the texts of its values. Raises like `parse`."""
        unknown = [key for key in pairs if key not in KEYS and not key.startswith("x-")]
        if unknown:
            _refuse(what, f"this program does not know the key {unknown[0]!r}")
        for key in ("product", "file"):
            if key not in pairs:
                _refuse(what, f"it has no {key}")
        if not is_safe_name(pairs["file"]):
            _refuse(what, "file is no plain file name")
        if "repo" in pairs and not _REPO.fullmatch(pairs["repo"]):
            _refuse(what, "repo is not <owner>/<name>")
        return cls(
            product=pairs["product"],
            file=pairs["file"],
            repo=pairs.get("repo"),
            tag=pairs.get("tag"),
            version=pairs.get("version"),
            sequence=_parse_sequence(pairs["sequence"], what) if "sequence" in pairs else None,
            expires=parse_time(pairs["expires"], what) if "expires" in pairs else None,
            notes=tuple((key, value) for key, value in pairs.items() if key.startswith("x-")),
        )

    def render(self) -> str:
        """Return the one spelling of this comment."""
        values = {
            "product": self.product,
            "repo": self.repo,
            "tag": self.tag,
            "version": self.version,
            "file": self.file,
            "sequence": None if self.sequence is None else str(self.sequence),
            "expires": None if self.expires is None else render_time(self.expires),
        }
        pairs = [f"{key}={value}" for key, value in values.items() if value is not None]
        return " ".join(pairs + [f"{key}={value}" for key, value in sorted(self.notes)])


def parse_time(text: str, what: str) -> datetime:
    """Return the point in time (UTC) of `YYYY-MM-DDTHH:MM:SSZ`. Raises like `Comment.parse`."""
    if not _TIME.fullmatch(text):
        _refuse(what, f"{text[:40]!r} is no time of the form YYYY-MM-DDTHH:MM:SSZ")
    try:
        return datetime.strptime(text, _TIME_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        _refuse(what, f"{text} is no point in time")


def render_time(moment: datetime) -> str:
    """Return `moment` in UTC, to the second, as `YYYY-MM-DDTHH:MM:SSZ`."""
    utc = moment.astimezone(UTC)
    return f"{utc.year:04d}" + utc.strftime("-%m-%dT%H:%M:%SZ")


def _split(pair: str, what: str) -> tuple[str, str]:
    match = _PAIR.fullmatch(pair)
    if match is None:
        _refuse(what, f"{pair[:60]!r} is no key=value pair")
    return match[1], match[2]


def _parse_sequence(text: str, what: str) -> int:
    if not _SEQUENCE.fullmatch(text) or int(text) > MAX_SEQUENCE:
        _refuse(what, f"sequence {text[:40]!r} is no number from 1 to {MAX_SEQUENCE}")
    return int(text)


def _refuse(what: str, why: str) -> NoReturn:
    raise VerificationError(
        "comment-malformed",
        f"the trusted comment in the signature of {what} is not one of ours",
        why=why,
        hint="sign with `python -m release sign`, or see docs/how-to/sign.md for the form of the comment",
    )
