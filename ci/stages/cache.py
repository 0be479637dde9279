"""The cache of finished stages: one folder per content key, verified on every use, bounded.

    <key>/stage.json    what it is: stage, engine, toolchain, duration, SHA-256 of every file
    <key>/log.txt       the log of the run that made it
    <key>/files/        the outputs

An entry appears by one rename. The cache never fails a build: what is damaged is discarded, and where
nothing can be written the build goes on without.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ci.stages.outputs import copy_outputs
from opencoti.console import Console
from opencoti.hashing import sha256_file

_SCHEMA: Final = "opencoti.stage-result/1"
KEEP_PER_STAGE: Final = 6
# Another command may be reading an entry it has just found: young ones stay whatever their number.
_MIN_AGE_S: Final = 3600.0


@dataclass(frozen=True, kw_only=True)
class CachedStage:
    """A verified entry of the cache."""

    key: str
    folder: Path
    files: Mapping[str, str]
    engine: str
    toolchain_id: str
    toolchain: Mapping[str, str]
    duration_s: float
    log: Path


class StageCache:
    """Finished stages below one folder, shared by every checkout of a user."""

    def __init__(self, folder: Path, console: Console) -> None:
        self._folder = folder
        self._console = console

    def find(self, key: str) -> CachedStage | None:
        """Return the entry of `key` if it is there and every file has its SHA-256."""
        entry = self._folder / key
        if not entry.is_dir():
            return None
        with suppress(OSError):  # before it is read: what was used just now is not collected meanwhile
            os.utime(entry / "stage.json")
        cached, damage = _read_entry(entry, key)
        if cached is None:
            self._console.warn(f"cached stage {entry} is damaged ({damage}): it is built again")
            shutil.rmtree(entry, ignore_errors=True)
            return None
        return cached

    def store(
        self, key: str, stage_name: str, *, source: Path, log: Path, facts: Mapping[str, Any]
    ) -> CachedStage | None:
        """Copy a finished stage into the cache; `facts` holds `files` and what `CachedStage` names.

        Returns None, after a warning, when the cache cannot be written.
        """
        try:
            self._write(key, stage_name, source=source, log=log, facts=facts)
        except OSError as exc:
            self._console.warn(
                f"the stage cache {self._folder} cannot be written ({exc.strerror or exc}): "
                "the result is used, and the next run builds it again"
            )
            return None
        self.collect_garbage(stage_name)
        return self.find(key)

    def collect_garbage(self, stage_name: str, *, keep: int = KEEP_PER_STAGE) -> list[str]:
        """Remove the least recently used entries of one stage beyond `keep`; return their keys."""
        entries = [path for path in self._folder.glob("*/stage.json") if _stage_name(path) == stage_name]
        entries.sort(key=_mtime, reverse=True)
        old = [path.parent for path in entries[keep:] if time.time() - _mtime(path) > _MIN_AGE_S]
        for entry in old:
            shutil.rmtree(entry, ignore_errors=True)
        return [entry.name for entry in old]

    def _write(self, key: str, stage_name: str, *, source: Path, log: Path, facts: Mapping[str, Any]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._remove_abandoned()
        temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=self._folder))
        try:
            copy_outputs(facts["files"], source, temporary / "files")
            shutil.copyfile(log, temporary / "log.txt")
            record = {"schema": _SCHEMA, "key": key, "stage": stage_name, **facts}
            (temporary / "stage.json").write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
            os.chmod(temporary, 0o755)  # noqa: S103
            # Someone else may have finished the same stage meanwhile: theirs is as good as ours.
            if not (self._folder / key).exists():
                os.rename(temporary, self._folder / key)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _remove_abandoned(self) -> None:
        for path in self._folder.glob(".new-*"):
            if time.time() - _mtime(path) > _MIN_AGE_S:
                shutil.rmtree(path, ignore_errors=True)


def _read_entry(entry: Path, key: str) -> tuple[CachedStage | None, str]:
    try:
        record = json.loads((entry / "stage.json").read_bytes())
        if record["schema"] != _SCHEMA or record["key"] != key:
            return None, "stage.json is of another kind"
        cached = CachedStage(
            key=key,
            folder=entry / "files",
            files=dict(record["files"]),
            engine=str(record["engine"]),
            toolchain_id=str(record["toolchain_id"]),
            toolchain={str(name): str(value) for name, value in dict(record["toolchain"]).items()},
            duration_s=float(record["duration_s"]),
            log=entry / "log.txt",
        )
        wrong = [name for name, sha256 in cached.files.items() if sha256_file(cached.folder / name) != sha256]
    except OSError as exc:
        return None, f"{exc.filename}: {exc.strerror}"
    except (ValueError, KeyError, TypeError):
        return None, "stage.json cannot be read"
    return (None, f"{wrong[0]} has other bytes") if wrong else (cached, "")


def _stage_name(path: Path) -> str:
    try:
        return str(json.loads(path.read_bytes())["stage"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
