"""What `images`, `build` and `package` answer to names that are none, and to a table that cannot be read."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from ci import build_cli
from ci.context import Context
from ci.engines.client import EngineClient
from ci.package import backends
from ci.paths import Layout
from ci.toolchains import cli
from ci.toolchains.recipe import Recipe
from opencoti.errors import ConfigError, MissingError, UsageError
from tests.conftest import RecordedConsole


@pytest.fixture
def context(layout: Layout, real_layout: Layout, recorded: RecordedConsole) -> Context:
    shutil.copytree(real_layout.containers, layout.containers)
    return Context(layout=layout, console=recorded.console)


def parse(module: object, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers()
    module.register(subparsers, argparse.ArgumentParser(add_help=False))  # type: ignore[attr-defined]
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("vulkn", "did you mean vulkan?"), ("../containers/zig", "toolchains are"), ("", "toolchains are")],
)
def test_an_image_that_there_is_not_is_refused_before_anything_is_asked(
    name: str, hint: str, context: Context
) -> None:
    with pytest.raises(UsageError) as caught:
        cli.run_images(parse(cli, "images", "zig", name), context)
    assert caught.value.error_id == "image-unknown"
    assert hint in caught.value.hint


@pytest.mark.parametrize("text", ["[cpu", "x = 3", "\x00"])
def test_a_table_that_cannot_be_read_is_told_as_such_by_build(text: str, context: Context) -> None:
    Path(context.layout.table).write_text(text)
    with pytest.raises(ConfigError) as caught:
        build_cli.run_build(parse(build_cli, "build", "cuda13"), context)
    assert caught.value.error_id == "table-malformed"


def test_names_are_not_refused_while_none_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "KNOWN", ())
    assert backends.parse_backends("cpu,vulkan") == ("cpu", "vulkan")


def test_no_device_is_not_every_device(context: Context) -> None:
    """case B13"""
    with pytest.raises(UsageError) as caught:
        build_cli.run_build(parse(build_cli, "build", "cuda13", "--arch", "x86_64", "--archs", ","), context)
    assert caught.value.error_id == "targets-empty"


@dataclass
class Handled:
    """Stands for what is done with an image: the named ones cannot be had."""

    failing: dict[str, str]

    def __call__(self, recipe: Recipe, *_: object) -> dict[str, object]:
        if error_id := self.failing.get(recipe.name):
            raise MissingError(error_id, f"no {recipe.name}")
        return {"name": recipe.name}


@pytest.mark.parametrize(
    ("words", "error_id", "handled"),
    [
        ([], "image-not-built", ["gcc", "zig"]),
        ([], "archive-unreachable", ["gcc", "zig"]),
        ([], "docker-lost", None),
        (["cosmocc", "gcc", "zig"], "image-not-built", None),
    ],
)
def test_an_image_that_nobody_named_does_not_keep_the_others_back(
    words: list[str],
    error_id: str,
    handled: list[str] | None,
    context: Context,
    recorded: RecordedConsole,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli, "_handle", Handled({"cosmocc": error_id}))
    recipes = [Recipe.load(context.layout.containers / name) for name in ("cosmocc", "gcc", "zig")]
    args = parse(cli, "images", *words)
    if handled is None:
        with pytest.raises(MissingError):
            cli._handle_all(recipes, args, context, cast(EngineClient, None))
        return
    rows, failures = cli._handle_all(recipes, args, context, cast(EngineClient, None))
    assert [row["name"] for row in rows] == handled
    assert [error.error_id for error in failures] == [error_id]
    assert "cosmocc is left out: no cosmocc" in recorded.text
