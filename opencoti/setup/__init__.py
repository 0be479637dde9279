"""The first run: what this machine has, which model suits it, where its file comes from, and a test.

`python -m opencoti.setup` asks in a terminal, or does it alone with `--yes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opencoti.setup.config import Config, load_config
    from opencoti.setup.flow import Outcome, SetupWish, set_up

__all__ = ["Config", "Outcome", "SetupWish", "load_config", "set_up"]
_HOMES = {
    "Config": "config",
    "load_config": "config",
    "Outcome": "flow",
    "SetupWish": "flow",
    "set_up": "flow",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
