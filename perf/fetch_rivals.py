"""The downloaders that ours is measured beside, each as the command that gets one file, or why it cannot run.

pooch and huggingface_hub are Python packages that this project does not depend on: they are taken from the
running interpreter or from the one that OPENCOTI_BENCH_PYTHON names (a virtual environment with both).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci import process

PYTHON_VARIABLE = "OPENCOTI_BENCH_PYTHON"

_POOCH = """
import sys, pooch
url, sha256, target = sys.argv[1:]
folder, _, name = target.rpartition("/")
pooch.retrieve(url, known_hash="sha256:" + sha256, fname=name, path=folder)
"""
# What `hf_hub_download` does for a file that is in no Xet storage, without the calls to the hub around it.
_HUB = """
import sys
from huggingface_hub.file_download import http_get
url, _, target = sys.argv[1:]
with open(target, "wb") as file:
    http_get(url, file)
"""


@dataclass(frozen=True, kw_only=True)
class Rival:
    """One way to get the file: commands that run one after the other, or the reason why there are none."""

    name: str
    commands: Sequence[Sequence[str | Path]] = ()
    absent: str = ""


def rivals(url: str, sha256: str, target: Path) -> Iterator[Rival]:
    """Return all of them, those that are not installed too."""
    curl: list[str | Path] = ["curl", "-sSf", "-o", target, url]
    yield _by_program("curl, not verified", curl)
    yield _by_program("curl, then sync", curl, ["sync", target])
    yield _by_program("curl, then openssl dgst -sha256", curl, ["openssl", "dgst", "-sha256", target])
    yield _by_program("curl, then sha256sum", curl, ["sha256sum", target])
    yield _by_program("wget, not verified", ["wget", "-qO", target, url])
    place: list[str | Path] = ["-d", target.parent, "-o", target.name]
    yield _by_program(
        "aria2c -x4 with checksum", ["aria2c", "-q", "-x4", *place, f"--checksum=sha-256={sha256}", url]
    )
    yield _by_module("pooch, with SHA-256", "pooch", [_POOCH, url, sha256, target])
    yield _by_module("huggingface_hub, not verified", "huggingface_hub", [_HUB, url, sha256, target])


def _by_program(name: str, *commands: Sequence[str | Path]) -> Rival:
    missing = [str(argv[0]) for argv in commands if shutil.which(str(argv[0])) is None]
    return (
        Rival(name=name, absent=f"{missing[0]} is not installed")
        if missing
        else Rival(name=name, commands=commands)
    )


def _by_module(name: str, module: str, words: Sequence[str | Path]) -> Rival:
    for python in (sys.executable, os.environ.get(PYTHON_VARIABLE, "")):
        if python and process.run([python, "-c", f"import {module}"]).is_ok:
            return Rival(name=name, commands=[[python, "-c", *words]])
    return Rival(name=name, absent=f"{module} is not installed (see {PYTHON_VARIABLE})")
