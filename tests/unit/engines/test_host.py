"""The host engine with real processes: environment, isolation, and that nothing outlives us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ci import process
from ci.engines import isolated
from ci.engines.failures import StageError
from ci.engines.host import HostEngine
from ci.paths import Layout
from ci.stages.model import Stage, Step
from tests.conftest import ROOT, RecordedConsole
from tests.fakes.toolchain import FakeToolchain

ISOLATED = Path(isolated.__file__)


def stage(script: str) -> Stage:
    return Stage(
        name="cpu",
        toolchain="fake",
        steps=(Step(title="run", argv=("/bin/sh", "-c", script)),),
        env={},
        source_tree="",
        inputs={},
        outputs=(),
    )


def run(script: str, layout: Layout, recorded: RecordedConsole) -> list[str]:
    """Run a script as a stage; return the lines it printed."""
    engine = HostEngine(layout, find=lambda name, where: FakeToolchain(where.toolchains / name))
    folders = [layout.root / name for name in ("src", "out", "tool-cache")]
    for folder in folders:
        folder.mkdir()
    log = layout.logs / "cpu.log"
    engine.run(
        stage(script),
        source=folders[0],
        out=folders[1],
        tool_cache=folders[2],
        jobs=2,
        log=log,
        console=recorded.console,
    )
    return log.read_text().splitlines()[1:]


def probe() -> str:
    return process.run([sys.executable, "-I", "-S", ISOLATED, "probe"]).text


def test_nothing_of_the_callers_environment_reaches_a_stage(
    layout: Layout, recorded: RecordedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CC", "CFLAGS", "CPATH", "LD_LIBRARY_PATH", "PYTHONPATH", "MAKEFLAGS"):
        monkeypatch.setenv(name, "/evil")
    lines = run("env; umask; pwd", layout, recorded)
    names = {line.partition("=")[0] for line in lines if "=" in line}
    assert "/evil" not in "".join(lines)
    assert {"HOME", "LC_ALL", "TZ", "SOURCE_DATE_EPOCH", "PATH"} < names
    assert "0022" in lines
    assert str(layout.root / "out") in lines


def test_a_stage_has_no_network_where_the_machine_allows(layout: Layout, recorded: RecordedConsole) -> None:
    if probe() == "none":
        pytest.skip("this machine allows no namespaces")
    lines = run("cat /proc/net/dev", layout, recorded)
    assert [line.split(":")[0].strip() for line in lines[2:]] == ["lo"]
    assert "stages run isolated" in recorded.text


def test_the_exit_code_and_the_signal_of_a_command_come_through(
    layout: Layout, recorded: RecordedConsole
) -> None:
    with pytest.raises(StageError) as caught:
        run("echo told; kill -KILL $$", layout, recorded)
    assert caught.value.code == 137
    assert caught.value.lines == ("told",)


def test_a_program_that_is_not_there_fails_the_step(tmp_path: Path) -> None:
    done = process.run([sys.executable, "-I", "-S", ISOLATED, "none", str(os.getpid()), "/nonexistent"])
    assert done.code == 127
    assert done.error_text == "cannot run /nonexistent: No such file or directory"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_whatever_ends_us_ends_everything_that_a_stage_started(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Also a grandchild in a session of its own that ignores every request to end."""
    if probe() == "none":
        pytest.skip("this machine allows no namespaces")
    script = 'trap "" TERM INT; setsid sh -c \'trap "" TERM INT; while :; do sleep 1; done\' & echo up; wait'
    # Everything that the stage starts inherits this pipe: it ends when the last of them does.
    read, write = os.pipe()
    program = f"""
        import os, subprocess, sys
        sys.path.insert(0, {str(ROOT)!r})
        from ci import process
        argv = [sys.executable, "-I", "-S", {str(ISOLATED)!r}, {probe()!r}, str(os.getpid())]
        argv += ["/bin/sh", "-c", {script!r}]
        subprocess.Popen(
            argv, pass_fds=({write},), start_new_session=True, preexec_fn=process.die_with_parent
        ).wait()
    """
    ours = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(write,),
    )
    os.close(write)
    assert ours.stdout is not None
    with ours.stdout, os.fdopen(read, "rb") as life:
        assert ours.stdout.readline() == b"up\n"
        ours.send_signal(number)
        assert life.read() == b""
        assert ours.wait() != 0
