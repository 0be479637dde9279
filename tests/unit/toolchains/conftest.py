"""A tiny toolchain whose wheels are made here and served to pip from a folder."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci.paths import Layout
from ci.toolchains.lockfile import LockedFile, lock_text
from ci.toolchains.recipe import Recipe, host_arch

RECIPE = """
name = "tiny"
description = "one program"

[[wheel]]
name = "tinycc"
version = "1.0"
from = "tinycc/"
to = "tinycc/"
executables = ["tiny"]
drop = ["doc/", "lib/unused"]
"""
MEMBERS = {
    "tinycc/tiny": "#!/bin/sh\necho tiny 1.0\n",
    "tinycc/lib/used.h": "int used;\n",
    "tinycc/lib/unused/x.h": "int unused;\n",
    "tinycc/doc/manual.txt": "read me\n",
    "tinycc-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tinycc\nVersion: 1.0\n",
    "tinycc-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n",
    "tinycc-1.0.dist-info/RECORD": "",
}


@dataclass
class TinyToolchain:
    """A checkout with the toolchain `tiny`, and the index folder that serves its wheel."""

    layout: Layout
    index: Path
    wheel: Path

    @property
    def folder(self) -> Path:
        return self.layout.containers / "tiny"

    def recipe(self) -> Recipe:
        return Recipe.load(self.folder)

    def write_lock(self, sha256: str) -> None:
        entry = LockedFile(
            name="tinycc",
            version="1.0",
            arch=host_arch(),
            filename=self.wheel.name,
            sha256=sha256,
            size=self.wheel.stat().st_size,
        )
        (self.folder / "wheels.lock").write_text(lock_text("wheel", [entry], "Written by a test."))


def make_wheel(path: Path, members: dict[str, str]) -> None:
    with zipfile.ZipFile(path, "w") as bundle:
        for name, text in members.items():
            bundle.writestr(name, text)


@pytest.fixture
def tiny(layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyToolchain:
    index = tmp_path / "index"
    index.mkdir()
    made = TinyToolchain(layout=layout, index=index, wheel=index / "tinycc-1.0-py3-none-any.whl")
    make_wheel(made.wheel, MEMBERS)
    made.folder.mkdir(parents=True)
    (made.folder / "recipe.toml").write_text(RECIPE)
    (made.folder / "Dockerfile").write_text("FROM scratch\n")
    made.write_lock(hashlib.sha256(made.wheel.read_bytes()).hexdigest())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return made
