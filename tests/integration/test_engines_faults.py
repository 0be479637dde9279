"""The engine docker when the daemon's disk is full, and when the daemon dies; and a full disk of our own."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ci.engines.client import EngineClient
from ci.engines.docker import DockerEngine
from ci.engines.endpoint import find_endpoint, probe
from ci.engines.host import HostEngine
from ci.engines.image import ToolchainImage
from ci.paths import Layout
from ci.stages.model import Stage
from ci.toolchains.recipe import Recipe
from opencoti.console import Console
from opencoti.errors import MissingError, StorageError
from tests.conftest import RecordedConsole, require
from tests.fakes.toolchain import FakeToolchain
from tests.integration.second_daemon import SecondDaemon, copy_image, second_daemon
from tests.integration.test_engines import SharedLayout, shell_stage


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def small_daemon(docker_daemon: None, real_layout: Layout, places: Path) -> Iterator[SecondDaemon]:
    """A daemon that sees nothing of ours and whose disk has room for the image and little more."""
    require(os.geteuid() == 0, "starting a second dockerd needs root")
    image = ToolchainImage(Recipe.load(real_layout.containers / "zig"), real_layout)
    here = EngineClient(probe(find_endpoint()))
    size_bytes = image.ensure(here, Console(quiet=True)).size_bytes
    data, hidden = places / "data", places / "hidden"
    for folder in (data, hidden):
        folder.mkdir()
    with mounted(data, size_bytes * 2 + (64 << 20)), second_daemon(hidden, data=data) as daemon:
        there = EngineClient(daemon.daemon)
        copy_image(here, there, image.tag)
        here.close()
        there.close()
        yield daemon


class mounted:  # noqa: N801
    """A file system in memory of a given size."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.folder = folder
        self.size = size_bytes

    def __enter__(self) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.size}", "none", self.folder], check=True)

    def __exit__(self, *_: object) -> None:
        # Lazily: a daemon that was killed may have left mounts of its own there.
        subprocess.run(["umount", "-l", self.folder], check=True)


def run(engine: DockerEngine | HostEngine, layout: Layout, stage: Stage, recorded: RecordedConsole) -> None:
    folders = [layout.root / name for name in ("source", "out", "tools")]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    source, out, tools = folders
    (source / "file").write_text("x")
    log = layout.logs / "log"
    engine.run(stage, source=source, out=out, tool_cache=tools, jobs=1, log=log, console=recorded.console)


@pytest.fixture
def engine(small_daemon: SecondDaemon, places: Path, real_layout: Layout) -> Iterator[DockerEngine]:
    layout = SharedLayout(root=places / "hidden" / "checkout", cache=real_layout.cache)
    made = DockerEngine(layout, small_daemon.daemon)
    yield made
    made.close()


@pytest.mark.docker
def test_a_full_disk_of_the_daemon_is_told_as_such(
    engine: DockerEngine, places: Path, recorded: RecordedConsole, real_layout: Layout
) -> None:
    layout = SharedLayout(root=places / "hidden" / "checkout", cache=real_layout.cache)
    block = "x=0123456789abcdef; for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14; do x=$x$x; done; "
    script = f"{block} while echo $x; do :; done > big; exit 1"
    # The disk is memory here, and would count as the container's.
    with pytest.raises(StorageError) as caught:
        run(engine, layout, replace(shell_stage(script), memory_limit_mb=None), recorded)
    assert caught.value.error_id == "docker-disk-full"
    assert "failed to write to its own disk" in caught.value.what
    # The volume goes with the folder that it stands for.
    shutil.rmtree(layout.root)
    engine.prepare("zig", recorded.console)


@pytest.mark.docker
def test_a_daemon_that_dies_in_the_middle_of_a_build_is_told_as_such(
    engine: DockerEngine,
    small_daemon: SecondDaemon,
    places: Path,
    recorded: RecordedConsole,
    real_layout: Layout,
) -> None:
    layout = SharedLayout(root=places / "hidden" / "other", cache=real_layout.cache)
    log = layout.logs / "log"

    def kill_when_it_runs() -> None:
        while not log.exists() or "\nstarted\n" not in log.read_text():
            pass
        small_daemon.kill()

    killer = threading.Thread(target=kill_when_it_runs, daemon=True)
    killer.start()
    with pytest.raises(MissingError) as caught:
        run(engine, layout, shell_stage("echo started; while :; do :; done"), recorded)
    killer.join()
    assert caught.value.error_id == "docker-lost"
    assert "went away" in caught.value.what
    assert caught.value.exit_code == 4
    # It can not be asked any more to remove the container: that is said, and no second failure is made of it.
    assert "may be left behind" in recorded.text


def test_a_full_disk_of_our_own_is_told_as_such(tmp_path: Path, recorded: RecordedConsole) -> None:
    require(os.geteuid() == 0, "mounting needs root")
    layout = Layout(root=tmp_path / "full", cache=tmp_path / "cache")
    layout.root.mkdir()
    engine = HostEngine(layout, find=lambda name, _: FakeToolchain(tmp_path / "tools"))
    with mounted(layout.root, 16 << 20), pytest.raises(StorageError) as caught:
        run(engine, layout, shell_stage("cat /dev/zero > big"), recorded)
    assert caught.value.error_id in {"stage-disk-full", "disk-full"}
