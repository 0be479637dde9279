"""The stand-ins that need more than a shell (see `stand_in.sh`): a packager, devices, and a clock.

Called as `stand_in.py -m PACKAGE COMMAND WORD…`, in the unpacked source of the release.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path


def main() -> None:
    words = sys.argv[2:]
    command = next(command for command in COMMANDS if tuple(words[: len(command)]) == command)
    sys.path.insert(0, os.getcwd())
    sys.path.append(os.environ["REPLAY_TESTS"])
    COMMANDS[command](words[len(command) :])


def package(words: list[str]) -> None:
    """Write a real artifact with its manifest; only what is inside was compiled by nobody."""
    from ci.build import version_string
    from ci.cli import build_parser
    from ci.context import Context
    from ci.package.artifact import assemble
    from ci.package.tag import read_tag
    from ci.paths import Layout
    from ci.pins import SourcePin
    from ci.repository import repository_facts
    from ci.sources.lanes import find_lane
    from opencoti.console import Console
    from tests.unit.package.samples import make_inputs

    args = build_parser().parse_args(["package", *words])
    context = Context(layout=Layout.find(), console=Console())
    layout, facts = context.layout, repository_facts(context.layout.root)
    assert layout.root == Path.cwd(), "it must be the unpacked source that runs"
    for backend in args.backends:
        assert (layout.stages / f"{backend}-{args.arch}").is_dir(), f"{backend} was not handed over"
    lane = find_lane(layout, "elf")
    folder = layout.build / "stand-in"
    program = shutil.which("true")  # starts on this machine, whatever it is asked
    assert program is not None
    inputs = make_inputs(
        folder,
        loader=Path(program),
        version_string=version_string(context, SourcePin.load(lane.pin)),
        tag=read_tag(layout.opencoti_tag),
        arch=args.arch,
        flavor=args.flavor,
        git_commit=facts.commit,
        git_dirty=facts.is_dirty,
        skipped_backends=(),
        is_cpu_only=args.backends == ("cpu",),
    )
    libraries = [_library(folder, backend) for backend in args.backends if backend != "cpu"]
    assemble(_with(inputs, libraries), layout.dist / "llamafile", context.console)


def _library(folder: Path, backend: str) -> tuple[Path, object]:
    from ci.paths import Layout
    from ci.toolchains.table import load_table
    from opencoti.hashing import sha256_file
    from opencoti.manifest import Dso

    row = load_table(Layout.find().table).backend(backend)
    path = folder / row.library
    path.write_bytes(b"\x7fELF" + backend.encode() * 5000)
    return path, Dso(
        name=path.name,
        backend=backend,
        sha256=sha256_file(path),
        needed=row.needed,
        glibc_floor=row.glibc,
        min_driver=row.min_driver,
    )


def _with(inputs, libraries):  # type: ignore[no-untyped-def]
    from dataclasses import replace

    return replace(
        inputs,
        libraries=(*inputs.libraries, *(path for path, _ in libraries)),
        dsos=(*inputs.dsos, *(dso for _, dso in libraries)),
    )


def smoke(words: list[str]) -> None:
    """Say of every artifact that has the backend that it passed."""
    from ci.cli import build_parser
    from ci.paths import Layout
    from ci.smoke.command import evidence_path
    from opencoti.files import write_atomic
    from opencoti.jsonio import render_json
    from opencoti.manifest import MANIFEST_SUFFIX, load_manifest
    from tests.fakes.checkouts import evidence_dict

    args = build_parser().parse_args(["job", "smoke", *words])
    for path in sorted(args.folder.glob(f"*{MANIFEST_SUFFIX}")):
        manifest = load_manifest(path.read_bytes())
        artifact = args.folder / manifest.name
        assert os.access(artifact, os.X_OK)
        if args.backend in {"cpu", *(dso.backend for dso in manifest.dsos)}:
            document = evidence_dict(artifact.read_bytes(), artifact.name, backend=args.backend)
            write_atomic(evidence_path(Layout.find(), artifact, args.backend), render_json(document))


def publish(words: list[str]) -> None:
    """Publish for real, with a clock that does not wait between two uploads."""
    from tests.integration.publish import publish_at

    sys.argv = ["publish_at.py", *words]
    publish_at.main()


COMMANDS: dict[tuple[str, ...], Callable[[list[str]], None]] = {
    ("ci", "package"): package,
    ("ci", "job", "smoke"): smoke,
    ("release", "publish"): publish,
}

if __name__ == "__main__":
    main()
