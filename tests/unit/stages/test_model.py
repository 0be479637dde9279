"""The key of a stage, and the placeholders in its words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ci.stages.model import Expansion, Step
from opencoti.errors import ConfigError
from tests.fakes.stages import STAGE


@pytest.mark.parametrize(
    "change",
    [
        {"name": "gpu"},
        {"toolchain": "other"},
        {"steps": (Step(title="compile", argv=("{tools}/cc", "{src}/a.c")),)},
        {"env": {}},
        {"source_tree": "3" * 40},
        {"inputs": {"hook": "4" * 64}},
        {"outputs": ("bin/*",)},
    ],
)
def test_the_key_changes_with_everything_that_products_depend_on(change: dict[str, Any]) -> None:
    assert replace(STAGE, **change).key("t") != STAGE.key("t")


def test_the_key_changes_with_the_toolchain_id_and_not_with_titles_and_limits() -> None:
    other_title = replace(STAGE, steps=(replace(STAGE.steps[0], title="x"),), memory_limit_mb=5, pids_limit=7)
    assert STAGE.key("t") != STAGE.key("u")
    assert other_title.key("t") == STAGE.key("t")


def test_only_the_four_placeholders_are_replaced() -> None:
    expansion = Expansion(src="/s", out="/o", tools="/t", jobs=3)
    assert expansion.expand("{src}:{out}:{tools}:{jobs}:${x}:{}:{source}") == "/s:/o:/t:3:${x}:{}:{source}"


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../b"])
def test_an_output_outside_the_build_folder_is_refused(path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(STAGE, outputs=(path,))
    assert caught.value.error_id == "stage-output-outside"
