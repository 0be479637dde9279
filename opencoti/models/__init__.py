"""Which model suits a machine: the table of quants, what a model needs, and where its file is.

Nothing is imported before one of these names is used. `python -m opencoti.models` is the same for a shell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opencoti.models.choice import Recommendation, Wish, recommend
    from opencoti.models.gguf import Header, read_header
    from opencoti.models.kvcache import CacheWish, cache_size
    from opencoti.models.shape import ModelShape
    from opencoti.models.table import QuantTable, load_table

__all__ = [
    "CacheWish",
    "Header",
    "ModelShape",
    "QuantTable",
    "Recommendation",
    "Wish",
    "cache_size",
    "load_table",
    "read_header",
    "recommend",
]
_HOMES = {
    "CacheWish": "kvcache",
    "cache_size": "kvcache",
    "Header": "gguf",
    "read_header": "gguf",
    "ModelShape": "shape",
    "QuantTable": "table",
    "load_table": "table",
    "Recommendation": "choice",
    "Wish": "choice",
    "recommend": "choice",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
