"""Running steps: the error that a failure gives, and the failures that no exit code shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ci.engines.failures import StageError, StepExit
from ci.engines.steps import run_steps, stage_environment
from ci.stages.model import Expansion, Stage, Step
from opencoti.errors import BuildError
from tests.conftest import RecordedConsole

STAGE = Stage(
    name="cpu",
    toolchain="zig",
    steps=(
        Step(title="configure", argv=("{tools}/cmake",)),
        Step(title="compile", argv=("{tools}/ninja", "-j{jobs}")),
    ),
    env={"FLAGS": "-I{src}"},
    source_tree="1" * 40,
    inputs={},
    outputs=("a",),
)
EXPANSION = Expansion(src="/s", out="/o", tools="/t", jobs=8)


class Commands:
    """Answers commands with recorded output and exit codes; remembers what was run."""

    def __init__(self, *answers: tuple[int, list[str]]) -> None:
        self.answers = list(answers)
        self.ran: list[tuple[str, ...]] = []

    def __call__(self, argv: tuple[str, ...], on_line: Callable[[str], None]) -> StepExit:
        code, lines = self.answers[len(self.ran)]
        self.ran.append(argv)
        for line in lines:
            on_line(line)
        return StepExit(code=code)


def run(commands: Commands, out: Path, recorded: RecordedConsole) -> Path:
    log = out / "logs" / "cpu.log"
    run_steps(STAGE, EXPANSION, commands, out=out, log=log, console=recorded.console)
    return log


def test_every_step_runs_and_the_log_holds_commands_and_output(
    tmp_path: Path, recorded: RecordedConsole
) -> None:
    commands = Commands((0, ["-- done"]), (0, ["[1/1] Linking a", "ü"]))
    log = run(commands, tmp_path, recorded)
    assert commands.ran == [("/t/cmake",), ("/t/ninja", "-j8")]
    assert log.read_text() == "$ /t/cmake\n-- done\n$ /t/ninja -j8\n[1/1] Linking a\nü\n"


def test_a_failure_names_stage_step_code_lines_and_log_and_ends_the_stage(
    tmp_path: Path, recorded: RecordedConsole
) -> None:
    commands = Commands((2, ["CMake Error at CMakeLists.txt:3"]))
    with pytest.raises(StageError) as caught:
        run(commands, tmp_path, recorded)
    error = caught.value
    assert (error.error_id, error.exit_code, error.code) == ("stage-failed", 5, 2)
    assert error.what == "stage cpu failed in step configure"
    assert error.why == "exit code 2\n    CMake Error at CMakeLists.txt:3"
    assert error.hint == f"read the whole log: {tmp_path}/logs/cpu.log"
    assert len(commands.ran) == 1


@pytest.mark.parametrize(
    "answer", [(137, []), (1, ["FAILED: [code=137] a.o", "ninja: build stopped: subcommand failed."])]
)
def test_a_killed_compiler_suggests_fewer_jobs(
    answer: tuple[int, list[str]], tmp_path: Path, recorded: RecordedConsole
) -> None:
    with pytest.raises(StageError) as caught:
        run(Commands((0, []), answer), tmp_path, recorded)
    assert caught.value.error_id == "stage-killed"
    assert "--jobs 4" in caught.value.hint


def test_a_signal_is_named(tmp_path: Path, recorded: RecordedConsole) -> None:
    with pytest.raises(StageError, match="ended by SIGSEGV"):
        run(Commands((139, [])), tmp_path, recorded)


def test_output_that_shows_something_not_found_fails_a_step_that_ended_well(
    tmp_path: Path, recorded: RecordedConsole
) -> None:
    """case B16"""
    commands = Commands((0, ["sh: Vulkan_GLSLC_EXECUTABLE-NOTFOUND: not found"]))
    with pytest.raises(BuildError) as caught:
        run(commands, tmp_path, recorded)
    assert caught.value.error_id == "stage-value-not-found"
    assert len(commands.ran) == 1


def test_a_configuration_with_a_missing_program_fails_before_anything_is_compiled(
    tmp_path: Path, recorded: RecordedConsole
) -> None:
    """case B16"""
    (tmp_path / "CMakeCache.txt").write_text("CMAKE_AR:FILEPATH=CMAKE_AR-NOTFOUND\n")
    commands = Commands((0, []))
    with pytest.raises(BuildError, match="CMAKE_AR-NOTFOUND"):
        run(commands, tmp_path, recorded)


def test_the_environment_is_made_of_nothing_but_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CC", "CFLAGS", "CPATH", "LD_PRELOAD", "HOME"):
        monkeypatch.setenv(name, "/evil")
    environment = stage_environment(STAGE, EXPANSION, tool_cache="/c", path="/t")
    assert "/evil" not in environment.values()
    assert environment["FLAGS"] == "-I/s"
    assert environment["PATH"] == "/t"
    inside = {"HOME", "TMPDIR", "XDG_CACHE_HOME", "CCACHE_DIR", "ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"}
    assert all(environment[name].startswith("/c/") for name in inside)


def test_a_stage_may_replace_what_is_fixed() -> None:
    stage = replace(STAGE, env={"SOURCE_DATE_EPOCH": "5"})
    assert stage_environment(stage, EXPANSION, tool_cache="/c", path="/t")["SOURCE_DATE_EPOCH"] == "5"
