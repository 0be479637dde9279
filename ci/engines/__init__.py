"""Engines: what runs stages. `select_engine` chooses one; the interface is `ci.engines.model.Engine`."""

from __future__ import annotations

from ci.engines.model import Engine, PreparedToolchain
from ci.engines.select import EngineName, select_engine

__all__ = ["Engine", "EngineName", "PreparedToolchain", "select_engine"]
