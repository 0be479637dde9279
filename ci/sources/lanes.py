"""Which source and which patch series a lane is built from."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.paths import Layout
from opencoti.errors import MissingError, UsageError

# Lane to the name that its pin and its series share.
_SOURCES: Final = {"ape": "llamafile", "elf": "llama.cpp"}
_AUTO: Final = "auto"
CHOICES: Final = (*_SOURCES, _AUTO)


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One way to an engine: its pin, its series, and its working tree."""

    name: str
    pin: Path
    series: Path
    tree: Path


def find_lane(layout: Layout, name: str) -> Lane:
    """Return a lane by name; `auto` is `ape` where its source and its compiler are there, else `elf`.

    Raises:
        UsageError: `unknown-lane`.
        MissingError: `lane-missing`, the checkout has no pin for it.
    """
    if name not in CHOICES:
        raise UsageError("unknown-lane", f"there is no lane {name!r}", hint=f"lanes are {', '.join(CHOICES)}")
    if name == _AUTO:
        return _lane(layout, "ape" if _has_ape(layout) else "elf")
    lane = _lane(layout, name)
    if not lane.pin.is_file():
        raise MissingError(
            "lane-missing",
            f"lane {name} has no source here",
            why=f"there is no pin {lane.pin}",
            hint="use another lane (--lane), or add the pin as docs/reference/pins.md says",
        )
    return lane


def _lane(layout: Layout, name: str) -> Lane:
    source = _SOURCES[name]
    return Lane(
        name=name,
        pin=layout.pins / f"{source}.txt",
        series=layout.patches / source,
        tree=layout.build / "src" / name,
    )


def _has_ape(layout: Layout) -> bool:
    """Tell whether the ape lane can be built: an uninitialized submodule is a folder too, an empty one."""
    from ci.sources.submodule import is_initialised

    if not _lane(layout, "ape").pin.is_file() or not is_initialised(layout.sources / _SOURCES["ape"]):
        return False
    from ci.ape.toolchain import has_cosmocc

    return has_cosmocc(layout)


def add_lane_option(parser: argparse.ArgumentParser) -> None:
    """Add `--lane`; its default is the environment's OPENCOTI_LANE."""
    parser.add_argument(
        "--lane",
        default=os.environ.get("OPENCOTI_LANE") or _AUTO,
        help=f"one of {', '.join(CHOICES)} (default: OPENCOTI_LANE, else auto)",
    )
