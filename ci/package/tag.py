"""`vendors/llamafile/OPENCOTI_TAG`: the tag of the next packaged cut, one word; `#` starts a comment line."""

from __future__ import annotations

import re
from pathlib import Path

from opencoti.errors import ConfigError

_TAG = re.compile(r"[a-z0-9][a-z0-9.-]{0,31}")
_MAX_BYTES = 1 << 16


def read_tag(path: Path) -> str:
    """Return the tag.

    Raises:
        ConfigError: `tag-missing`, `tag-malformed`.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES)
    except OSError as exc:
        raise ConfigError(
            "tag-missing",
            f"cannot read {path}",
            why=exc.strerror or str(exc),
            hint="write the tag of the next cut into it, for example `c1`",
        ) from exc
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines()]
    words = [line for line in lines if line and not line.startswith("#")]
    if len(words) != 1:
        raise _malformed(path, f"expected one line that is no comment, found {len(words)}")
    if not _TAG.fullmatch(words[0]) or words[0].endswith("."):
        raise _malformed(path, f"{words[0][:60]!r} is not one word of lowercase letters, digits, . and -")
    return words[0]


def _malformed(path: Path, why: str) -> ConfigError:
    return ConfigError(
        "tag-malformed", f"cannot read {path}", why=why, hint="write one word into it, for example `c1`"
    )
