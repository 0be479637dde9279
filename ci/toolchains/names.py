"""Names of the backends, read from the one table without checking it: command lines need no more."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Final

_TABLE: Final = Path(__file__).resolve().parents[2] / "containers" / "toolchains.toml"


@cache
def backend_names() -> tuple[str, ...]:
    """Return the names of all backends in the order of the table; none while it cannot be read.

    What is wrong with the table is told by the command that needs it (`ci.toolchains.table.load_table`).
    """
    try:
        return tuple(tomllib.loads(_TABLE.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return ()
