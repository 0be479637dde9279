"""Both engines with the real toolchain and, for docker, a real daemon.

They use the build cache of the user for downloads, toolchains and images (a first run fills it), and
checkouts of their own for everything else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci.engines import EngineName, select_engine
from ci.engines.client import EngineClient
from ci.engines.container import ContainerRequest, UserMapping, run_container, sweep
from ci.engines.endpoint import find_endpoint, probe
from ci.engines.failures import StageError
from ci.engines.image import TOOLS, ToolchainImage
from ci.engines.owner import OWNER_PID, RUN, owner_labels
from ci.paths import Layout
from ci.stages.model import Stage, Step
from ci.stages.runner import StageResult, run_stage
from ci.toolchains.recipe import Recipe
from tests.conftest import ROOT, RecordedConsole

NINJA = """
rule c
  command = $tools/cc -g0 -O2 -fPIC -c $in -o $out
rule shared
  command = $tools/cc -s -shared $in -o $out
rule program
  command = $tools/cc -s $in -o $out -Wl,-rpath,'$$ORIGIN'
build base.o: c $src/base.c
build main.o: c $src/main.c
build libbase.so: shared base.o
build tool: program main.o libbase.so
"""
BASE = "#include <assert.h>\nconst char *where(int x) { assert(x > 0); return __FILE__; }\n"
MAIN = (
    "#include <stdio.h>\nconst char *where(int);\nint main(int c, char **v) { return puts(where(c)) < 0; }\n"
)


@dataclass(frozen=True, kw_only=True)
class SharedLayout(Layout):
    """A checkout of its own with the recipes of this one."""

    @property
    def containers(self) -> Path:
        return ROOT / "containers"


@dataclass
class Project:
    """A C project with `__FILE__` in a library, and what builds it."""

    layout: Layout
    console: RecordedConsole

    @property
    def source(self) -> Path:
        return self.layout.root / "source tree"

    def write_source(self) -> Path:
        self.source.mkdir(parents=True, exist_ok=True)
        (self.source / "base.c").write_text(BASE)
        (self.source / "main.c").write_text(MAIN)
        (self.source / "rules").write_text(NINJA)
        return self.source

    def build(self, engine: EngineName, *, script: str = "", use_cache: bool = True) -> StageResult:
        return run_stage(
            shell_stage(script) if script else project_stage(),
            select_engine(engine, self.layout, self.console.console),
            layout=self.layout,
            source=self.write_source(),
            console=self.console.console,
            jobs=2,
            use_cache=use_cache and not script,
        )


def project_stage() -> Stage:
    # The build folder has a ninja file that names the two folders; `sh` alone is in both engines.
    prepare = (
        'printf "tools = %s\\nsrc = %s\\n" "$0" "$1" > build.ninja; '
        'while IFS= read -r line; do printf "%s\\n" "$line"; done < "$1/rules" >> build.ninja'
    )
    return Stage(
        name="project",
        toolchain="zig",
        steps=(
            Step(title="configure", argv=("/bin/sh", "-c", prepare, "{tools}", "{src}")),
            Step(title="compile", argv=("{tools}/ninja", "-C", "{out}", "-j", "{jobs}")),
        ),
        env={},
        source_tree="1" * 40,
        inputs={},
        outputs=("tool", "libbase.so"),
    )


def shell_stage(script: str) -> Stage:
    return Stage(
        name="script",
        toolchain="zig",
        steps=(Step(title="run", argv=("/bin/sh", "-c", script)),),
        env={},
        source_tree="1" * 40,
        inputs={},
        outputs=("product",),
        memory_limit_mb=64,
    )


@pytest.fixture
def project(tmp_path: Path, real_layout: Layout, recorded: RecordedConsole) -> Project:
    layout = SharedLayout(root=tmp_path / "checkout", cache=real_layout.cache)
    return Project(layout=layout, console=recorded)


@pytest.fixture
def client(docker_daemon: None) -> Iterator[EngineClient]:
    made = EngineClient(probe(find_endpoint()))
    yield made
    made.close()


def containers(client: EngineClient, owner: int) -> list[str]:
    found = client.api.containers(all=True, filters={"label": [RUN, f"{OWNER_PID}={owner}"]})
    return [str(entry["Id"]) for entry in found]


def signals_sent(client: EngineClient, container: str) -> set[str]:
    """Return which signals the daemon sent to a container that is gone, as numbers."""
    only = {"container": container, "event": "kill"}
    events = client.api.events(since=0, until=time.time(), filters=only, decode=True)
    return {event["Actor"]["Attributes"]["signal"] for event in events}


def test_the_host_engine_builds_a_program_that_runs_and_names_no_path(project: Project) -> None:
    result = project.build("host")
    done = subprocess.run([result.folder / "tool"], capture_output=True, text=True, check=True)
    assert done.stdout == "base.c\n"


@pytest.mark.docker
def test_both_engines_give_the_same_bytes_from_different_checkouts(
    client: EngineClient, project: Project, tmp_path: Path, real_layout: Layout
) -> None:
    other = SharedLayout(root=tmp_path / "another" / "checkout", cache=real_layout.cache)
    host = project.build("host")
    docker = Project(layout=other, console=project.console).build("docker")
    assert docker.engine == "docker"
    assert docker.toolchain_id != host.toolchain_id
    assert docker.files == host.files


@pytest.mark.docker
def test_files_of_a_container_belong_to_the_caller_and_nothing_else_is_writable(
    client: EngineClient, project: Project
) -> None:
    """case B08"""
    script = (
        "echo x > product; (echo x > /src/x) 2>/dev/null && exit 3; (echo x > /x) 2>/dev/null && exit 4; "
        'echo x > "$HOME/x" || exit 5; while read -r l; do echo "net $l"; done < /proc/net/dev'
    )
    result = project.build("docker", script=script)
    status = (result.folder / "product").stat()
    assert (status.st_uid, status.st_gid) == (os.getuid(), os.getgid())
    net = [line.split()[1] for line in result.log.read_text().splitlines() if line.startswith("net ")]
    assert [name for name in net if name.endswith(":")] == ["lo:"]
    assert containers(client, os.getpid()) == []


@pytest.mark.docker
def test_a_failed_container_names_the_log_and_is_removed(client: EngineClient, project: Project) -> None:
    with pytest.raises(StageError) as caught:
        project.build("docker", script="echo told >&2; exit 9")
    assert (caught.value.code, caught.value.lines) == (9, ("told",))
    assert str(project.layout.logs / "script-docker.log") in caught.value.hint
    assert containers(client, os.getpid()) == []


@pytest.mark.docker
def test_a_container_that_needs_too_much_memory_is_told_so(client: EngineClient, project: Project) -> None:
    with pytest.raises(StageError) as caught:
        project.build("docker", script='x=0123456789abcdef; while :; do x="$x$x"; done')
    assert caught.value.error_id == "stage-killed"
    assert "--jobs 1" in caught.value.hint


@pytest.mark.docker
def test_a_command_that_is_silent_for_longer_than_any_call_may_take_is_waited_for(
    client: EngineClient, project: Project
) -> None:
    project.build("docker", script="echo x > product")
    impatient = EngineClient(client.daemon, call_timeout_s=1)
    image = ToolchainImage(Recipe.load(ROOT / "containers" / "zig"), project.layout)
    request = ContainerRequest(
        image=image.tag,
        argv=(f"{TOOLS}/cmake", "-E", "sleep", "3"),
        env={"PATH": TOOLS},
        mounts=(),
        user=UserMapping(user="65534:65534"),
        platform=image.platform,
        working_dir="/",
    )
    lines: list[str] = []
    assert run_container(impatient, request, lines.append, project.console.console).code == 0
    impatient.close()
    assert lines == []


PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from opencoti.console import Console
from opencoti.entry import run_command
from tests.conftest import RecordedConsole
from tests.integration.test_engines import Project, SharedLayout
project = Project(SharedLayout(root=Path({checkout!r}), cache=Path({cache!r})), RecordedConsole())
script = 'trap "" TERM INT; echo started; while :; do :; done'
def build():
    project.build("docker", script=script)
    return 0
run_command(build, Console())
"""


class Victim:
    """A command of ours that runs a container which ends by itself never."""

    def __init__(self, project: Project) -> None:
        layout = project.layout
        program = PROGRAM.format(root=str(ROOT), checkout=str(layout.root), cache=str(layout.cache))
        self.log = layout.logs / "script-docker.log"
        self.log.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Victim:
        while not self.log.exists() or "\nstarted\n" not in self.log.read_text():
            assert self.process.poll() is None, self.process.communicate()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.docker
@pytest.mark.parametrize(
    ("numbers", "code"),
    [([signal.SIGINT], 130), ([signal.SIGTERM], 143), ([signal.SIGINT, signal.SIGINT], 130)],
    ids=["ctrl-c", "terminated", "ctrl-c twice"],
)
def test_an_interrupted_command_ends_its_container_without_a_grace(
    client: EngineClient, project: Project, numbers: list[signal.Signals], code: int
) -> None:
    """case B10"""
    project.build("docker", script="echo x > product")
    with Victim(project) as victim:
        (container,) = containers(client, victim.process.pid)
        for number in numbers:
            victim.process.send_signal(number)
        assert victim.process.wait(timeout=60) == code
        assert containers(client, victim.process.pid) == []
    assert signals_sent(client, container) == {str(int(signal.SIGKILL))}


@pytest.mark.docker
def test_the_next_start_removes_what_a_killed_command_left(client: EngineClient, project: Project) -> None:
    """case B10"""
    with Victim(project) as victim:
        pid = victim.process.pid
        # All of them: a container whose program runs may not be listed as running yet.
        mine = client.api.containers(all=True, filters={"label": f"{OWNER_PID}={pid}"})
    assert len(mine) == 1
    # Whoever uses the same daemon may have been faster.
    sweep(client, project.console.console)
    assert containers(client, pid) == []
    assert owner_labels("r")[OWNER_PID] != str(pid)
