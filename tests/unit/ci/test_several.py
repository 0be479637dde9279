"""Several backends at the same time: what each is asked for, and what their ends come to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from ci.backend_records import read_built
from ci.build import BuildOptions
from ci.context import Context
from ci.engines.parallel import Ended
from ci.several import build_several, share_targets
from ci.toolchains.table import Table, load_table
from opencoti.errors import OpencotiError, UsageError
from tests.conftest import RecordedConsole

OPTIONS = BuildOptions(engine="host", toolchain="zig", jobs=2, arch="x86_64")
ALL = ("cpu", "vulkan", "cuda13", "cuda12", "rocm")
FAILURE = json.dumps(
    {"error": "build-failed", "exit_code": 6, "what": "it broke", "why": "a bolt", "hint": ""}
)


@dataclass
class Builds:
    """Stands for the commands: each ends as `ends` says, with success if it says nothing."""

    ends: Mapping[str, Ended] = field(default_factory=dict)
    commands: dict[str, Sequence[str]] = field(default_factory=dict)

    def __call__(
        self, commands: Mapping[str, Sequence[str]], options: BuildOptions, context: Context
    ) -> Mapping[str, Ended]:
        self.commands = dict(commands)
        return {name: self.ends.get(name) or Ended(code=0, output=row(name)) for name in commands}


def row(name: str) -> bytes:
    return json.dumps({"backends": [{"backend": name, "folder": f"dist/{name}"}], "skipped": {}}).encode()


@pytest.fixture
def table(context: Context) -> Table:
    return load_table(context.layout.table)


def after(words: Sequence[str], option: str) -> str | None:
    return words[words.index(option) + 1] if option in words else None


def test_each_backend_is_asked_for_the_devices_that_it_knows(context: Context) -> None:
    builds = Builds()
    done = build_several(
        context,
        ALL,
        BuildOptions(engine="host", toolchain="zig", jobs=2, arch="x86_64", archs=("90", "gfx1100", "120f")),
        may_skip=True,
        run=builds,
    )
    asked = {name: after(words, "--archs") for name, words in builds.commands.items()}
    assert asked == {
        "cpu": None,
        "vulkan": None,
        "cuda13": "90,120f",
        "cuda12": "90",
        "rocm": "gfx1100",
    }
    assert [item["backend"] for item in done.rows] == list(ALL)
    assert not done.skipped


@pytest.mark.parametrize(
    ("archs", "bad"), [(("75", "57"), "57"), (("error: no device",), "error: no"), ((), "names no device")]
)
def test_a_device_of_no_backend_stops_everything(archs: tuple[str, ...], bad: str, table: Table) -> None:
    """case B13"""
    with pytest.raises(UsageError, match=bad) as caught:
        share_targets(table.backends, "x86_64", archs)
    assert caught.value.error_id == "target-unshared"


def test_a_backend_without_any_of_the_devices_is_skipped_or_refused(context: Context) -> None:
    options = BuildOptions(engine="host", toolchain="zig", jobs=2, arch="x86_64", archs=("75",))
    done = build_several(context, ALL, options, may_skip=True, run=Builds())
    assert dict(done.skipped) == {"rocm": "--archs 75 names none of its devices"}
    with pytest.raises(UsageError) as caught:
        build_several(context, ("vulkan", "rocm", "cuda13"), options, may_skip=False, run=Builds())
    assert caught.value.error_id == "targets-not-shared"


def test_a_backend_that_fails_is_told_and_remembered(context: Context, recorded: RecordedConsole) -> None:
    builds = Builds({"cuda13": Ended(code=6, output=FAILURE.encode()), "rocm": Ended(code=-9, output=b"")})
    done = build_several(context, ALL, OPTIONS, may_skip=True, run=builds)
    assert [item["backend"] for item in done.rows] == ["cpu", "vulkan", "cuda12"]
    assert dict(done.skipped) == {
        "cuda13": "it broke: a bolt",
        "rocm": "its build was ended by signal 9",
    }
    assert "backend cuda13 is skipped: it broke: a bolt" in recorded.text
    version = next((context.layout.dist / "backends" / "rocm").iterdir()).name.removesuffix(".skipped.json")
    _, reasons = read_built(context, load_table(context.layout.table), version, arch="x86_64", tree=None)
    assert reasons["rocm"] == "its build was ended by signal 9"
    assert reasons["vulkan"] == "it was not built"


@pytest.mark.parametrize(
    ("names", "failing", "may_skip", "error_id"),
    [
        (ALL, ("vulkan", "cuda13", "cuda12", "rocm"), True, "no-backend-built"),
        (ALL, ("cpu",), True, "backends-failed"),
        (("cpu", "vulkan"), ("vulkan",), False, "backends-failed"),
    ],
)
def test_what_must_be_there_and_is_not_ends_the_command(
    names: tuple[str, ...], failing: tuple[str, ...], may_skip: bool, error_id: str, context: Context
) -> None:
    builds = Builds({name: Ended(code=1, output=b"no JSON") for name in failing})
    with pytest.raises(OpencotiError, match="its build ended with exit code 1") as caught:
        build_several(context, names, OPTIONS, may_skip=may_skip, run=builds)
    assert (caught.value.error_id, caught.value.exit_code) == (error_id, 5)


def test_options_reach_every_command(context: Context) -> None:
    builds = Builds()
    options = BuildOptions(
        engine="docker", toolchain="system", jobs=1, use_cache=False, arch="x86_64", has_flash_attention=False
    )
    build_several(context, ("cpu", "cuda13"), options, may_skip=False, run=builds)
    for name, words in builds.commands.items():
        assert words[1:5] == ("-m", "ci", "build", name)
        assert {"--json", "--no-cache", "--no-fa"} <= set(words)
        assert (after(words, "--engine"), after(words, "--toolchain")) == ("docker", "system")
