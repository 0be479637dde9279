"""A host toolchain without compilers: imitates the unpacked wheels for stages that call `sh` only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ci.stages.model import Stage
from opencoti.console import Console


class FakeToolchain:
    """Its folder is empty; its id is fixed."""

    id = "f" * 64
    description = "toolchain fake"
    extra_path = ("/usr/bin", "/bin")
    record: Mapping[str, str] = MappingProxyType({})

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(self, stage: Stage) -> None:
        """Takes every stage."""

    def prepare(self, console: Console) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder
