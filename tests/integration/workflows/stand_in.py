"""The stand-ins that need more than a shell (see `stand_in.sh`): compilers, a small source, devices, a clock.

Called as `stand_in.py -m PACKAGE COMMAND WORD…`, in the unpacked source of the release. The commands are the
real ones; what they cannot have here is put under them: the upstream source is a few files, and the engine
`docker` puts prepared ELF files where its compilers would. Everything between is real: the keys of stages,
their cache and how it travels, the inspection of every library, and the packaging.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

# Large, the same in every run, and no part of what jobs hand on.
_SHARED_CACHES = ("downloads", "toolchains", "tool-cache", "loaders")


def main() -> None:
    words = sys.argv[2:]
    command = next(command for command in COMMANDS if tuple(words[: len(command)]) == command)
    sys.path.insert(0, os.getcwd())
    sys.path.append(os.environ["REPLAY_TESTS"])
    COMMANDS[command](words)


def build(words: list[str]) -> None:
    """`ci build` and `ci package`, with the small source and, where one may compile, prepared files."""
    import ci.backends
    import ci.build
    from ci.cli import main as run_ci
    from ci.engines import select_engine
    from ci.paths import Layout

    layout = Layout.find()
    assert layout.root == Path.cwd(), "it must be the unpacked source that runs"
    _share_caches(layout.cache)

    def select(name, layout, console, **more):  # type: ignore[no-untyped-def]
        if name == "docker":
            return _engine(layout)
        assert name == "none", "no other engine can be had here"
        return select_engine(name, layout, console, **more)

    for module in (ci.build, ci.backends):
        module.select_engine = select  # type: ignore[assignment]
        module.prepare_source = lambda context, **_: _source(context)  # type: ignore[assignment]
    run_ci(words[1:])


def _share_caches(cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    for name in _SHARED_CACHES:
        if not (cache / name).is_symlink():
            (cache / name).symlink_to(Path(os.environ["REPLAY_CACHE"]) / name)


def _engine(layout):  # type: ignore[no-untyped-def]
    from ci.engines.none import NoEngine
    from tests.fakes.build_engine import FakeEngine

    class Image(FakeEngine):
        """Knows images as the real engine does; its compilers have finished before they start."""

        def toolchain_id(self, toolchain):  # type: ignore[no-untyped-def]
            return NoEngine(layout).toolchain_id(toolchain)

        def prepare(self, toolchain, console):  # type: ignore[no-untyped-def]
            from dataclasses import replace

            record = {"kind": "image", "image_id": "sha256:" + "1" * 64}
            made = super().prepare(toolchain, console)
            return replace(made, id=self.toolchain_id(toolchain), record=record)

        def run(self, stage, *, out, **more):  # type: ignore[no-untyped-def]
            ready = Path(os.environ["REPLAY_PRODUCTS"]) / stage.name
            self.files = {f"bin/{path.name}": path.read_bytes() for path in (ready / "bin").iterdir()}
            super().run(stage, out=out, **more)

    return Image({}, name="docker")


def _source(context):  # type: ignore[no-untyped-def]
    """Return a source tree with what `package` takes from it, the same in every job."""
    from ci.package.command import UPSTREAM_LICENCES
    from ci.patches.model import AppliedTree
    from ci.patches.series import patch_set_hash, read_series
    from ci.pins import SourcePin
    from ci.sources.lanes import find_lane

    lane = find_lane(context.layout, "elf")
    folder = context.layout.build / "stand-in" / "source"
    if not folder.is_dir():
        for name in (*UPSTREAM_LICENCES.values(), "ggml/CMakeLists.txt"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{name}\n")
        _git(folder, "init", "--quiet", "--template=")
        _git(folder, "add", "-A")
        _git(folder, "commit", "--quiet", "-m", "a source")
    commit, tree = _git(folder, "rev-parse", "HEAD"), _git(folder, "rev-parse", "HEAD^{tree}")
    return AppliedTree(
        lane="elf",
        pin=SourcePin.load(lane.pin),
        folder=folder,
        base_commit=commit,
        base_tree=tree,
        commit=commit,
        tree=tree,
        patches=(),
        patch_set_hash=patch_set_hash(read_series(lane.series)),
    )


def _git(folder: Path, *words: str) -> str:
    who = {f"GIT_{role}_{what}": "test@example.com"
           for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}  # fmt: skip
    dates = {f"GIT_{role}_DATE": "1780000000 +0000" for role in ("AUTHOR", "COMMITTER")}
    program = shutil.which("git")
    assert program is not None
    return subprocess.run(
        [program, "-c", "init.defaultBranch=main", *words],
        cwd=folder, check=True, capture_output=True, text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **who, **dates},
    ).stdout.strip()  # fmt: skip


def test_on_device(words: list[str]) -> None:
    """`ci job smoke` and `ci job bench`, on a machine whose devices pass every test at once."""
    import ci.smoke.bench_command
    import ci.smoke.command
    import ci.smoke.gpu_command
    from ci.cli import main as run_ci

    def prove_cpu(context, artifact, **more):  # type: ignore[no-untyped-def]
        return _proof(context, artifact, "smoke", "cpu")

    def prove_gpu(context, artifact, backend, options):  # type: ignore[no-untyped-def]
        assert (backend != "cpu", options.engine, options.is_load_enough) == (True, "host", False)
        return _proof(context, artifact, "smoke", backend)

    def measure(context, artifact, backend, options):  # type: ignore[no-untyped-def]
        assert options.engine == "host"
        return _proof(context, artifact, "bench", backend)

    ci.smoke.command.prove = prove_cpu
    ci.smoke.gpu_command.prove_gpu = prove_gpu
    ci.smoke.bench_command.measure = measure
    run_ci(words[1:])


def _proof(context, artifact, kind, backend):  # type: ignore[no-untyped-def]
    from ci.smoke.command import Proof, evidence_path
    from opencoti.evidence import load_evidence
    from opencoti.files import write_atomic
    from opencoti.jsonio import render_json
    from tests.fakes.checkouts import evidence_dict

    assert os.access(artifact, os.X_OK)
    path = evidence_path(context.layout, artifact, backend, kind=kind)
    data = render_json(evidence_dict(artifact.read_bytes(), artifact.name, backend=backend, kind=kind))
    write_atomic(path, data)
    return Proof(evidence=load_evidence(data), path=path)


def publish(words: list[str]) -> None:
    """Publish for real, with a clock that does not wait between two uploads."""
    from tests.integration.publish import publish_at

    sys.argv = ["publish_at.py", *words[2:]]
    publish_at.main()


COMMANDS: dict[tuple[str, ...], Callable[[list[str]], None]] = {
    ("ci", "build"): build,
    ("ci", "package"): build,
    ("ci", "job", "smoke"): test_on_device,
    ("ci", "job", "bench"): test_on_device,
    ("release", "publish"): publish,
}

if __name__ == "__main__":
    main()
