"""The generated part of a release text, and the rest of it, which is never touched. Pure.

<!-- opencoti:notes:begin -->
…                                  rewritten as often as wanted
<!-- opencoti:notes:end -->
"""

from __future__ import annotations

from typing import Final

from opencoti.errors import ConfigError
from release.sums import NOTES_NAME

__all__ = ["BEGIN", "END", "NOTES_NAME", "merge_body"]

BEGIN: Final = "<!-- opencoti:notes:begin -->"
END: Final = "<!-- opencoti:notes:end -->"
_MAX_CHARS: Final = 125_000  # what GitHub takes as the text of a release


def merge_body(existing: str, generated: str) -> str:
    """Return a release text whose generated part is `generated`; everything else stays as it was.

    A text without markers gets the generated part at its end. Line ends of the rest are kept.

    Raises:
        ConfigError: `notes-markers-broken`, `notes-too-long`.
    """
    if BEGIN in generated or END in generated:
        raise _broken("the generated part itself holds a marker")
    block = f"{BEGIN}\n{generated.strip()}\n{END}"
    if BEGIN not in existing and END not in existing:
        before = existing.rstrip()
        text = f"{before}\n\n{block}\n" if before else f"{block}\n"
    else:
        text = _replace(existing, block)
    if len(text) > _MAX_CHARS:
        raise ConfigError(
            "notes-too-long",
            f"the text of the release has {len(text)} characters",
            why=f"GitHub takes {_MAX_CHARS}",
            hint="shorten what stands around the generated part",
        )
    return text


def _replace(existing: str, block: str) -> str:
    start, end = existing.find(BEGIN), existing.find(END)
    is_once = existing.count(BEGIN) == 1 and existing.count(END) == 1
    if not is_once or end < start:
        raise _broken("it must have both markers, once each, in order")
    return existing[:start] + block + existing[end + len(END) :]


def _broken(why: str) -> ConfigError:
    return ConfigError(
        "notes-markers-broken",
        "cannot tell which part of the release text is generated",
        why=why,
        hint=f"put one line `{BEGIN}` before it and one line `{END}` after it, or remove both",
    )
