"""What every command of the build side is given."""

from __future__ import annotations

from dataclasses import dataclass

from ci.paths import Layout
from opencoti.console import Console


@dataclass(frozen=True, kw_only=True)
class Context:
    """The checkout and the console of one run."""

    layout: Layout
    console: Console
