"""Running a stage: cache → toolchain → folder → engine → outputs → cache."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.engines.model import Engine, PreparedToolchain
from ci.locks import exclusive_lock
from ci.paths import Layout
from ci.stages.cache import CachedStage, StageCache
from ci.stages.folder import prepare_folder, stage_fingerprint
from ci.stages.model import Stage
from ci.stages.outputs import collect_outputs
from ci.stages.toolcache import tool_cache
from opencoti.console import Console
from opencoti.errors import ConfigError, StorageError

_MIN_FREE_BYTES: Final = 2 << 30


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """A finished stage; `folder / name` is a file for every name in `files`.

    Args:
        files: relative path to SHA-256.
        toolchain: what the engine recorded of the toolchain, the image's id among it.
        from_cache: nothing was run; `engine`, `duration_s` and `log` are those of the run that made it.
    """

    stage: str
    key: str
    folder: Path
    files: Mapping[str, str]
    from_cache: bool
    engine: str
    toolchain_id: str
    toolchain: Mapping[str, str]
    duration_s: float
    log: Path


def run_stage(
    stage: Stage,
    engine: Engine,
    *,
    layout: Layout,
    source: Path,
    console: Console,
    jobs: int,
    use_cache: bool = True,
    accept: Callable[[Path, Path], None] | None = None,
) -> StageResult:
    """Return the outputs of a stage, from the cache or by building them.

    Args:
        stage: what to build.
        engine: what runs it.
        layout: where build folders, logs and caches are.
        source: the tree whose id is `stage.source_tree`; it is read only.
        console: gets progress and notices.
        jobs: how many compilers run at the same time.
        use_cache: False builds from scratch: no finished stage, no build folder and no compiler cache
            of an earlier run is used, and none is left behind.
        accept: called with the build folder and the log when all steps ended well, before anything is kept;
            what it raises fails the stage.

    Raises:
        BuildError: a step failed, or an output is missing.
        BusyError: another command builds this stage in this checkout.
        MissingError: the engine or the toolchain is not there.
        StorageError: the disk is full or not writable.
    """
    if not source.is_dir():
        raise ConfigError("stage-source-missing", f"stage {stage.name} has no source tree {source}")
    cache = StageCache(layout.stages, console)
    toolchain_id = engine.toolchain_id(stage.toolchain)
    if use_cache and (hit := cache.find(stage.key(toolchain_id))):
        return _from_cache(stage, hit, console)
    prepared = engine.prepare(stage.toolchain, console)
    # `--engine auto` may have settled on another engine while it prepared.
    if use_cache and prepared.id != toolchain_id and (hit := cache.find(stage.key(prepared.id))):
        return _from_cache(stage, hit, console)
    out = layout.build / "stages" / engine.name / stage.place
    with exclusive_lock(out.with_name(f"{stage.place}.lock"), f"build folder {out}"):
        build = _Build(stage, engine, prepared, layout=layout, source=source, out=out, console=console)
        return build.run(jobs=jobs, cache=cache if use_cache else None, accept=accept)


def _from_cache(stage: Stage, hit: CachedStage, console: Console) -> StageResult:
    console.info(f"stage {stage.name}: nothing to do (built by engine {hit.engine}, key {hit.key[:12]})")
    return StageResult(
        stage=stage.name,
        key=hit.key,
        folder=hit.folder,
        files=hit.files,
        from_cache=True,
        engine=hit.engine,
        toolchain_id=hit.toolchain_id,
        toolchain=hit.toolchain,
        duration_s=hit.duration_s,
        log=hit.log,
    )


class _Build:
    """One run of a stage whose build folder this process has locked."""

    def __init__(
        self,
        stage: Stage,
        engine: Engine,
        prepared: PreparedToolchain,
        *,
        layout: Layout,
        source: Path,
        out: Path,
        console: Console,
    ) -> None:
        self._stage = stage
        self._engine = engine
        self._prepared = prepared
        self._layout = layout
        self._source = source
        self._out = out
        self._console = console
        self._log = layout.logs / f"{stage.place}-{engine.name}.log"
        self._key = stage.key(prepared.id)

    def run(
        self, *, jobs: int, cache: StageCache | None, accept: Callable[[Path, Path], None] | None = None
    ) -> StageResult:
        """Build; with a cache incrementally and stored there, without from scratch."""
        started = time.monotonic()
        self._prepare(is_fresh=cache is None)
        self._console.info(
            f"stage {self._stage.name}: engine {self._engine.name}, {self._prepared.description}, jobs {jobs}"
        )
        with tool_cache(
            shared=self._shared_tools() if cache else None,
            private=self._out.with_name(f"{self._stage.place}.tool-cache"),
            console=self._console,
        ) as tools:
            self._engine.run(
                self._stage,
                source=self._source,
                out=self._out,
                tool_cache=tools,
                jobs=jobs,
                log=self._log,
                console=self._console,
            )
        if accept is not None:
            accept(self._out, self._log)
        return self._finish(time.monotonic() - started, cache)

    def _prepare(self, *, is_fresh: bool) -> None:
        fingerprint = stage_fingerprint(self._stage, self._prepared.id, self._source, self._out)
        prepare_folder(self._out, fingerprint, self._console, is_fresh=is_fresh)
        require_free_space(self._out, _MIN_FREE_BYTES)

    def _shared_tools(self) -> Path:
        return self._layout.cache / "tool-cache" / f"{self._engine.name}-{self._prepared.id[:16]}"

    def _finish(self, duration_s: float, cache: StageCache | None) -> StageResult:
        files = collect_outputs(self._stage, self._out)
        facts = {
            "engine": self._engine.name,
            "toolchain_id": self._prepared.id,
            "toolchain": dict(self._prepared.record),
            "duration_s": round(duration_s, 3),
            "files": files,
            "inputs": {"source_tree": self._stage.source_tree, **self._stage.inputs},
        }
        stored = cache and cache.store(
            self._key, self._stage.name, source=self._out, log=self._log, facts=facts
        )
        self._console.info(f"stage {self._stage.name}: {len(files)} files in {duration_s:.0f} s")
        return StageResult(
            stage=self._stage.name,
            key=self._key,
            folder=stored.folder if stored else self._out,
            files=files,
            from_cache=False,
            engine=self._engine.name,
            toolchain_id=self._prepared.id,
            toolchain=dict(self._prepared.record),
            duration_s=duration_s,
            log=stored.log if stored else self._log,
        )


def require_free_space(folder: Path, needed_bytes: int) -> None:
    """Stop before a build that would fill the disk.

    Raises:
        StorageError: `disk-low`, with both figures.
    """
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise StorageError(
            "disk-low",
            f"too little space for a build in {folder}",
            why=f"{free_bytes >> 20} MiB are free, {needed_bytes >> 20} MiB are needed",
            hint="free some space, or move the checkout and OPENCOTI_BUILD_CACHE to a larger disk",
        )
