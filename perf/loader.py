"""Start-up of an artifact against starting its engine by hand, and its first start against a plain copy.

The newest artifact gets extra members of random bytes: libraries, which the loader writes to its folder, or a
model, which stays in the artifact. What is compared takes turns; differences and ratios are medians of the
rounds'.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ci.artifacts import newest_artifact
from ci.context import Context
from ci.package.index import INDEX_NAME, Index, IndexedFile, make_index, parse_index, render_index
from ci.package.zipreader import read_archive
from ci.package.zipwriter import NewMember, WriteOptions, WrittenMember, write_archive
from perf.measure import Case, Report, Sample, median_difference, median_ratio, run_checked, time_in_turns

_BLOCK_BYTES: Final = 1 << 20
_MEMBER_MIB: Final = 512
_STARTS_PER_RUN: Final = 8
_COPY: Final = 'cp "$1" "$2" && sync -f "$2" && openssl dgst -sha256 "$2"'


def run(context: Context, *, runs: int, size_mib: int = 10) -> Report:
    """Measure with `size_mib` of members that are written, and with a model of that size that is not.

    Starts are short, so each run has eight of them.
    """
    original = newest_artifact(context.layout)
    context.layout.build.mkdir(parents=True, exist_ok=True)
    samples: list[Sample] = []
    facts: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="perf-loader-", dir=context.layout.build) as scratch:
        bare = _Bare.take(original, Path(scratch))
        for kind in ("written", "in place"):
            made = bare.with_members(size_mib, is_part=kind == "in place")
            name = f"{size_mib} MiB {kind}"
            found = _measure(made, name, runs)
            samples += found
            facts |= _facts(found, name) | {
                f"{name}: artifact": f"{made.artifact.stat().st_size / 1e6:.1f} MB"
            }
            made.remove()
    return Report(title="loader", samples=samples, facts=facts)


@dataclass(frozen=True, kw_only=True)
class _Made:
    """An artifact, and a home in which it unpacks itself."""

    artifact: Path
    home: Path
    entry: str

    @property
    def environment(self) -> Mapping[str, str]:
        return {"HOME": str(self.home), "PATH": os.environ["PATH"]}

    def start(self) -> None:
        run_checked("the artifact", [self.artifact, "--version"], cwd=self.home, env=self.environment)

    def start_engine(self, engine: Path) -> None:
        run_checked("the engine", [engine, "--version"], cwd=self.home, env=self.environment)

    def copy_and_hash(self) -> None:
        argv: list[str | Path] = ["sh", "-c", _COPY, "sh", self.artifact, self.home / "copy"]
        run_checked("copy and hash", argv, cwd=self.home, env=self.environment)

    def forget(self) -> None:
        """Undo the first start and the copy; nothing that others wrote waits for the disk afterwards."""
        shutil.rmtree(self.home / ".llamafile", ignore_errors=True)
        (self.home / "copy").unlink(missing_ok=True)
        os.sync()

    def remove(self) -> None:
        shutil.rmtree(self.home)
        self.artifact.unlink()


@dataclass(frozen=True, kw_only=True)
class _Bare:
    """The loader of an artifact and its members, as files."""

    loader: Path
    index: Index
    members: tuple[NewMember, ...]
    scratch: Path

    @classmethod
    def take(cls, artifact: Path, scratch: Path) -> _Bare:
        folder = scratch / "members"
        folder.mkdir()
        with ExitStack() as stack:
            file = stack.enter_context(open(artifact, "rb"))
            entries = {entry.name: entry for entry in read_archive(file, str(artifact)).entries}

            def copy(offset: int, size: int, name: str) -> Path:
                file.seek(offset)
                (folder / name).write_bytes(file.read(size))
                return folder / name

            found = entries.pop(INDEX_NAME)
            file.seek(found.data_offset)
            index = parse_index(file.read(found.size), str(artifact))
            first = min(entry.header_offset for entry in entries.values())
            members = [
                NewMember(
                    name=item.name,
                    mode=0o755 if item.mode == "0755" else 0o644,
                    path=copy(entries[item.name].data_offset, item.size, item.name),
                )
                for item in index.files
            ]
            return cls(loader=copy(0, first, "loader"), index=index, members=tuple(members), scratch=scratch)

    def with_members(self, size_mib: int, *, is_part: bool) -> _Made:
        """Write an artifact with extra members, random so that nothing can be shared or skipped."""
        sizes = [size_mib] if is_part else _split(size_mib)
        names = ["model.gguf"] if is_part else [f"libextra-{number}.so" for number in range(len(sizes))]
        extra = [
            NewMember(name=name, mode=0o644, path=_random_file(self.scratch / name, size))
            for name, size in zip(names, sizes, strict=True)
        ]

        def last(written: Sequence[WrittenMember]) -> list[NewMember]:
            new = [_indexed(member, is_part=is_part) for member in written if member.name in names]
            index = make_index(
                version=self.index.version, entry=self.index.entry, files=(*self.index.files, *new)
            )
            return [NewMember(name=INDEX_NAME, mode=0o644, data=render_index(index))]

        made = _Made(
            artifact=self.scratch / "engine.llamafile", home=self.scratch / "home", entry=self.index.entry
        )
        made.home.mkdir()
        options = WriteOptions(mode=0o755)
        write_archive(self.loader, [*self.members, *extra], made.artifact, last=last, options=options)
        for member in extra:
            assert member.path is not None
            member.path.unlink()
        return made


def _split(size_mib: int) -> list[int]:
    whole, rest = divmod(size_mib, _MEMBER_MIB)
    return [_MEMBER_MIB] * whole + [rest] * (rest > 0)


def _random_file(path: Path, size_mib: int) -> Path:
    with open(path, "wb") as file:
        file.writelines(os.urandom(_BLOCK_BYTES) for _ in range(size_mib))
    return path


def _indexed(member: WrittenMember, *, is_part: bool) -> IndexedFile:
    return IndexedFile(name=member.name, sha256=member.sha256, size=member.size, mode="0644", is_part=is_part)


def _measure(made: _Made, name: str, runs: int) -> list[Sample]:
    made.start()
    engine = next(made.home.rglob(made.entry))
    starts = [
        Case(name="engine started directly", prepare=_nothing, action=lambda: made.start_engine(engine)),
        Case(name="through the loader", prepare=_nothing, action=made.start),
    ]
    firsts = [
        Case(name="first start", prepare=made.forget, action=made.start),
        Case(name="cp && sync -f && openssl dgst", prepare=made.forget, action=made.copy_and_hash),
    ]
    samples = time_in_turns(starts, runs=runs * _STARTS_PER_RUN) + time_in_turns(firsts, runs=runs)
    return [replace(sample, name=f"{name}: {sample.name}") for sample in samples]


def _facts(samples: Sequence[Sample], name: str) -> dict[str, object]:
    direct, through, first, copy = samples
    middle = median_difference(through, direct) * 1000
    shortest = (min(through.seconds) - min(direct.seconds)) * 1000
    return {
        f"{name}: loader adds": f"{middle:.1f} ms (between the shortest of each: {shortest:.1f})",
        f"{name}: first start / copy and hash": f"{median_ratio(first, copy):.2f}",
    }


def _nothing() -> None:
    return None
