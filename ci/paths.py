"""Where things are in a checkout and in the build cache. Computes paths only; creates nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from opencoti.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The folders of one checkout and of the cache that it shares with others."""

    root: Path
    cache: Path

    @classmethod
    def find(cls) -> Layout:
        """Locate the checkout that holds this package, and the build cache of this user.

        Raises:
            ConfigError: `cache-path-relative`, `no-build-cache` (no home folder is known).
        """
        configured = os.environ.get("OPENCOTI_BUILD_CACHE", "")
        if configured and not os.path.isabs(configured):
            raise ConfigError(
                "cache-path-relative",
                f"OPENCOTI_BUILD_CACHE is {configured!r}",
                why="it must be an absolute path, since commands run in several folders",
                hint="set it to an absolute path, or unset it",
            )
        cache = Path(configured) if configured else _default_cache()
        return cls(root=Path(__file__).resolve().parent.parent, cache=cache)

    @property
    def pins(self) -> Path:
        """Source pins, one file each."""
        return self.root / "vendors" / "pin"

    @property
    def sources(self) -> Path:
        """Pristine upstream trees; no build writes here."""
        return self.root / "vendors" / "sources"

    @property
    def patches(self) -> Path:
        """Patch series, one folder each."""
        return self.root / "vendors" / "patches"

    @property
    def opencoti_tag(self) -> Path:
        """The tag of the next packaged cut."""
        return self.root / "vendors" / "llamafile" / "OPENCOTI_TAG"

    @property
    def containers(self) -> Path:
        """Recipes and locks of the toolchain images."""
        return self.root / "containers"

    @property
    def table(self) -> Path:
        """The one table of backends."""
        return self.containers / "toolchains.toml"

    @property
    def build(self) -> Path:
        """Working trees, build folders and logs; safe to delete."""
        return self.root / "build"

    @property
    def logs(self) -> Path:
        """Full logs of every step."""
        return self.build / "logs"

    @property
    def dist(self) -> Path:
        """What the commands produce."""
        return self.root / "dist"

    @property
    def downloads(self) -> Path:
        """Download cache, one file per SHA-256."""
        return self.cache / "downloads"

    @property
    def toolchains(self) -> Path:
        """Unpacked toolchains of the host engine, one folder per lock."""
        return self.cache / "toolchains"

    @property
    def stages(self) -> Path:
        """Results of finished stages, one folder per content key."""
        return self.cache / "stages"


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "opencoti-build"
    try:
        return Path.home() / ".cache" / "opencoti-build"
    except RuntimeError as exc:
        raise ConfigError(
            "no-build-cache",
            "cannot tell where the build cache is",
            why=str(exc),
            hint="set HOME, or OPENCOTI_BUILD_CACHE to an absolute path",
        ) from exc
