"""What a release may consist of: number, size and names of its assets, and the parts of a large one. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from ci.package.naming import ASSET_MAX_BYTES, PART_BYTES
from opencoti.errors import ConfigError, OpencotiError
from release.planning.model import PlannedAsset, PlannedLimits, PlannedPart

GITHUB: Final = PlannedLimits(asset_max_bytes=ASSET_MAX_BYTES, part_bytes=PART_BYTES, max_assets=999)
# GitHub turns every other character of an asset's name into a dot, and drops dots at the start.
_ASSET_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


def split(name: str, size: int, limits: PlannedLimits) -> tuple[PlannedPart, ...]:
    """Return the parts in which a release carries a file; none if one asset holds it.

    They are named so that `cat NAME.part*` puts them together.
    """
    if size <= limits.asset_max_bytes:
        return ()
    offsets = range(0, size, limits.part_bytes)
    return tuple(
        PlannedPart(name=f"{name}.part{number:03d}", size=min(limits.part_bytes, size - offset))
        for number, offset in enumerate(offsets, 1)
    )


def check_limits(limits: PlannedLimits) -> None:
    """Refuse limits that contradict each other.

    Raises:
        ConfigError: `part-size-unfit`.
    """
    if limits.part_bytes > limits.asset_max_bytes or limits.part_bytes % (1 << 12):
        raise ConfigError(
            "part-size-unfit",
            f"parts of {limits.part_bytes} bytes cannot be used",
            why=f"a part is a multiple of 4096 bytes, and at most an asset ({limits.asset_max_bytes} bytes)",
            hint="leave out --part-size, or correct it",
        )


def asset_problems(assets: Iterable[PlannedAsset], limits: PlannedLimits) -> Iterator[OpencotiError]:
    """Yield what the remote would refuse about a set of assets."""
    assets = tuple(assets)
    if len(assets) > limits.max_assets:
        yield ConfigError(
            "assets-too-many",
            f"the release would have {len(assets)} assets",
            why=f"the remote takes {limits.max_assets}",
            hint="release fewer artifacts at once, or use larger parts",
        )
    seen = Counter(asset.name.casefold() for asset in assets)
    for asset in assets:
        if not _ASSET_NAME.fullmatch(asset.name) or seen[asset.name.casefold()] > 1:
            yield ConfigError(
                "asset-name-unfit",
                f"the remote would not keep the name of asset {asset.name[:200]!r}",
                why="a name holds letters, digits and . _ - only, starts with no dot, and stands once",
                hint="change the tag, the flavor or the name of the file",
            )
        if asset.size is not None and asset.size > limits.asset_max_bytes:
            yield ConfigError(
                "asset-too-large",
                f"asset {asset.name} has {asset.size} bytes",
                why=f"the remote takes {limits.asset_max_bytes}, and only artifacts are split into parts",
                hint="make it smaller",
            )
