"""ccache for one run of a stage: when it is used, how it is set up, and what it did.

The compiler wrappers start whatever `OPENCOTI_LAUNCHER` names, so neither the commands of a stage nor its key
differ with and without the cache. It is used only with a tool cache that is kept: a build from scratch has
none, and a release takes nothing from any cache.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci import process
from ci.stages.model import Stage, digest
from opencoti.console import Console
from opencoti.errors import ConfigError
from opencoti.files import write_atomic

OFF_VARIABLE: Final = "OPENCOTI_NO_CCACHE"
SIZE_VARIABLE: Final = "OPENCOTI_CCACHE_SIZE"
STATS_FILE: Final = ".opencoti-ccache.log"
_FOLDER: Final = "ccache"
_SEEN: Final = "ccache-seen"
_GIB: Final = 1 << 30
_DEFAULT_GIB: Final = 10
# One build of a GPU backend for all its architectures fills about half of it (case B20).
_MIN_GIB: Final = 4
_FULL: Final = 0.95
_POOR: Final = 0.10
_FEW: Final = 20
# The form of the statistics log, and `--print-stats`, came with 4.4.
_MIN_VERSION: Final = (4, 4)
# `nvcc` has no such option; its host compiler is one of the wrappers.
_PREFIX: Final = """#!/bin/sh
case "$1" in
*nvcc) exec "$@" ;;
esac
exec "$@" "-ffile-prefix-map=$OPENCOTI_SRC_REL=."
"""
_VERSION: Final = re.compile(r"ccache version (\d+)\.(\d+)")


@dataclass(frozen=True, kw_only=True)
class CompilerCache:
    """How a stage uses ccache; paths are those that the stage sees.

    Args:
        program: ccache itself.
        compiler_id: stands for the compiler. The wrappers' own content would say nothing about the compiler
            behind them, and times of change differ with every unpacking (case B20).
        source: the source tree, empty where its place is always the same. Paths below it are made relative,
            so that another checkout finds the same objects.
        source_from_out: the relative path that they then begin with.
        prefix: program that every compiler call goes through; it gives that path its fixed name, as the
            wrappers do with the absolute one. With and without a cache the same bytes come out.
        remote: address of a shared storage, empty for none.
    """

    program: str
    compiler_id: str
    out: str
    size_gib: int = _DEFAULT_GIB
    source: str = ""
    source_from_out: str = ""
    prefix: str = ""
    remote: str = ""

    def environment(self) -> dict[str, str]:
        """Return what a stage needs beside `CCACHE_DIR`."""
        fixed = {
            "OPENCOTI_LAUNCHER": self.program,
            # With the program that ccache starts compilers through: it changes products, and ccache leaves
            # both it and the options of path names out of its keys.
            "CCACHE_COMPILERCHECK": f"string:{self.compiler_id}/{digest(_PREFIX)[:16]}",
            "CCACHE_MAXSIZE": f"{self.size_gib}G",
            "CCACHE_NOHASHDIR": "1",
            "CCACHE_STATSLOG": f"{self.out}/{STATS_FILE}",
        }
        moving = {
            "CCACHE_BASEDIR": self.source,
            "CCACHE_PREFIX": self.prefix,
            "OPENCOTI_SRC_REL": self.source_from_out,
        }
        remote = {"CCACHE_REMOTE_STORAGE": self.remote} if self.remote else {}
        return fixed | (moving if self.source else {}) | remote


@dataclass(frozen=True, kw_only=True)
class CacheUse:
    """What the cache did in one run of a stage."""

    hits: int
    misses: int
    remote_hits: int
    remote_errors: int
    size_bytes: int = 0

    @property
    def compiles(self) -> int:
        """Compiler calls that could have been hits."""
        return self.hits + self.misses


def is_cache_wanted(*, tool_cache: Path, cache: Path, is_strict: bool) -> bool:
    """Tell whether a run with this tool cache uses a compiler cache; `cache` is the kept build cache."""
    is_off = is_strict or bool(os.environ.get(OFF_VARIABLE))
    return not is_off and tool_cache.is_relative_to(cache)


def size_gib(env: Mapping[str, str] | None = None) -> int:
    """Return the size limit in GiB.

    Raises:
        ConfigError: `ccache-size`, not a number, or so small that one build pushes itself out (case B20).
    """
    text = (os.environ if env is None else env).get(SIZE_VARIABLE, "") or str(_DEFAULT_GIB)
    number = int(text) if text.isdecimal() else 0
    if number < _MIN_GIB:
        raise ConfigError(
            "ccache-size",
            f"{SIZE_VARIABLE} is {text!r}",
            why=f"it is the size limit of the compiler cache in GiB, and one build needs {_MIN_GIB}",
            hint=f"set a whole number of at least {_MIN_GIB}, or unset it ({_DEFAULT_GIB})",
        )
    return number


def find_ccache() -> str:
    """Return the path of this machine's ccache, empty if there is none that is new enough."""
    program = shutil.which("ccache")
    if program is None:
        return ""
    match = _VERSION.match(process.run([program, "--version"]).text)
    is_new_enough = match is not None and (int(match[1]), int(match[2])) >= _MIN_VERSION
    return program if is_new_enough else ""


def write_prefix(tool_cache: Path) -> str:
    """Write the program of `CompilerCache.prefix` and return its path, the same for every checkout.

    Raises:
        StorageError: the tool cache cannot be written.
    """
    path = tool_cache / "ccache-prefix"
    if not path.is_file() or path.read_text(encoding="utf-8") != _PREFIX:
        write_atomic(path, _PREFIX.encode(), mode=0o755)
    return str(path)


def is_writable(tool_cache: Path, console: Console) -> bool:
    """Tell whether ccache can write below `tool_cache`; a warning when it cannot (case B19)."""
    folder = tool_cache / _FOLDER
    probe = folder / f".writable-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as exc:
        console.warn(
            f"the compiler cache {folder} cannot be written ({exc.strerror}): this build goes without it"
        )
        return False
    return True


def read_use(text: str) -> CacheUse:
    """Read a statistics log of ccache: per call a comment with the source file, then what happened."""
    results = [line.strip() for line in text.splitlines()]
    return CacheUse(
        hits=results.count("direct_cache_hit") + results.count("preprocessed_cache_hit"),
        misses=results.count("cache_miss"),
        # `remote_storage_…` since 4.7, `secondary_storage_…` before.
        remote_hits=results.count("remote_storage_hit") + results.count("secondary_storage_hit"),
        remote_errors=results.count("remote_storage_error") + results.count("secondary_storage_error"),
    )


def read_size(lines: list[str]) -> int:
    """Return the size of the cache in bytes, from the lines that `ccache --print-stats` prints."""
    for line in lines:
        name, _, value = line.partition("\t")
        if name == "cache_size_kibibyte" and value.isdecimal():
            return int(value) * 1024
    return 0


def report_use(
    use: CacheUse, *, limit_gib: int, console: Console, log: Callable[[str], object], is_known: bool
) -> None:
    """Say what the cache did; warn when it is of no use (case B20).

    Args:
        use: what it did.
        limit_gib: its size limit.
        console: gets one line, and the warnings.
        log: gets the line too.
        is_known: the very same stage was compiled with this cache before.
    """
    if not use.compiles:
        return
    share = use.hits / use.compiles
    size = f", {use.size_bytes / 1e9:.1f} of {limit_gib * _GIB / 1e9:.1f} GB used" if use.size_bytes else ""
    remote = f", {use.remote_hits} from the shared storage" if use.remote_hits else ""
    text = f"compiler cache: {use.hits} of {use.compiles} calls were hits ({share:.0%}){remote}{size}"
    console.info(f"   {text}")
    log(text)
    if use.remote_errors:
        console.warn(f"the shared storage of the compiler cache failed {use.remote_errors} times")
    if use.size_bytes > _FULL * limit_gib * _GIB:
        console.warn(f"the compiler cache is full: set {SIZE_VARIABLE} to more than {limit_gib}")
    if is_known and use.compiles >= _FEW and share < _POOR:
        console.warn(
            f"the compiler cache knew {share:.0%} of a build that it has seen before: it is too small, "
            "or the commands hold something that changes each time"
        )


def mark_seen(tool_cache: Path, stage: Stage, compiler_id: str) -> bool:
    """Remember that a stage was compiled with this cache; return whether it was before."""
    mark = tool_cache / _SEEN / stage.key(compiler_id)
    is_known = mark.is_file()
    try:
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
    except OSError:
        return False
    return is_known
