"""The page about backends, from the one table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ci.toolchains.table import Backend, load_table

_HEAD: Final = """# Backends

What `containers/toolchains.toml` says. The libraries that a build makes are measured, and a difference is an
error.

"""
_TITLES: Final = ("backend", "what", "toolchain", "hosts", "devices", "may need", "glibc", "driver")
_COLUMNS: Final = f"| {' | '.join(_TITLES)} |\n{'|---' * len(_TITLES)}|\n"


def backends_page(table: Path) -> str:
    """Return the page; `table` is the path of toolchains.toml."""
    rows = [row for backend in load_table(table).backends for row in _rows(backend)]
    return _HEAD + _COLUMNS + "".join(rows)


def _rows(backend: Backend) -> Iterator[str]:
    for arch in backend.hosts:
        devices = backend.targets_for(arch) or backend.features
        cells = (
            f"`{backend.name}`",
            backend.title,
            f"`{backend.toolchain}` ({backend.toolkit})",
            arch,
            ", ".join(devices) or "-",
            ", ".join(backend.needed) or "-",
            f"≤ {backend.glibc}",
            f"≥ {backend.min_driver}" if backend.min_driver else "-",
        )
        yield f"| {' | '.join(cells)} |\n"
