"""Starting the engine on this machine, and ending it: `launch`, `launch_async`, `LaunchOptions`, `Engine`.

Nothing is imported before one of these names is used. `python -m opencoti.launch` is the same for a shell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opencoti.launch.asynchronous import AsyncEngine, launch_async
    from opencoti.launch.engine import Engine, launch
    from opencoti.launch.options import LaunchOptions

__all__ = ["AsyncEngine", "Engine", "LaunchOptions", "launch", "launch_async"]
_HOMES = {
    "AsyncEngine": "asynchronous",
    "launch_async": "asynchronous",
    "Engine": "engine",
    "launch": "engine",
    "LaunchOptions": "options",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
