"""What this machine has for running the engine, what would be used, and what to fix.

`examine` returns it as data; `python -m opencoti.doctor` prints it. Reads only, but for one start of the
engine with `--version` in a scratch folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opencoti.doctor.examination import Examination, examine
    from opencoti.doctor.finding import Finding

__all__ = ["Examination", "Finding", "examine"]
_HOMES = {"Examination": "examination", "examine": "examination", "Finding": "finding"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
