"""Command `doctor`: what this machine has for building, and what to do about what it lacks.

Reads only; starts nothing that stays. What an end user's host has is another command's concern.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ci.context import Context

# Where the loader of an artifact unpacks what it has verified: `<version>-<first 12 of a hash>`.
_OWN_FOLDER = re.compile(r"-[0-9a-f]{12}$")
_NEEDED_FREE_GB = 6.0  # measured: 2.4 GB build folders, 1 GB cache, plus room for one image


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked at."""

    name: str
    is_ok: bool
    is_required: bool
    found: str
    advice: str = ""

    def line(self) -> str:
        """Render as one line of text."""
        mark = "ok  " if self.is_ok else ("FAIL" if self.is_required else "warn")
        return f"{mark} {self.name:<12} {self.found}" + (f"; {self.advice}" if self.advice else "")


def register(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the parser."""
    parser = subparsers.add_parser("doctor", parents=[common], help="what this machine has for building")
    parser.set_defaults(command=run_doctor)


def run_doctor(args: argparse.Namespace, context: Context) -> int:
    """Look at everything; exit 4 if something required is missing."""
    checks: tuple[Callable[[Context], Finding], ...] = (
        _python,
        _git,
        _disk,
        _cache,
        _container_engine,
        _isolation,
        _ape_lane,
    )
    findings = [check(context) for check in checks]
    findings += [*_backends(context), _libraries()]
    text = "\n".join(finding.line() for finding in findings)
    context.console.result(text, {"findings": [asdict(finding) for finding in findings]})
    return 4 if any(f.is_required and not f.is_ok for f in findings) else 0


def _python(context: Context) -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding(name="python", is_ok=sys.version_info >= (3, 11), is_required=True, found=version)


def _git(context: Context) -> Finding:
    from ci import process

    path = shutil.which("git")
    if path is None:
        return Finding(
            name="git", is_ok=False, is_required=True, found="not on PATH", advice="apt-get install git"
        )
    return Finding(name="git", is_ok=True, is_required=True, found=process.run([path, "--version"]).text)


def _disk(context: Context) -> Finding:
    folder = context.layout.root
    free_gb = shutil.disk_usage(folder).free / 1e9
    return Finding(
        name="disk",
        is_ok=free_gb >= _NEEDED_FREE_GB,
        is_required=True,
        found=f"{free_gb:.0f} GB free in {folder}",
        advice="" if free_gb >= _NEEDED_FREE_GB else f"a cold build needs about {_NEEDED_FREE_GB:.0f} GB",
    )


def _cache(context: Context) -> Finding:
    folder = context.layout.cache
    nearest: Path = next(path for path in (folder, *folder.parents) if path.exists())
    is_ok = os.access(nearest, os.W_OK)
    return Finding(
        name="cache",
        is_ok=is_ok,
        is_required=True,
        found=f"{folder}{'' if folder.exists() else ' (not there yet)'}",
        advice="" if is_ok else f"{nearest} is not writable: set OPENCOTI_BUILD_CACHE to another folder",
    )


def _container_engine(context: Context) -> Finding:
    from ci.engines.endpoint import find_endpoint, probe, uses_tls
    from opencoti.errors import MissingError

    try:
        endpoint = find_endpoint()
        daemon = probe(endpoint, with_tls=uses_tls())
    except MissingError as error:
        return Finding(name="containers", is_ok=False, is_required=False, found=str(error), advice=error.hint)
    return Finding(name="containers", is_ok=True, is_required=False, found=str(daemon))


def _isolation(context: Context) -> Finding:
    from ci.engines.host import isolation_mode

    mode = isolation_mode()
    return Finding(
        name="isolation",
        is_ok=bool(mode),
        is_required=False,
        found="host stages run without network" if mode else "host stages keep the network",
        advice="" if mode else "user namespaces are off (sysctl kernel.unprivileged_userns_clone)",
    )


def _ape_lane(context: Context) -> Finding:
    """Whether `--lane auto` means ape here, and what it would take."""
    from ci.ape.toolchain import has_cosmocc
    from ci.sources.lanes import find_lane
    from ci.sources.submodule import is_initialised
    from opencoti.errors import MissingError

    try:
        lane = find_lane(context.layout, "ape")
    except MissingError as error:
        return Finding(name="lane ape", is_ok=False, is_required=False, found=str(error), advice=error.hint)
    missing = {
        "the submodule": is_initialised(context.layout.sources / lane.pin.stem),
        "cosmocc": has_cosmocc(context.layout),
    }
    lacking = [name for name, is_there in missing.items() if not is_there]
    without = f"without {' and '.join(lacking)}: " if lacking else ""
    return Finding(
        name="lane ape",
        is_ok=not lacking,
        is_required=False,
        found=f"{without}--lane auto means {'elf' if lacking else 'ape'}",
        advice="see docs/how-to/build-the-ape-lane.md if you want it" if lacking else "",
    )


def _backends(context: Context) -> list[Finding]:
    """What the host engine would build each backend of the table with. Nothing is fetched."""
    from ci.toolchains.host import find_toolchain
    from ci.toolchains.table import load_table
    from opencoti.errors import OpencotiError

    findings = []
    for backend in load_table(context.layout.table).backends:
        name = f"host {backend.name}"
        try:
            toolchain = find_toolchain(backend.toolchain, context.layout)
            found = Finding(name=name, is_ok=True, is_required=False, found=toolchain.description)
        except OpencotiError as error:
            found = Finding(name=name, is_ok=False, is_required=False, found=str(error), advice=error.hint)
        findings.append(found)
    return findings


def _libraries() -> Finding:
    """Libraries outside an engine's own folder that an engine may take instead of those just built."""
    from opencoti.doctor.libraries import find_libraries, search_places

    places = search_places(None, os.environ, Path.cwd())
    strays = [item for item in find_libraries(places) if not _OWN_FOLDER.search(item.path.parent.name)]
    text = ", ".join(f"{item.path} ({item.size_bytes} bytes, SHA-256 {item.sha256[:12]})" for item in strays)
    return Finding(
        name="libraries",
        is_ok=not strays,
        is_required=False,
        found=text or "no stray backend library in ~/.llamafile, the home or the working folder",
        advice="an engine may load them instead of its own: remove them, `smoke` shows what it maps"
        if strays
        else "",
    )
