"""The real engine of this checkout with the tiny model, for tests marked `engine`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from ci.paths import Layout
from ci.smoke.model import VOCABULARY, cached_model
from opencoti.fetch.trial import suits_this_host
from opencoti.launch.engine import Engine, launch
from opencoti.launch.options import LaunchOptions
from tests.conftest import require


def _is_ours(path: Path) -> bool:
    return suits_this_host(path.name)


def real_options(layout: Layout, **words: object) -> LaunchOptions:
    """Options with the newest artifact; skips where none was built."""
    found = sorted(
        filter(_is_ours, (layout.dist / "llamafile").glob("opencoti-llamafile-*.llamafile")),
        key=lambda path: path.stat().st_mtime_ns,
    )
    require(bool(found), "no artifact in dist/llamafile: run ./noxw -s quickstart")
    model = cached_model(layout, layout.sources / "llama.cpp" / VOCABULARY)
    options = LaunchOptions(binary=found[-1], model=model, timeout_s=120)
    return replace(options, **words)  # type: ignore[arg-type]


def launch_real(layout: Layout, cache: Path, **words: object) -> Engine:
    """Launch it; its notes go to `cache`."""
    environ = {**os.environ, "OPENCOTI_CACHE_DIR": str(cache)}
    return launch(real_options(layout, **words), environ=environ)
