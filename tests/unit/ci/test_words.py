"""Words behind `--` of a nox call: each command takes its own, nobody's word is an error."""

from __future__ import annotations

import argparse

import pytest

from ci.words import own_words
from opencoti.errors import UsageError


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(allow_abbrev=False)
    commands = main.add_subparsers()
    build = commands.add_parser("build", allow_abbrev=False)
    build.add_argument("backends", nargs="+")
    build.add_argument("--jobs", type=int)
    build.add_argument("--json", action="store_true")
    smoke = commands.add_parser("smoke", allow_abbrev=False)
    smoke.add_argument("artifact", nargs="?")
    smoke.add_argument("--backend")
    smoke.add_argument("--json", action="store_true")
    reset = commands.add_parser("reset", allow_abbrev=False)
    reset.add_argument("--lane")
    return main


def test_words_without_the_mark_are_left_alone(parser: argparse.ArgumentParser) -> None:
    assert own_words(parser, ["build", "cpu", "--whatever"]) == ["build", "cpu", "--whatever"]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["smoke", "--shared-words", "--jobs", "3", "--backend", "cpu"], ["smoke", "--backend", "cpu"]),
        (["reset", "--shared-words", "--jobs", "3", "--json"], ["reset"]),
        (["smoke", "--shared-words", "--jobs=3", "--json", "FILE"], ["smoke", "--json", "FILE"]),
        (["reset", "--shared-words", "FILE"], ["reset"]),
    ],
)
def test_a_command_takes_what_it_knows(
    parser: argparse.ArgumentParser, argv: list[str], expected: list[str]
) -> None:
    assert own_words(parser, argv) == expected


def test_word_that_no_command_knows_names_the_nearest(parser: argparse.ArgumentParser) -> None:
    with pytest.raises(UsageError, match="--jbos") as caught:
        own_words(parser, ["smoke", "--shared-words", "--jbos", "3"])
    assert caught.value.hint == "did you mean --jobs?"
