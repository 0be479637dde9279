"""What reaches the two streams, and which exit code a failure gets."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opencoti.console import Console
from opencoti.errors import BusyError, OpencotiError, VerificationError
from tests.conftest import ROOT, RecordedConsole

FAILURE = VerificationError(
    "hash-mismatch", "file x is wrong", why="expected a, found b", hint="fetch it again"
)


def test_error_is_two_lines_on_stderr_and_nothing_on_stdout(recorded: RecordedConsole) -> None:
    recorded.console.error(FAILURE)
    assert recorded.out.getvalue() == ""
    assert (
        recorded.text
        == "error [hash-mismatch] file x is wrong: expected a, found b\n  next: fetch it again\n"
    )


def test_error_as_json_is_data_on_stdout() -> None:
    out = io.StringIO()
    Console(as_json=True, stdout=out, stderr=io.StringIO()).error(FAILURE)
    assert json.loads(out.getvalue()) == {
        "error": "hash-mismatch",
        "exit_code": 6,
        "what": "file x is wrong",
        "why": "expected a, found b",
        "hint": "fetch it again",
    }


def test_quiet_keeps_warnings_and_drops_progress() -> None:
    err = io.StringIO()
    console = Console(quiet=True, stdout=io.StringIO(), stderr=err)
    console.info("progress")
    console.status("more progress")
    with console.group("phase"):
        pass
    console.warn("watch out")
    assert err.getvalue() == "WARN watch out\n"


def test_groups_fold_on_github(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    err = io.StringIO()
    console = Console(stdout=io.StringIO(), stderr=err)
    with console.group("build"):
        console.warn("slow")
    lines = err.getvalue().splitlines()
    assert lines[0] == "::group::build"
    assert "::warning::slow" in lines
    assert lines[-1] == "::endgroup::"


def run_snippet(body: str, *, send: signal.Signals | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command body under `run_command` in a process of its own; signal it once it says `ready`."""
    code = (
        "import sys, time\n"
        "from opencoti.console import Console\n"
        "from opencoti.entry import run_command\n"
        "from opencoti import errors\n"
        f"def body():\n    {body}\n"
        "run_command(body, Console())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if send is not None:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(send)
    out, err = process.communicate(timeout=30)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.parametrize("kind", list(OpencotiError.__subclasses__()), ids=lambda c: c.__name__)
def test_each_error_class_ends_with_its_exit_code(kind: type[OpencotiError]) -> None:
    done = run_snippet(f"raise errors.{kind.__name__}('some-id', 'it broke')")
    assert done.returncode == kind.exit_code
    assert done.stderr == "error [some-id] it broke\n"


def test_exit_codes_are_unique() -> None:
    codes = [kind.exit_code for kind in OpencotiError.__subclasses__()]
    assert sorted(codes) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert BusyError.exit_code == 9


@pytest.mark.parametrize(("sig", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_with_their_code_and_no_traceback(sig: signal.Signals, code: int) -> None:
    done = run_snippet("print('ready', flush=True); time.sleep(60)", send=sig)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_unexpected_error_is_one_line_and_a_report() -> None:
    done = run_snippet("raise RuntimeError('surprise')")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    report = Path(done.stderr.rsplit(" ", 1)[1].strip())
    try:
        assert "RuntimeError: surprise" in report.read_text()
        assert "Traceback" in report.read_text()
    finally:
        os.unlink(report)


def test_a_full_disk_anywhere_is_no_bug() -> None:
    done = run_snippet("open('/dev/full', 'w', buffering=1).write('text\\n')")
    assert done.returncode == 8
    assert done.stderr.startswith("error [storage-failed] cannot use a file: No space left on device")


def test_an_unexpected_error_without_room_for_a_report_is_one_line() -> None:
    done = run_snippet("import tempfile; tempfile.tempdir = '/nowhere'; raise RuntimeError('surprise')")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "RuntimeError: surprise; no report could be written (No such file or directory)" in done.stderr


@pytest.mark.parametrize(("module", "code"), [("nowhere_to_be_found.part", 4), ("opencoti.nowhere", 1)])
def test_a_foreign_module_that_is_missing_is_no_bug_and_one_of_ours_is(module: str, code: int) -> None:
    done = run_snippet(f"import {module}")
    assert done.returncode == code
    assert ("[python-module-missing] this Python has no module nowhere_to_be_found" in done.stderr) == (
        code == 4
    )


@pytest.mark.parametrize("redirection", ["2>&-", ">&-", "<&- >&- 2>&-", "2>/dev/full"])
@pytest.mark.parametrize(("last", "code"), [("return 0", 0), ("raise errors.BusyError('held', 'in use')", 9)])
def test_streams_that_take_nothing_do_not_stop_the_work(
    tmp_path: Path, redirection: str, last: str, code: int
) -> None:
    snippet = tmp_path / "snippet.py"
    snippet.write_text(
        "import subprocess, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from opencoti import errors\n"
        "from opencoti.console import Console\n"
        "from opencoti.entry import run_command\n"
        "console = Console()\n"
        "def body():\n"
        "    console.info('progress')\n"
        f"    with open({str(tmp_path / 'file')!r}, 'w') as file:\n"
        "        subprocess.run(['sh', '-c', 'echo out; echo err >&2'])\n"
        "        file.write('mine')\n"
        "    console.result('done')\n"
        f"    {last}\n"
        "run_command(body, console)\n"
    )
    done = subprocess.run(["sh", "-c", f'exec "$0" "$1" {redirection}', sys.executable, str(snippet)])
    assert done.returncode == code
    assert (tmp_path / "file").read_text() == "mine"


def test_a_result_that_cannot_be_written_is_a_failure_of_the_disk() -> None:
    code = (
        "from opencoti.console import Console\n"
        "from opencoti.entry import run_command\n"
        "console = Console(as_json=True)\n"
        "run_command(lambda: console.result('x') or 0, console)\n"
    )
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" >/dev/full', sys.executable, code],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 8
    assert "Traceback" not in done.stderr


def test_work_goes_on_when_nobody_reads_the_progress(tmp_path: Path) -> None:
    """`command 2>&1 | true`: what was not done must not end with 0."""
    done = tmp_path / "done"
    code = (
        "import pathlib\n"
        "from opencoti.console import Console\n"
        "from opencoti.entry import run_command\n"
        "console = Console()\n"
        "def body():\n"
        "    console.info('progress')\n"
        f"    pathlib.Path({str(done)!r}).touch()\n"
        "    return 5\n"
        "run_command(body, console)\n"
    )
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stderr=writing, check=False)
    finally:
        os.close(writing)
    assert ended.returncode == 5
    assert done.exists()
