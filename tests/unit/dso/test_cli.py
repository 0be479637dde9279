"""The command `inspect`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from ci.context import Context
from ci.dso import cli
from ci.paths import Layout
from opencoti.console import Console
from opencoti.errors import ConfigError
from tests.conftest import RecordedConsole


def _run(layout: Layout, console: Console, *words: str) -> int:
    parser = argparse.ArgumentParser()
    cli.register(parser.add_subparsers(), argparse.ArgumentParser(add_help=False))
    args = parser.parse_args(["inspect", *words])
    return int(args.command(args, Context(layout=layout, console=console)))


def test_text_shows_floor_and_entry_points(
    backend: Path, base: Path, layout: Layout, recorded: RecordedConsole
) -> None:
    code = _run(layout, recorded.console, str(backend), str(base))
    text = recorded.out.getvalue()
    assert "GLIBC 2.29 (pow)" in text
    assert "ggml_backend_init ggml_backend_score" in text
    # The name says that it is a CPU variant, and those must run on glibc 2.28.
    assert "version-too-new" in text
    assert code == 6


def test_json_lists_every_file(base: Path, layout: Layout, recorded: RecordedConsole) -> None:
    console = Console(as_json=True, stdout=recorded.out, stderr=recorded.err)
    assert _run(layout, console, str(base)) == 0
    [entry] = json.loads(recorded.out.getvalue())
    assert (entry["soname"], entry["problems"]) == ("libggml-base.so.0", [])


def test_a_file_that_is_no_elf_stops_it(tmp_path: Path, layout: Layout, recorded: RecordedConsole) -> None:
    path = tmp_path / "libggml-cpu-x64.so"
    path.write_text("not one")
    with pytest.raises(ConfigError):
        _run(layout, recorded.console, str(path))
