"""Packaging and verifying beside the plain tools that move and hash the same bytes.

They take turns; ratios are medians of the rounds'.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.context import Context
from ci.package.zipwriter import NewMember, WriteOptions, write_archive
from opencoti import chunks
from opencoti.hashing import sha256_file
from perf.measure import Case, Report, Sample, median_ratio, run_checked, time_in_turns

_BLOCK_BYTES = 1 << 20


def run(context: Context, *, runs: int, size_mib: int = 256) -> Report:
    """Measure on a host of 100 KB with a library (1/4) and a model (3/4) of `size_mib` together.

    All of it lies in the page cache; the result is written to the disk of this checkout.
    """
    context.layout.build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="perf-package-", dir=context.layout.build) as scratch:
        return _compare(_Files.make(Path(scratch), size_mib), runs)


@dataclass(frozen=True, kw_only=True)
class _Files:
    host: Path
    members: tuple[Path, ...]
    out: Path
    reference: Path

    @classmethod
    def make(cls, folder: Path, size_mib: int) -> _Files:
        sizes = {"host": 1, "libggml-cuda.so": size_mib // 4, "model.gguf": size_mib - size_mib // 4}
        for name, mib in sizes.items():
            with open(folder / name, "wb") as file:
                file.writelines(os.urandom(_BLOCK_BYTES if name != "host" else 100_000) for _ in range(mib))
        made = cls(
            host=folder / "host",
            members=tuple(folder / name for name in list(sizes)[1:]),
            out=folder / "out",
            reference=folder / "reference",
        )
        made.package(made.reference)
        return made

    def package(self, out: Path) -> chunks.ChunkTable:
        members = [NewMember(name=path.name, mode=0o644, path=path) for path in self.members]
        return write_archive(self.host, members, out, options=WriteOptions(mode=0o755)).chunks

    def remove(self) -> None:
        self.out.unlink(missing_ok=True)

    def zip_file_synced(self) -> None:
        self.zip_file()
        with open(self.out, "rb") as file:
            os.fsync(file.fileno())

    def zip_file(self) -> None:
        with zipfile.ZipFile(self.out, "w", zipfile.ZIP_STORED) as archive:
            for path in self.members:
                archive.write(path, path.name)


def _compare(files: _Files, runs: int) -> Report:
    table = files.package(files.reference)
    cases = [
        Case(
            name="package (copy, hash, read back, sync)",
            prepare=files.remove,
            action=lambda: files.package(files.out),
        ),
        _shell(
            "cp && sync -f && openssl dgst -sha256",
            'cp "$1" "$2" && sync -f "$2" && openssl dgst -sha256 "$2"',
            files,
        ),
        Case(name="Python zipfile, stored", prepare=files.remove, action=files.zip_file),
        Case(name="Python zipfile, stored, synced", prepare=files.remove, action=files.zip_file_synced),
        _shell("verify: openssl dgst -sha256", 'openssl dgst -sha256 "$1"', files),
        Case(
            name="verify: chunks", prepare=_nothing, action=lambda: chunks.verify_file(files.reference, table)
        ),
        Case(
            name="one SHA-256 in this process", prepare=_nothing, action=lambda: sha256_file(files.reference)
        ),
    ]
    has_zip = shutil.which("zip") is not None
    if has_zip:
        words = " ".join(f'"{path}"' for path in files.members)
        cases.insert(2, _shell("zip -0", f'zip -q -0 -j "$2" {words}', files))
    samples = time_in_turns(cases, runs=runs)
    return Report(title="package", samples=samples, facts=_facts(files, samples, has_zip=has_zip))


def _facts(files: _Files, samples: Sequence[Sample], *, has_zip: bool) -> dict[str, object]:
    named = {sample.name: sample for sample in samples}
    package, plain = samples[0], samples[1]

    def ratio(ours: Sample, theirs: Sample) -> str:
        return f"{median_ratio(ours, theirs):.2f}"

    return {
        "artifact": f"{files.reference.stat().st_size / 1e6:.1f} MB",
        "package / (cp, sync, openssl)": ratio(package, plain),
        "package / one SHA-256": ratio(package, named["one SHA-256 in this process"]),
        "package / Python zipfile": ratio(package, named["Python zipfile, stored"]),
        "package / Python zipfile, synced": ratio(package, named["Python zipfile, stored, synced"]),
        "verify / openssl": ratio(named["verify: chunks"], named["verify: openssl dgst -sha256"]),
        **({"package / zip -0": ratio(package, named["zip -0"])} if has_zip else {"zip": "not installed"}),
    }


def _shell(name: str, script: str, files: _Files) -> Case:
    def action() -> None:
        run_checked(name, ["sh", "-c", script, "sh", files.reference, files.out], cwd=files.out.parent)

    return Case(name=name, prepare=files.remove, action=action)


def _nothing() -> None:
    return None
