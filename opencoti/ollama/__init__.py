"""Using a model that Ollama has already downloaded, where it lies: nothing is copied, nothing is changed.

Nothing is imported before one of these names is used. `python -m opencoti.ollama` is the same for a shell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opencoti.ollama.importing import Imported, find_model, import_model
    from opencoti.ollama.places import known_stores, store_places
    from opencoti.ollama.reference import Reference
    from opencoti.ollama.store import Entry, Store

__all__ = [
    "Entry",
    "Imported",
    "Reference",
    "Store",
    "find_model",
    "import_model",
    "known_stores",
    "store_places",
]
_HOMES = {
    "Imported": "importing",
    "find_model": "importing",
    "import_model": "importing",
    "known_stores": "places",
    "store_places": "places",
    "Reference": "reference",
    "Entry": "store",
    "Store": "store",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
