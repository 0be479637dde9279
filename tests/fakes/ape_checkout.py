"""A checkout whose ape lane can be built: upstream's stand-in as a real submodule, and its compiler.

Imitates: `vendors/sources/llamafile` after `git submodule update --init --recursive`, the unpacked cosmocc,
and GPU toolkits. git, make, ccache, gcc and the cross gcc are the real ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ci.ape.toolchain import SYSTEM_PATH
from ci.build import BuildOptions
from ci.context import Context
from ci.engines.host import HostEngine
from ci.paths import Layout
from ci.pins import SourcePin
from ci.stages.model import Stage, digest
from opencoti.console import Console
from tests.conftest import ROOT
from tests.fakes.source_trees import git

STAND_IN = ROOT / "tests" / "fakes" / "llamafile"
SCRIPTS = ROOT / "containers" / "cosmocc" / "tree" / "bin"
HEADER_PATCH = ROOT / "vendors" / "patches" / "llamafile" / "0007-build-header-deps.patch"
# Where upstream has its submodules: the place in it → the folder of the stand-in.
NESTED = {"llama.cpp": "llama.cpp", "third_party/zipalign": "zipalign"}
OPTIONS = BuildOptions(engine="host", toolchain="zig", jobs=2)


class FolderToolchain:
    """A toolchain that is already a folder with `bin`; its id is what lies in it."""

    extra_path = SYSTEM_PATH
    record: Mapping[str, str] = MappingProxyType({})
    description = "toolchain stand-in"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def id(self) -> str:
        files = sorted(path for path in self._folder.rglob("*") if path.is_file())
        return digest([[str(path.relative_to(self._folder)), path.read_text()] for path in files])

    def check(self, stage: Stage) -> None:
        """Takes every stage."""

    def prepare(self, console: Console) -> Path:
        return self._folder / "bin"


@dataclass(frozen=True)
class ApeCheckout:
    """The checkout, and short ways to its parts."""

    context: Context

    @property
    def layout(self) -> Layout:
        return self.context.layout

    @property
    def submodule(self) -> Path:
        return self.layout.sources / "llamafile"

    @property
    def series(self) -> Path:
        return self.layout.patches / "llamafile"

    @property
    def tree(self) -> Path:
        return self.layout.build / "src" / "ape"

    @property
    def pin(self) -> SourcePin:
        return SourcePin.load(self.layout.pins / "llamafile.txt")

    @property
    def build_folder(self) -> Path:
        return self.layout.build / "stages" / "host" / "ape-x86_64"

    @property
    def calls(self) -> Path:
        """One line for each call of the stand-in compiler."""
        return self.layout.root / "cosmocc-calls"

    def write_pin(self, *extra: str) -> None:
        self.layout.pins.mkdir(parents=True, exist_ok=True)
        commit = git(self.submodule, "rev-parse", "HEAD").strip()
        words = ["submodule:https://example.invalid/llamafile.git", commit, "0.10.1", *extra]
        (self.layout.pins / "llamafile.txt").write_text(" ".join(words) + "\n")

    def add_patch(self, name: str, text: str) -> None:
        self.series.mkdir(parents=True, exist_ok=True)
        (self.series / name).write_text(text)

    def engine(self) -> HostEngine:
        """Engine host with the stand-ins in place of cosmocc and of GPU toolkits."""
        return HostEngine(self.layout, find=lambda name, _: FolderToolchain(self._toolchain(name)))

    def _toolchain(self, name: str) -> Path:
        folder = self.layout.cache / "stand-ins" / name
        if not folder.is_dir():
            if name == "cosmocc":
                shutil.copytree(STAND_IN / "cosmocc", folder / "cosmocc")
                shutil.copytree(SCRIPTS, folder / "bin")
            else:
                shutil.copytree(STAND_IN / "toolkit", folder)
                for program in ("gcc", "g++"):
                    (folder / "bin" / program).write_text(f'#!/bin/sh\nexec /usr/bin/{program} "$@"\n')
                    (folder / "bin" / program).chmod(0o755)
            driver = folder / "cosmocc" / "bin"
            for path in driver.glob("cosmoc*") if driver.is_dir() else ():
                text = path.read_text().replace("${COSMOCC_CALLS:-/dev/null}", str(self.calls))
                path.write_text(text)
        return folder


def make_ape_checkout(context: Context, *, with_header_patch: bool = True) -> ApeCheckout:
    """Make the checkout: submodule, pin, tag, series, table and recipe."""
    checkout = ApeCheckout(context)
    make_submodule(checkout.submodule)
    checkout.write_pin()
    layout = checkout.layout
    shutil.copytree(ROOT / "containers", layout.containers)
    layout.opencoti_tag.parent.mkdir(parents=True)
    layout.opencoti_tag.write_text("c1\n")
    shutil.copyfile(ROOT / "LICENSE", layout.root / "LICENSE")
    if with_header_patch:
        checkout.add_patch(HEADER_PATCH.name, HEADER_PATCH.read_text())
    return checkout


def make_submodule(folder: Path) -> None:
    """Make upstream's repository with its submodules in place, each with a repository of its own."""
    shutil.copytree(STAND_IN / "upstream", folder)
    shutil.copyfile(ROOT / "LICENSE", folder / "LICENSE")
    git(folder, "init", "--quiet", "--template=", "--initial-branch=main")
    for path, name in NESTED.items():
        shutil.copytree(STAND_IN / name, folder / path, dirs_exist_ok=True)
        git(folder / path, "init", "--quiet", "--template=", "--initial-branch=main")
        commit_all(folder / path)
        commit = git(folder / path, "rev-parse", "HEAD").strip()
        git(folder, "update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")
    commit_all(folder)


def commit_all(folder: Path) -> str:
    """Commit everything, as a user does; return the commit."""
    git(folder, "-c", "advice.addEmbeddedRepo=false", "add", "--all")
    git(folder, "commit", "--quiet", "--message", "state")
    return git(folder, "rev-parse", "HEAD").strip()
