"""What an upgrade moves: two real consecutive builds, cut into pieces of several sizes, fixed and by content.

Pairs are taken from the cache of finished stages: of each stage the two newest results that differ, packaged
as the writer does it; models are made, since no build makes them. Bytes moved are those of the pieces that
the older file does not hold, and of the table that says so. A piece of a fixed size is found at any multiple
of its size; where shifts are followed, also right behind what was found in the older file at another place.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import mmap
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.context import Context
from ci.package.zipwriter import NewMember, write_archive
from opencoti.errors import MissingError
from perf.measure import Report, Sample, time_call

_KIB: Final = 1 << 10
FIXED: Final = tuple(size * _KIB for size in (4, 16, 64, 256, 1024))
FOLLOWED: Final = (16 * _KIB, 64 * _KIB)
BY_CONTENT: Final = tuple(size * _KIB for size in (16, 64, 256))
_DIGEST_BYTES: Final = 32
# A table of pieces by content must say how long each is.
_LENGTH_BYTES: Final = 4
_HEADER_BYTES: Final = 64
# What is looked for, and how far before the end of a piece; bytes that are all alike stand everywhere.
_PROBE_BYTES: Final = 48
_PROBE_PLACES: Final = (0, 1 << 10, 8 << 10)
_PROBE_VARIETY: Final = 8
_NEAR_BYTES: Final = 8 << 20
_HOST_BYTES: Final = 100_000
_MODEL_MIB: Final = 64
_TENSORS: Final = 32

Spans = Sequence[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """One way to cut a file.

    Attributes:
        name: in the report.
        spans: makes offsets and sizes of the pieces.
        entry_bytes: of the table, per piece.
    """

    name: str
    spans: Callable[[memoryview], Spans]
    entry_bytes: int


@dataclass(frozen=True, kw_only=True)
class Moved:
    """What an upgrade fetches."""

    piece_bytes: int
    table_bytes: int
    ranges: int

    @property
    def all_bytes(self) -> int:
        """Pieces and table."""
        return self.piece_bytes + self.table_bytes


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two consecutive artifacts."""

    name: str
    old: Path
    new: Path


def run(context: Context, *, runs: int) -> Report:
    """Measure every pair that this machine has built, and three changes of a model.

    Raises:
        MissingError: `bench-library-missing`, fastcdc is not installed.
    """
    cuts = all_cuts()
    context.layout.build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="perf-chunks-", dir=context.layout.build) as name:
        scratch = Path(name)
        pairs = [*_built_pairs(context.layout.stages, scratch), *_model_pairs(scratch)]
        facts: dict[str, object] = {}
        for pair in pairs:
            facts |= _rows(pair, cuts)
        largest = max((pair.new for pair in pairs), key=lambda path: path.stat().st_size)
        samples = [_time(cut, largest, runs) for cut in cuts]
    return Report(title="bytes moved by an upgrade", samples=samples, facts=facts)


def all_cuts() -> tuple[Cut, ...]:
    """Return every way. Raises `MissingError` (`bench-library-missing`)."""
    try:
        fastcdc = importlib.import_module("fastcdc").fastcdc
    except ImportError as exc:
        raise MissingError(
            "bench-library-missing",
            "this bench needs fastcdc, which no product does",
            hint="pip install fastcdc, in the environment that runs it",
        ) from exc

    def by_content(average: int) -> Callable[[memoryview], Spans]:
        def cut(data: memoryview) -> Spans:
            return [(piece.offset, piece.length) for piece in fastcdc(data, avg_size=average)]

        return cut

    def fixed(size: int) -> Callable[[memoryview], Spans]:
        def cut(data: memoryview) -> Spans:
            return [(start, min(size, len(data) - start)) for start in range(0, len(data), size)]

        return cut

    return (
        *(Cut(name=f"fixed {s // _KIB} KiB", spans=fixed(s), entry_bytes=_DIGEST_BYTES) for s in FIXED),
        *(
            Cut(
                name=f"by content, {s // _KIB} KiB",
                spans=by_content(s),
                entry_bytes=_DIGEST_BYTES + _LENGTH_BYTES,
            )
            for s in BY_CONTENT
        ),
    )


def moved(old: memoryview, new: memoryview, cut: Cut) -> Moved:
    """Return what somebody who has `old` fetches to get `new`."""
    known = {_digest(old, span) for span in cut.spans(old)}
    spans = cut.spans(new)
    return _count(spans, [_digest(new, span) not in known for span in spans], cut.entry_bytes)


def moved_following(old: mmap.mmap, new: mmap.mmap, size: int) -> Moved:
    """Return the same for pieces of a fixed size, with shifts followed.

    A piece that had to be fetched is in hand: its last bytes are looked for in the older file, and what
    follows them there may be the next piece, which its digest proves. While nothing is found, it is looked
    for after the 1st, 2nd, 4th, 8th fetched piece in a row and so on.
    """
    with memoryview(old) as before, memoryview(new) as after:
        spans = [(start, min(size, len(after) - start)) for start in range(0, len(after), size)]
        known = {_digest(before, (start, size)) for start in range(0, len(before), size)}
        is_missing: list[bool] = []
        source = -1
        fetched_in_a_row = 0
        for start, length in spans:
            digest = _digest(after, (start, length))
            follows = source >= 0 and _digest(before, (source, length)) == digest
            is_missing.append(not follows and digest not in known)
            if not is_missing[-1]:
                source = source + length if follows else -1
                fetched_in_a_row = 0
                continue
            fetched_in_a_row += 1
            is_turn = fetched_in_a_row & (fetched_in_a_row - 1) == 0
            source = _find_shift(old, after, start, length) if is_turn else -1
    return _count(spans, is_missing, _DIGEST_BYTES)


def _find_shift(old: mmap.mmap, new: memoryview, start: int, length: int) -> int:
    """Return where in the older file the bytes behind a piece may be, -1 if its end is not there."""
    for back in _PROBE_PLACES:
        end = start + length - back
        probe = bytes(new[max(0, end - _PROBE_BYTES) : end])
        if len(set(probe)) < _PROBE_VARIETY:
            continue
        found = old.find(probe, max(0, start - _NEAR_BYTES), start + _NEAR_BYTES)
        found = old.find(probe) if found < 0 else found
        if found >= 0:
            return found + len(probe) + back
    return -1


def _count(spans: Spans, is_missing: Sequence[bool], entry_bytes: int) -> Moved:
    starts = sum(
        missing and not before for before, missing in zip([False, *is_missing], is_missing, strict=False)
    )
    return Moved(
        piece_bytes=sum(size for (_, size), missing in zip(spans, is_missing, strict=True) if missing),
        table_bytes=_HEADER_BYTES + len(spans) * entry_bytes,
        ranges=starts,
    )


def _digest(data: memoryview, span: tuple[int, int]) -> bytes:
    return hashlib.sha256(data[span[0] : span[0] + span[1]]).digest()


def _rows(pair: Pair, cuts: Sequence[Cut]) -> Mapping[str, object]:
    with _mapped(pair.old) as old, _mapped(pair.new) as new:
        with memoryview(old) as before, memoryview(new) as after:
            found = {cut.name: moved(before, after, cut) for cut in cuts}
        found |= {f"fixed {s // _KIB} KiB, shifts followed": moved_following(old, new, s) for s in FOLLOWED}
        return {f"{pair.name}, {name}": _describe(item, len(new)) for name, item in found.items()}


def _describe(item: Moved, size: int) -> str:
    share = f"{item.all_bytes / size:.1%} of {size}; table {item.table_bytes}"
    return f"{item.all_bytes} bytes ({share}), {item.ranges} ranges"


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    """A file as memory while the block runs."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data


def _time(cut: Cut, path: Path, runs: int) -> Sample:
    with _mapped(path) as data, memoryview(data) as view:
        return time_call(
            f"table of {len(view) >> 20} MiB, {cut.name}",
            lambda: [_digest(view, span) for span in cut.spans(view)],
            runs=runs,
        )


def _built_pairs(stages: Path, scratch: Path) -> Iterator[Pair]:
    by_name: dict[str, list[Path]] = {}
    for record in sorted(stages.glob("*/stage.json"), key=lambda path: path.stat().st_mtime):
        name = json.loads(record.read_bytes())["stage"]
        by_name.setdefault(name, []).append(record.parent / "files")
    for name, folders in sorted(by_name.items()):
        for old, new in zip(folders[-2::-1], folders[:0:-1], strict=True):
            if _hashes(old) != _hashes(new):
                yield Pair(
                    name=name,
                    old=_package(old, scratch / f"{name}.old"),
                    new=_package(new, scratch / f"{name}.new"),
                )
                break


def _hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in _files(folder)}


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _package(folder: Path, out: Path) -> Path:
    host = out.with_suffix(".host")
    host.write_bytes(random.Random(1).randbytes(_HOST_BYTES))  # noqa: S311
    members = [NewMember(name=path.name, mode=0o755, path=path) for path in _files(folder)]
    return write_archive(host, members, out).path


def _model_pairs(scratch: Path) -> Iterator[Pair]:
    """A model with a longer name, with one tensor of 32 changed, and with all of them changed."""
    first = _model(scratch / "first.gguf", name="a model")
    changes = {
        "model, a longer name": _model(scratch / "name.gguf", name="a model with a longer name, by 40 bytes"),
        "model, one tensor of 32": _model(scratch / "tensor.gguf", name="a model", changed=7),
        "model, all tensors": _model(scratch / "all.gguf", name="a model", seed=2),
    }
    for name, path in changes.items():
        yield Pair(name=name, old=first, new=path)


def _model(path: Path, *, name: str, seed: int = 1, changed: int = -1) -> Path:
    import numpy
    from gguf import GGUFWriter

    writer = GGUFWriter(str(path), "llama")
    writer.add_name(name)
    length = (_MODEL_MIB << 20) // _TENSORS
    for number in range(_TENSORS):
        own_seed = seed * 1000 + number + (500 if number == changed else 0)
        drawn = random.Random(own_seed).randbytes(length)  # noqa: S311
        writer.add_tensor(f"blk.{number}.weight", numpy.frombuffer(drawn, dtype=numpy.int8))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
