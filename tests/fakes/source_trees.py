"""A small checkout with a pinned source of a few files, in place of the real one of 3,665 files.

Imitates: the source distribution, its pin, and the download cache that already holds it.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.paths import Layout
from ci.pins import SourcePin

COMMIT = "c0ffee" + "0" * 34
TOP = "engine_src-1.0"
FOLDER = "vendor/engine"
TWINS = b"x\ny\nz\n\nmiddle\n\nx\ny\nz\n"
FILES: dict[str, bytes] = {
    "CMakeLists.txt": b"project(engine)\n",
    "src/main.cpp": b"".join(b"line %d\n" % number for number in range(1, 41)),
    "src/twins.cpp": TWINS,
    "src/dos.txt": b"a\r\nb\r\nc\r\n",
    "run.sh": b"#!/bin/sh\n",
    ".gitignore": b"*.o\n/out/\n",
    ".gitattributes": b"* text=auto eol=lf\n*.txt export-ignore\n",
}


def entry(
    name: str, data: bytes = b"", *, kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[str, object]:
    """Return one archive entry for `make_archive`."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data)
    info.mode = 0o777 if name.endswith(".sh") else 0o600
    return name, (info, data)


def make_archive(path: Path, entries: list[tuple[str, object]], *, mode: str = "w:gz") -> str:
    """Write an archive with exactly these entries, in this order; return its SHA-256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for _, content in entries:
            info, data = content  # type: ignore[misc]
            tar.addfile(info, io.BytesIO(data))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_sdist(path: Path, files: Mapping[str, bytes], *, mode: str = "w:gz") -> str:
    """Write a source distribution with `files` in its pinned folder; return its SHA-256."""
    inner = [entry(f"{TOP}/{FOLDER}/{name}", data) for name, data in files.items()]
    outer = [
        entry(f"{TOP}/PKG-INFO", b"Name: engine-src\n"),
        entry(f"{TOP}/setup.py", b"raise SystemExit(1)\n"),
    ]
    dangling = entry(f"{TOP}/{FOLDER}/.git", b"gitdir: ../../.git/modules/engine\n")
    return make_archive(path, [*outer, dangling, *inner], mode=mode)


def git(folder: Path, *words: str, **env: str) -> str:
    """Run git as a user would, apart from who they are."""
    who = {
        f"GIT_{role}_{field}": "user@example.invalid"
        for role in ("AUTHOR", "COMMITTER")
        for field in ("NAME", "EMAIL")
    }
    full = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", **who, **env}
    return subprocess.run(
        ["git", *words], cwd=folder, env=full, check=True, capture_output=True, text=True
    ).stdout


@dataclass(frozen=True)
class Checkout:
    """The small checkout: its layout, and short ways to its parts."""

    layout: Layout

    @property
    def series(self) -> Path:
        return self.layout.patches / "llama.cpp"

    @property
    def tree(self) -> Path:
        return self.layout.build / "src" / "elf"

    @property
    def pin_path(self) -> Path:
        return self.layout.pins / "llama.cpp.txt"

    @property
    def pin(self) -> SourcePin:
        return SourcePin.load(self.pin_path)

    def write_pin(self, sha256: str, *extra: str) -> None:
        self.pin_path.parent.mkdir(parents=True, exist_ok=True)
        origin = f"sdist:engine-src==1.0#{FOLDER}"
        self.pin_path.write_text(" ".join([origin, COMMIT, "1.0", f"sha256={sha256}", *extra]) + "\n")

    def add_patch(self, name: str, text: str | bytes) -> Path:
        self.series.mkdir(parents=True, exist_ok=True)
        path = self.series / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path


def make_checkout(layout: Layout, files: Mapping[str, bytes] = FILES) -> Checkout:
    """Make a checkout whose pinned source is in the download cache already."""
    checkout = Checkout(layout)
    temporary = layout.downloads / "new.tar.gz"
    # Not compressed: its hash, and with it every commit id, is the same with every zlib.
    sha256 = make_sdist(temporary, files, mode="w:")
    target = layout.downloads / sha256 / "engine_src-1.0.tar.gz"
    target.parent.mkdir(parents=True)
    temporary.replace(target)
    checkout.write_pin(sha256)
    return checkout


def change(name: str, hunk: str, *, mode: str = "100644") -> str:
    """Return a patch text that changes one file."""
    return f"diff --git a/{name} b/{name}\nindex 1111111..2222222 {mode}\n--- a/{name}\n+++ b/{name}\n{hunk}"


def creation(name: str, lines: str, *, mode: str = "100644", ends: bool = True) -> str:
    """Return a patch text that makes one file."""
    body = "".join(f"+{line}\n" for line in lines.splitlines())
    count = len(lines.splitlines())
    tail = "" if ends else "\\ No newline at end of file\n"
    return (
        f"diff --git a/{name} b/{name}\nnew file mode {mode}\nindex 0000000..2222222\n"
        f"--- /dev/null\n+++ b/{name}\n@@ -0,0 +1{f',{count}' if count != 1 else ''} @@\n{body}{tail}"
    )


LINE_TWO = change("src/main.cpp", "@@ -1,3 +1,3 @@\n line 1\n-line 2\n+line two\n line 3\n")
LINE_TWENTY = change("src/main.cpp", "@@ -19,3 +19,3 @@\n line 19\n-line 20\n+line twenty\n line 21\n")
NEW_FILE = "Subject: [PATCH 2/2] Add a file\n\nIt says why.\n---\n" + creation("src/new.cpp", "int x;\n")
