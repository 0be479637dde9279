"""Which engine is used, and that `auto` falls back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ci.engines import select_engine
from ci.engines.model import PreparedToolchain
from ci.engines.select import AutoEngine
from ci.paths import Layout
from opencoti.console import Console
from opencoti.errors import ConfigError, MissingError, NetworkError, OpencotiError, StorageError, UsageError
from tests.conftest import RecordedConsole
from tests.fakes.build_engine import FakeEngine
from tests.fakes.docker_daemon import DOCKER_20, version_daemon


class BrokenEngine(FakeEngine):
    """docker without a usable image."""

    def __init__(self, error: OpencotiError) -> None:
        super().__init__({}, name="docker", toolchain_id="d" * 64)
        self.error = error

    def prepare(self, toolchain: str, console: Console) -> PreparedToolchain:
        raise self.error


def test_host_is_taken_without_looking_for_a_daemon(
    layout: Layout, recorded: RecordedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    assert select_engine("host", layout, recorded.console).name == "host"
    assert recorded.text == ""


def test_docker_without_a_daemon_is_an_error_and_auto_takes_host(
    layout: Layout, recorded: RecordedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """case B11"""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    with pytest.raises(MissingError):
        select_engine("docker", layout, recorded.console)
    assert select_engine("auto", layout, recorded.console).name == "host"
    assert (
        "engine host is used: no container engine at unix:///nonexistent.sock (from DOCKER_HOST)"
        in recorded.text
    )


def test_auto_takes_a_daemon_that_answers(
    layout: Layout, recorded: RecordedConsole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with version_daemon(tmp_path / "s", DOCKER_20) as url:
        monkeypatch.setenv("DOCKER_HOST", url)
        engine = select_engine("auto", layout, recorded.console)
    assert engine.name == "docker"
    with pytest.raises(ConfigError, match="no toolchain nonsense"):
        engine.toolchain_id("nonsense")


@pytest.mark.parametrize("make", [MissingError, NetworkError, StorageError])
def test_auto_falls_back_when_the_image_cannot_be_had(
    make: Callable[[str, str], OpencotiError], recorded: RecordedConsole
) -> None:
    host = FakeEngine({}, toolchain_id="h" * 64)
    auto = AutoEngine(BrokenEngine(make("x", "no apt here")), host, recorded.console)
    assert (auto.name, auto.toolchain_id("zig")) == ("docker", "d" * 64)
    assert auto.prepare("zig", recorded.console).id == "h" * 64
    assert (auto.name, auto.toolchain_id("zig")) == ("host", "h" * 64)
    assert "engine docker does not work here (no apt here): engine host is used" in recorded.text


def test_auto_does_not_hide_a_wrong_lock(recorded: RecordedConsole) -> None:
    auto = AutoEngine(BrokenEngine(ConfigError("x", "bad lock")), FakeEngine({}), recorded.console)
    with pytest.raises(ConfigError):
        auto.prepare("zig", recorded.console)


def test_the_system_toolchain_is_for_the_host_engine(
    layout: Layout, recorded: RecordedConsole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = FakeEngine({}, toolchain_id="h" * 64)
    assert (
        AutoEngine(BrokenEngine(MissingError("x", "")), host, recorded.console).toolchain_id("system")
        == "h" * 64
    )
    with version_daemon(tmp_path / "s", DOCKER_20) as url:
        monkeypatch.setenv("DOCKER_HOST", url)
        docker = select_engine("docker", layout, recorded.console)
    with pytest.raises(UsageError, match="host engine only"):
        docker.toolchain_id("system")
