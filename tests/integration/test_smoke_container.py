"""Programs in the container of the smoke test: their output, their end, and that nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.engines.client import EngineClient
from ci.engines.endpoint import find_endpoint, probe
from ci.engines.owner import RUN
from ci.paths import Layout
from ci.smoke.contained import ContainedServer, ContainerPlace, open_container_place
from ci.smoke.scratch import Scratch, scratch_folder
from opencoti.console import Console
from opencoti.errors import VerificationError

pytestmark = pytest.mark.usefixtures("docker_daemon")
WAIT_S = 60.0


@pytest.fixture(scope="module")
def place(real_layout: Layout) -> Iterator[ContainerPlace]:
    with open_container_place(real_layout, Console(quiet=True), files=()) as opened:
        yield opened


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scratch]:
    # Short: the path of a socket has a limit.
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    with scratch_folder(tmp_path / "fallback") as made:
        yield made


class Bench:
    """Starts scripts in the container."""

    def __init__(self, place: ContainerPlace, scratch: Scratch, root: Path) -> None:
        self.place = place
        self.scratch = scratch
        self.root = root
        self.log = root / "log"

    def start(self, script: str) -> ContainedServer:
        program = self.root / "program"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        with open(self.log, "ab") as log:
            server = self.place.launch(
                program, ["word"], scratch=self.scratch, log=log, variables={"GIVEN": "yes"}
            )
        assert isinstance(server, ContainedServer)
        return server


@pytest.fixture
def bench(place: ContainerPlace, scratch: Scratch, tmp_path: Path) -> Bench:
    return Bench(place, scratch, tmp_path)


def test_output_and_exit_code_come_out_and_only_what_was_given_goes_in(bench: Bench) -> None:
    server = bench.start('echo "$1 $GIVEN $HOME ${USER:-nobody}"; pwd; echo note > "$HOME/note"; exit 7')
    try:
        assert server.child.wait(WAIT_S) == 7
    finally:
        server.kill()
    assert bench.log.read_text().split() == [
        *("word", "yes", str(bench.scratch.home), "nobody", str(bench.scratch.work))
    ]
    assert (bench.scratch.home / "note").stat().st_uid == os.getuid()


def test_there_is_no_network_but_loopback(bench: Bench) -> None:
    server = bench.start("while read line; do echo $line; done < /proc/net/dev")
    try:
        assert server.child.wait(WAIT_S) == 0
    finally:
        server.kill()
    devices = [line.split(":")[0] for line in bench.log.read_text().splitlines() if ":" in line]
    assert devices == ["lo"]


def test_sigterm_reaches_the_program_and_its_processes_are_seen_from_here(bench: Bench) -> None:
    server = bench.start("trap 'exit 3' TERM; echo up; while :; do :; done")
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            server.child.wait(0)
        assert server.members()
        while "up" not in bench.log.read_text():
            assert server.child.poll() is None
        server.ask_to_stop()
        assert server.child.wait(WAIT_S) == 3
    finally:
        server.kill()
    assert server.members() == ()


def test_a_signal_is_told_from_an_exit_code(bench: Bench) -> None:
    server = bench.start("kill -9 $$")
    try:
        assert server.child.wait(WAIT_S) == -signal.SIGKILL
    finally:
        server.kill()


def test_a_program_that_ends_before_it_is_ready_is_named_with_its_last_words(bench: Bench) -> None:
    server = bench.start("echo no such model; exit 1")
    try:
        with pytest.raises(VerificationError) as caught:
            server.wait_ready(port=0, timeout_s=WAIT_S)
    finally:
        server.kill()
    assert caught.value.error_id == "smoke-died"
    assert "no such model" in caught.value.why


def test_a_program_that_never_listens_is_given_up(bench: Bench) -> None:
    server = bench.start("while :; do :; done")
    try:
        with pytest.raises(VerificationError) as caught:
            server.wait_ready(port=0, timeout_s=0.3)
    finally:
        server.kill()
    assert caught.value.error_id == "smoke-not-ready"


def test_kill_removes_the_container(bench: Bench) -> None:
    server = bench.start("while :; do :; done")
    mine = server._container._name
    server.kill()
    client = EngineClient(probe(find_endpoint()))
    try:
        found = client.api.containers(all=True, filters={"label": RUN})
        assert not any(f"/{mine}" in entry["Names"] for entry in found)
    finally:
        client.close()
