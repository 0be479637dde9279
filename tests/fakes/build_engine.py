"""An engine that builds nothing: imitates `host` and `docker` by writing files, starting no program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ci.engines.model import PreparedToolchain
from ci.stages.model import Stage
from opencoti.console import Console


class FakeEngine:
    """Writes `files` below the build folder; counts what was asked of it."""

    def __init__(
        self,
        files: Mapping[str, bytes],
        *,
        name: str = "host",
        toolchain_id: str = "a" * 64,
        prepared_id: str = "",
    ) -> None:
        self.name = name
        self.files = dict(files)
        self.prepared = 0
        self.tool_caches: list[Path] = []
        self._id = toolchain_id
        self._prepared_id = prepared_id or toolchain_id

    @property
    def runs(self) -> int:
        return len(self.tool_caches)

    def toolchain_id(self, toolchain: str) -> str:
        return self._id

    def prepare(self, toolchain: str, console: Console) -> PreparedToolchain:
        self.prepared += 1
        return PreparedToolchain(
            name=toolchain,
            id=self._prepared_id,
            tools="/tools",
            description="a fake",
            record={"kind": "fake"},
        )

    def run(
        self,
        stage: Stage,
        *,
        source: Path,
        out: Path,
        tool_cache: Path,
        jobs: int,
        log: Path,
        console: Console,
    ) -> None:
        self.tool_caches.append(tool_cache)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("built by a fake\n")
        for name, data in self.files.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(data)
            (out / name).chmod(0o755)
