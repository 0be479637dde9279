"""The engine docker with a daemon that sees no folder of this machine: files go there and come back."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.engines import EngineName, select_engine
from ci.engines.client import EngineClient
from ci.engines.container import sweep
from ci.engines.endpoint import find_endpoint, probe
from ci.engines.image import ToolchainImage
from ci.engines.owner import OWNER_PID
from ci.engines.volumes import VOLUME, client_id, named_volumes, sweep_volumes
from ci.engines.workplace import REMOTE_STATE
from ci.paths import Layout
from ci.stages.model import Stage
from ci.stages.runner import run_stage
from ci.toolchains.recipe import Recipe
from opencoti.console import Console
from opencoti.errors import NetworkError, VerificationError
from tests.conftest import RecordedConsole, require
from tests.integration.second_daemon import SecondDaemon, copy_image, second_daemon
from tests.integration.test_engines import (
    MAIN,
    Project,
    SharedLayout,
    Victim,
    containers,
    project_stage,
    shell_stage,
)

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the checkouts of these tests lie: the second daemon finds nothing there."""
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="module")
def remote(docker_daemon: None, real_layout: Layout, hidden: Path) -> Iterator[SecondDaemon]:
    require(os.geteuid() == 0, "starting a second dockerd needs root")
    image = ToolchainImage(Recipe.load(real_layout.containers / "zig"), real_layout)
    with second_daemon(hidden) as daemon:
        here, there = EngineClient(probe(find_endpoint())), EngineClient(daemon.daemon)
        image.ensure(here, Console(quiet=True))
        copy_image(here, there, image.tag)
        here.close()
        there.close()
        yield daemon


@pytest.fixture
def client(remote: SecondDaemon) -> Iterator[EngineClient]:
    made = EngineClient(remote.daemon)
    yield made
    made.close()


@pytest.fixture
def project(
    remote: SecondDaemon,
    hidden: Path,
    request: pytest.FixtureRequest,
    real_layout: Layout,
    recorded: RecordedConsole,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Project]:
    monkeypatch.setenv("DOCKER_HOST", remote.url)
    root = hidden / request.node.name[:40]
    yield Project(layout=SharedLayout(root=root, cache=real_layout.cache), console=recorded)
    shutil.rmtree(root, ignore_errors=True)


def volumes(client: EngineClient) -> list[dict[str, Any]]:
    return list(client.api.volumes(filters={"label": VOLUME}).get("Volumes") or [])


def objects_stage(tree: str) -> Stage:
    """The project without its links, for which zig would first build a C library in the fresh daemon."""
    stage = project_stage()
    compiling = replace(stage.steps[1], argv=(*stage.steps[1].argv, "base.o", "main.o"))
    return replace(
        stage, steps=(stage.steps[0], compiling), outputs=("*.o",), source_tree=tree * 40, name="objects"
    )


def test_a_remote_daemon_gives_the_same_bytes_as_this_machine(
    project: Project, client: EngineClient, tmp_path: Path, real_layout: Layout
) -> None:
    local = Project(layout=SharedLayout(root=tmp_path, cache=real_layout.cache), console=project.console)
    places: list[tuple[Project, EngineName]] = [(project, "docker"), (local, "host")]
    there, here = (
        run_stage(
            objects_stage("4"),
            select_engine(engine, place.layout, project.console.console),
            layout=place.layout,
            source=place.write_source(),
            console=project.console.console,
            jobs=2,
            use_cache=False,
        )
        for place, engine in places
    )
    assert "files are sent there and back" in project.console.text
    assert (there.engine, here.engine) == ("docker", "host")
    assert there.files == here.files
    assert set(there.files) == {"base.o", "main.o"}
    assert containers(client, os.getpid()) == []


def test_only_what_changed_is_sent_and_compiled_again(project: Project) -> None:
    stage = objects_stage("2")
    project.write_source()
    run(project, stage)
    assert "source: 3 of 3 files sent" in project.console.text
    assert "no work to do" in run(project, stage)
    assert "source: 0 of 3 files sent" in project.console.text
    (project.source / "main.c").write_text(MAIN + "/* changed */\n")
    log = run(project, stage)
    assert "source: 1 of 3 files sent" in project.console.text
    assert "-o main.o" in log
    assert "-o base.o" not in log


def test_a_file_that_is_gone_here_is_gone_there(project: Project) -> None:
    project.write_source()
    (project.source / "below").mkdir()
    (project.source / "below" / "extra.c").write_text("x")
    (project.source / "link").symlink_to("main.c")
    script = 'for f in /src/* /src/*/*; do [ -f "$f" ] && echo "has $f"; done; echo x > product'
    before = run(project, shell_stage(script))
    (project.source / "below" / "extra.c").unlink()
    after = run(project, shell_stage(script))
    assert {"has /src/below/extra.c", "has /src/link", "has /src/main.c"} <= set(before.splitlines())
    assert set(before.splitlines()) - set(after.splitlines()) == {"has /src/below/extra.c"}


def test_only_declared_outputs_come_back_and_belong_to_us(project: Project) -> None:
    """case B08"""
    project.write_source()
    script = (
        'mkdir() { cmake -E make_directory "$@"; }; mkdir a/b; echo 1 > a/b/one.so; echo 2 > a/two.so; '
        "echo 3 > a/b/three.o; echo x > CMakeCache.txt; cmake -E create_symlink b/one.so a/link.so; "
        "(echo y > /src/main.c) 2>/dev/null && exit 3; echo 5 > product; "
        "cmake -E create_symlink /etc/passwd outside.so"
    )
    stage = replace(shell_stage(script), outputs=("product", "a/*.so", "a/**/one.so"))
    run(project, stage)
    out = project.layout.build / "stages/docker/script"
    found = {path.relative_to(out).as_posix(): path for path in out.rglob("*") if path.is_file()}
    products = {"product", "a/two.so", "a/link.so", "a/b/one.so"}
    assert set(found) == products | {"CMakeCache.txt", REMOTE_STATE}
    assert {found[name].stat().st_uid for name in products} == {os.getuid()}
    assert found["a/link.so"].read_text() == "1\n"
    assert not found["a/link.so"].is_symlink()


def test_an_output_that_leads_out_of_the_build_folder_is_refused(project: Project) -> None:
    project.write_source()
    stage = shell_stage("cmake -E create_symlink /etc/passwd product")
    with pytest.raises(VerificationError) as caught:
        run(project, stage)
    assert caught.value.error_id == "remote-output-damaged"
    assert not (project.layout.build / "stages/docker/script/product").exists()


def test_volumes_live_as_long_as_the_folders_that_they_stand_for(
    project: Project, client: EngineClient
) -> None:
    project.write_source()
    run(project, shell_stage("echo x > product"))
    out = project.layout.build / "stages/docker/script"
    mine = set(named_volumes(out / REMOTE_STATE))
    owner = client_id(project.layout.cache)
    assert len(mine) == 2
    assert mine <= {entry["Name"] for entry in volumes(client)}
    assert not mine & set(sweep_volumes(client, project.console.console, owner=owner))
    shutil.rmtree(out)
    assert mine <= set(sweep_volumes(client, project.console.console, owner=owner))
    assert not mine & {entry["Name"] for entry in volumes(client)}


def test_a_build_from_scratch_leaves_no_tool_cache(project: Project, client: EngineClient) -> None:
    project.write_source()
    project.build("docker", script="echo x > product")
    assert [entry for entry in volumes(client) if entry["Labels"][VOLUME] == "run"] == []


def test_a_killed_command_leaves_nothing_after_the_next_start(project: Project, client: EngineClient) -> None:
    """case B10"""
    with Victim(project) as victim:
        pid = victim.process.pid
        # The folders' container and the one that runs.
        assert len(containers(client, pid)) == 2
    assert len(containers(client, pid)) == 2
    assert len(sweep(client, project.console.console)) == 2
    sweep_volumes(client, project.console.console, owner=client_id(project.layout.cache))
    assert containers(client, pid) == []
    assert [entry for entry in volumes(client) if entry["Labels"].get(OWNER_PID) == str(pid)] == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_command_leaves_nothing(
    number: signal.Signals, code: int, project: Project, client: EngineClient
) -> None:
    """case B10"""
    with Victim(project) as victim:
        victim.process.send_signal(number)
        assert victim.process.wait(timeout=60) == code
        assert containers(client, victim.process.pid) == []


def test_a_build_folder_that_stood_for_a_remote_one_is_emptied_before_it_is_used_here(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = objects_stage("3")
    project.write_source()
    run(project, stage)
    monkeypatch.delenv("DOCKER_HOST")
    log = run(project, stage)
    assert "-o main.o" in log
    assert not (project.layout.build / "stages/docker/objects" / REMOTE_STATE).exists()


def run(project: Project, stage: Stage) -> str:
    """Run a stage with its build folder kept, but with no stage cache; return its log."""
    layout = project.layout
    engine = select_engine("docker", layout, project.console.console)
    engine.prepare(stage.toolchain, project.console.console)
    out, cache = layout.build / "stages/docker" / stage.name, layout.cache / "tool-cache" / "tests-remote"
    for folder in (out, cache):
        folder.mkdir(parents=True, exist_ok=True)
    log = layout.logs / f"{stage.name}.log"
    engine.run(
        stage,
        source=project.source,
        out=out,
        tool_cache=cache,
        jobs=2,
        log=log,
        console=project.console.console,
    )
    return log.read_text()


@pytest.fixture
def ssh_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """An sshd on a loopback port, with keys of its own, that the program `ssh` can log in to."""
    require(Path("/usr/sbin/sshd").is_file(), "sshd is not installed")
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    host_key = (tmp_path / "host.pub").read_text()
    (tmp_path / "known").write_text(f"[127.0.0.1]:{port} {host_key}")
    (tmp_path / "sshd").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nStrictModes no\nUsePAM no\n"
        f"AuthorizedKeysFile {tmp_path}/user.pub\nPidFile none\n"
    )
    (tmp_path / "client").write_text(f"IdentityFile {tmp_path}/user\nUserKnownHostsFile {tmp_path}/known\n")
    # The program takes the home folder from the user database, not from HOME.
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {tmp_path}/client "$@"\n')
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    command = ["/usr/sbin/sshd", "-D", "-e", "-f", str(tmp_path / "sshd")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "listening on" in line:
                break
        yield port
        process.terminate()


def test_a_daemon_is_reached_through_ssh(
    project: Project, remote: SecondDaemon, ssh_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"ssh://root@127.0.0.1:{ssh_port}{remote.folder}/docker.sock")
    result = project.build("docker", script="echo over there > product")
    assert (result.folder / "product").read_text() == "over there\n"
    assert "files are sent there and back" in project.console.text
    assert f"ssh://root@127.0.0.1:{ssh_port}" in project.console.text


def test_an_ssh_that_does_not_get_in_says_why_and_asks_nothing(
    ssh_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: Project
) -> None:
    (tmp_path / "known").unlink()
    monkeypatch.setenv("DOCKER_HOST", f"ssh://root@127.0.0.1:{ssh_port}")
    with pytest.raises(NetworkError) as caught:
        project.build("docker", script="echo x > product")
    assert caught.value.error_id == "docker-ssh-failed"
    assert "Host key verification failed" in caught.value.why
