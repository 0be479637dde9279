"""`vendors/llamafile/USED_TAGS`: tags of releases that were public once, one a line; `#` starts a comment.

An immutable release uses its tag up for ever, even when it is deleted, and no remote tells that before one
tries. `python -m release pin` adds the tag of each release; a plan refuses those that are listed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from opencoti.errors import ConfigError, storage_error
from opencoti.pins import is_tag

USED_TAGS: Final = "vendors/llamafile/USED_TAGS"
HEAD: Final = "# Tags of published releases. They are used up, whatever becomes of the release.\n"


def read_used_tags(root: Path) -> tuple[str, ...]:
    """Return the tags of a checkout; none where there is no such file.

    Raises:
        ConfigError: `used-tags-malformed`.
        StorageError: it cannot be read.
    """
    path = root / USED_TAGS
    try:
        lines = path.read_bytes().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return ()
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
    tags = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    for tag in tags:
        if not is_tag(tag):
            raise ConfigError(
                "used-tags-malformed",
                f"cannot read {path}",
                why=f"{tag[:60]!r} is no tag",
                hint="write one tag on each line",
            )
    return tuple(tags)
