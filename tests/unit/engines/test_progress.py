"""Reading what a build prints."""

from __future__ import annotations

import pytest

from ci.engines.progress import OutputReader, format_duration
from tests.conftest import RecordedConsole

# Printed by ninja 1.13.2 with NINJA_STATUS="[%f/%t] " when the middle one of three commands failed.
FAILED_BUILD = [
    "[1/3] Building C object CMakeFiles/a.dir/a.c.o",
    "[2/3] Building C object CMakeFiles/b.dir/b.c.o",
    "FAILED: [code=1] CMakeFiles/b.dir/b.c.o",
    "/tools/cc -c b.c",
    "b.c:1:5: error: unknown type name 'it'",
    "[3/3] Linking C executable tool",
    "ninja: build stopped: subcommand failed.",
]


@pytest.fixture
def reader(recorded: RecordedConsole) -> OutputReader:
    return OutputReader("cpu, compile", recorded.console, step="step 2/2")


def test_progress_is_shown_with_the_step_the_count_and_the_target(
    reader: OutputReader, recorded: RecordedConsole
) -> None:
    reader.feed(FAILED_BUILD[0])
    assert recorded.text == "cpu, compile: step 2/2 1/3, 0 s, Building C object a.c.o\n"


def test_the_report_starts_at_the_first_failed_command_and_drops_progress(reader: OutputReader) -> None:
    for line in ["warning: earlier", *FAILED_BUILD]:
        reader.feed(line)
    assert list(reader.lines()) == [FAILED_BUILD[2], FAILED_BUILD[3], FAILED_BUILD[4], FAILED_BUILD[6]]
    assert reader.failed_codes == {1}


def test_without_a_failed_command_the_last_lines_are_reported(reader: OutputReader) -> None:
    for number in range(40):
        reader.feed(f"line {number} " + "x" * 500)
        reader.feed("")
    assert [line.split()[1] for line in reader.lines()] == [str(number) for number in range(25, 40)]
    assert max(len(line) for line in reader.lines()) == 240


def test_the_exit_code_of_a_killed_compiler_is_read(reader: OutputReader) -> None:
    reader.feed("FAILED: [code=137] a.o")
    reader.feed("FAILED: b.o")
    assert reader.failed_codes == {137, 1}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.9, "59 s"), (60, "1 min 00 s"), (3725, "62 min 05 s")]
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
