"""Words of the command line, and what loading it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from opencoti.fetch.cli import build_parser, main, with_default_verb
from tests.conftest import ROOT

HEAVY = ("httpx", "httpcore", "pydantic", "tenacity", "rich", "cryptography", "platformdirs", "ssl")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], ["get"]),
        (["--json"], ["get", "--json"]),
        (["--pin", "x"], ["get", "--pin", "x"]),
        (["verify"], ["verify"]),
        (["--help"], ["--help"]),
    ],
)
def test_get_is_the_default_verb(given: list[str], expected: list[str]) -> None:
    assert with_default_verb(given) == expected


@pytest.mark.parametrize("module", ["opencoti.fetch", "opencoti.fetch.cli", "opencoti.fetch.settings"])
def test_loading_pulls_in_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_loads_nothing_heavy_and_names_every_verb() -> None:
    code = (
        "import sys, atexit, opencoti.fetch.cli as cli\n"
        f"atexit.register(lambda: print([m for m in {HEAVY} if m in sys.modules]))\n"
        "cli.main(['--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(
        f"    {verb} " in done.stdout for verb in ("get", "verify", "repair", "path", "list", "explain")
    )


@pytest.mark.parametrize(
    "words",
    [
        ["get", "--url", "https://example.com/a"],
        ["get", "--sha256", "0" * 64],
        ["get", "--name", "a"],
        ["get", "--url", "https://example.com/a", "--sha256", "0" * 64, "--pin", "p"],
        ["got"],
        ["--jso"],
    ],
)
def test_wrong_words_are_usage_errors(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("error [bad-usage]")


def test_every_verb_has_a_help_text() -> None:
    assert build_parser().format_help().count("\n") > 10
