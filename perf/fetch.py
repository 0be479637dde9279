"""The downloader beside others, from a server on loopback; and how little an upgrade moves.

All write to the same disk, in turns. Ours also waits until the file is on it (`fsync`), the others do not:
hence the line with `sync`. Tools that are not installed are named.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import truediv
from pathlib import Path
from typing import Any

from ci import process
from ci.artifacts import newest_artifact
from ci.context import Context
from opencoti import chunks
from opencoti.errors import BuildError
from opencoti.hashing import sha256_bytes, sha256_file
from opencoti.jsonio import render_json
from opencoti.manifest import CHUNKS_SUFFIX, MANIFEST_SUFFIX
from perf import web_server
from perf.fetch_rivals import rivals
from perf.measure import Report, Sample, time_call

DEFAULT_MIB = 1024
OURS = "ours, chunks and SHA-256"
OLDER_VARIABLE = "OPENCOTI_BENCH_OLDER"
_NAME = "file.bin"
_CHANGED_SHARE = 0.03
_SLOW_MIB, _SLOW_DELAY_S, _SLOW_BYTES_PER_S = 64, 0.2, 4e6


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A served file and the place where every tool puts it."""

    url: str
    sha256: str
    root: Path
    out: Path

    def ours(self, *more: str | Path) -> list[str | Path]:
        """Return our command."""
        words: list[str | Path] = [sys.executable, "-m", "opencoti.fetch", "get", "--quiet", "--json"]
        return [*words, "--url", self.url, "--sha256", self.sha256, "--dest", self.out, *more]

    def run(self, *commands: Sequence[str | Path]) -> str:
        """Run commands one after the other into an empty place; return the output of the last one."""
        self.clear()
        return self.again(*commands)

    def clear(self) -> None:
        """Empty the place, and wait until the disk has nothing left to do."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        os.sync()

    def again(self, *commands: Sequence[str | Path]) -> str:
        """Run commands with what is in the place."""
        text = ""
        for argv in commands:
            done = process.run(argv, cwd=self.root)
            if not done.is_ok:
                raise BuildError(
                    "bench-command-failed", f"{argv[0]} ended with {done.code}", why=done.error_text[-300:]
                )
            text = done.text
        return text


def run(context: Context, *, runs: int, size_mib: int = DEFAULT_MIB) -> Report:
    """Measure downloads of `size_mib` MiB, and the bytes that upgrade, resume and repair move."""
    with tempfile.TemporaryDirectory(prefix="opencoti-bench-") as scratch:
        folder = Path(scratch) / "served"
        folder.mkdir()
        _write_random(folder / _NAME, size_mib)
        _write_sidecars(folder)
        with web_server.serving(folder, Path(scratch) / "nginx") as served:
            case = _Case(
                url=f"{served.base}/{_NAME}",
                sha256=sha256_file(folder / _NAME),
                root=context.layout.root,
                out=Path(scratch) / "out",
            )
            facts: dict[str, object] = {"size": f"{size_mib} MiB", "server": served.name}
            facts["memory of ours"] = _memory_of_ours(case)
            ways = _ways(case, facts)
            samples = _race(case, ways, runs)
            facts |= _ratios(samples) | _moved(case, folder) | _slow_link(context, Path(scratch))
        facts["upgrade between two builds"] = _between_builds(context, Path(scratch))
    return Report(title="fetch", samples=samples, facts=facts)


def _memory_of_ours(case: _Case) -> str:
    """Return the most memory that our command took; nothing else was started before."""
    case.run(case.ours("--manifest", case.url + MANIFEST_SUFFIX))
    return f"{resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f} MiB"


def _ways(case: _Case, facts: dict[str, object]) -> dict[str, Sequence[Sequence[str | Path]]]:
    """Return the commands of everything that is installed; note what is not."""
    ways: dict[str, Sequence[Sequence[str | Path]]] = {
        OURS: [case.ours("--manifest", case.url + MANIFEST_SUFFIX)],
        "ours, pin only, SHA-256": [case.ours()],
    }
    for rival in rivals(case.url, case.sha256, case.out / _NAME):
        if rival.absent:
            facts[rival.name] = rival.absent
        else:
            ways[rival.name] = rival.commands
    return ways


def _race(case: _Case, ways: Mapping[str, Sequence[Sequence[str | Path]]], runs: int) -> list[Sample]:
    """Run everything in turns, so that a busy moment of the machine meets all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(runs):
        for name, commands in ways.items():
            case.clear()
            started = time.perf_counter()
            case.again(*commands)
            seconds[name].append(time.perf_counter() - started)
    return [Sample(name=name, seconds=tuple(found)) for name, found in seconds.items()]


def _ratios(samples: Sequence[Sample]) -> dict[str, object]:
    """Return how long ours takes against each other one: the median over the rounds."""
    ours, *others = samples
    return {
        f"ours against {other.name}": f"{statistics.median(map(truediv, ours.seconds, other.seconds)):.2f}"
        for other in others
    }


def _moved(case: _Case, folder: Path) -> dict[str, object]:
    """Count the bytes that are fetched when most of the file is there already."""
    manifest = ("--manifest", case.url + MANIFEST_SUFFIX)
    size = (folder / _NAME).stat().st_size
    old = folder / "old.bin"
    changed = _change(folder / _NAME, old, _CHANGED_SHARE)
    upgraded = json.loads(case.run(case.ours(*manifest, "--seed-from", old)))
    _insert(folder / _NAME, old)
    inserted = json.loads(case.run(case.ours(*manifest, "--seed-from", old)))
    with open(case.out / _NAME, "r+b") as file:
        file.seek(size // 2)
        byte = file.read(1)
        file.seek(size // 2)
        file.write(bytes([byte[0] ^ 1]))
    repaired = json.loads(case.again(case.ours(*manifest)))
    (case.out / _NAME).replace(case.out / f"{_NAME}.part")
    os.truncate(case.out / f"{_NAME}.part", size * 9 // 10)
    resumed = json.loads(case.again(case.ours(*manifest)))
    return {
        "upgrade, changed in place": _share(upgraded["transferred_bytes"], changed, "of the changed bytes"),
        "upgrade, 64 KiB put in at the front": f"{inserted['transferred_bytes']} bytes moved",
        "repair of one byte": f"{repaired['transferred_bytes']} bytes moved",
        "resume at 90 %": _share(resumed["transferred_bytes"], size, "of the file"),
    }


def _between_builds(context: Context, scratch: Path) -> str:
    """Fetch this checkout's artifact with that of another build as the older file; count what moves."""
    older = os.environ.get(OLDER_VARIABLE, "")
    if not older:
        return f"not measured: {OLDER_VARIABLE} names no older artifact"
    newer = newest_artifact(context.layout)
    folder = scratch / "builds"
    folder.mkdir()
    for suffix in ("", MANIFEST_SUFFIX, CHUNKS_SUFFIX):
        shutil.copyfile(f"{newer}{suffix}", folder / (newer.name + suffix))
    with web_server.serving_by_ourselves(folder) as base:
        case = _Case(
            url=f"{base}/{newer.name}",
            sha256=sha256_file(newer),
            root=context.layout.root,
            out=scratch / "builds-out",
        )
        words = case.ours("--manifest", case.url + MANIFEST_SUFFIX, "--seed-from", older)
        # A cache of its own, so that nothing else is an older file.
        done = json.loads(case.run(["env", f"OPENCOTI_CACHE_DIR={scratch / 'cache'}", *words]))
    return _share(done["transferred_bytes"], _changed_bytes(Path(older), newer), "of the changed chunks")


def _changed_bytes(older: Path, newer: Path) -> int:
    """Return the size of the chunks that the older file has nowhere."""
    old, new = chunks.hash_file(older), chunks.hash_file(newer)
    there = {old.digest(number) for number in range(old.count)}
    return sum(new.span(number)[1] for number in range(new.count) if new.digest(number) not in there)


def _slow_link(context: Context, scratch: Path) -> dict[str, object]:
    """Compare with curl over a link of high latency where each connection has its limit."""
    folder = scratch / "slow"
    folder.mkdir()
    _write_random(folder / _NAME, _SLOW_MIB)
    _write_sidecars(folder)
    options = ("--delay-s", str(_SLOW_DELAY_S), "--bytes-per-s", str(_SLOW_BYTES_PER_S))
    with web_server.serving_by_ourselves(folder, *options) as base:
        case = _Case(
            url=f"{base}/{_NAME}",
            sha256=sha256_file(folder / _NAME),
            root=context.layout.root,
            out=scratch / "slow-out",
        )
        ours = case.ours("--manifest", case.url + MANIFEST_SUFFIX)
        curl: list[str | Path] = ["curl", "-sSf", "-o", case.out / _NAME, case.url]
        ours_s = time_call("", lambda: case.run(ours), runs=1).median
        curl_s = time_call("", lambda: case.run(curl), runs=1).median if shutil.which("curl") else 0.0
    link = (
        f"{_SLOW_MIB} MiB, {_SLOW_DELAY_S * 1000:.0f} ms, {_SLOW_BYTES_PER_S / 1e6:.0f} MB/s per connection"
    )
    return {f"slow link ({link})": f"ours {ours_s:.1f} s, curl {curl_s:.1f} s ({curl_s / ours_s:.1f} x)"}


def _write_random(path: Path, size_mib: int) -> None:
    with open(path, "wb") as file:
        file.writelines(os.urandom(1 << 20) for _ in range(size_mib))


def _write_sidecars(folder: Path) -> None:
    path = folder / _NAME
    table = chunks.hash_file(path)
    data = chunks.render_table(table)
    (folder / (_NAME + CHUNKS_SUFFIX)).write_bytes(data)
    zeros = {size: "0" * size for size in (40, 64)}
    source = {"name": "none", "origin": "none", "commit": zeros[40], "tag": "none", "tree": zeros[40]}
    document: dict[str, Any] = {
        "schema": "opencoti.manifest/1",
        "name": _NAME,
        "sha256": sha256_file(path),
        "size": table.file_size,
        "lane": "ape",
        "os": "linux",
        "arch": "any",
        "versionString": "opencoti-0-bench",
        "opencotiTag": "bench",
        "gitCommit": zeros[40],
        "gitDirty": False,
        "cpuOnly": True,
        "windows_runnable": False,
        "sources": [{**source, "patchedTree": zeros[40]}],
        "patchSetHash": zeros[64],
        "members": [{"name": "a", "offset": 0, "size": 1, "sha256": zeros[64], "mode": "0644"}],
        "chunks": {
            "file": _NAME + CHUNKS_SUFFIX,
            "sha256": sha256_bytes(data),
            "chunkSize": table.chunk_size,
            "count": table.count,
        },
    }
    (folder / (_NAME + MANIFEST_SUFFIX)).write_bytes(render_json(document))


def _change(source: Path, target: Path, share: float) -> int:
    """Write a copy of which one stretch of whole chunks is different; return how many bytes that is."""
    size = source.stat().st_size
    count = max(1, int(size * share) // chunks.CHUNK_SIZE_BYTES) * chunks.CHUNK_SIZE_BYTES
    shutil.copyfile(source, target)
    with open(target, "r+b") as file:
        file.seek(size // 2 // chunks.CHUNK_SIZE_BYTES * chunks.CHUNK_SIZE_BYTES)
        file.write(os.urandom(count))
    return count


def _insert(source: Path, target: Path) -> None:
    """Write a copy without its first chunk, so that everything else stands elsewhere."""
    with open(source, "rb") as old, open(target, "wb") as new:
        old.seek(chunks.CHUNK_SIZE_BYTES)
        shutil.copyfileobj(old, new, 1 << 20)


def _share(moved: int, of: int, what: str) -> str:
    return f"{moved} bytes moved, {moved / of:.3f} {what}"
