"""The tutorial and the how-to for programs say what is so: what they tell to run is run as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise

import pytest

from ci.paths import Layout
from tests.conftest import ROOT
from tests.integration.launch.conftest import Bench
from tests.integration.launch.real import real_options

pytestmark = pytest.mark.engine

BLOCK = re.compile(r"```(sh|python)\n(.*?)```", re.DOTALL)
NAMED = re.compile(r"Save this as `(\w+\.py)`:\s*\Z")
PYTHON = ".nox/pipeline/bin/python"
# The tiny model does not know when to end.
SHORT = 'LaunchOptions(arguments=("--predict", "16"), model=Path("my-model.gguf")'


class Reader:
    """Somebody who does what a page says, in a folder with a model and in a home of their own."""

    def __init__(self, bench: Bench, layout: Layout) -> None:
        options = real_options(layout)
        assert options.model is not None
        self.folder = bench.root
        models = self.folder / ".cache" / "opencoti-build" / "models"
        models.mkdir(parents=True)
        (models / options.model.name).symlink_to(options.model)
        (self.folder / "my-model.gguf").symlink_to(options.model)
        self.environ = {
            **bench.environ,
            "PYTHONPATH": str(ROOT),
            "OPENCOTI_LLAMAFILE_LOCAL": str(options.binary),
        }

    def run(self, *argv: str) -> str:
        done = subprocess.run(
            argv, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def python(self, program: str) -> str:
        return self.run(sys.executable, "-W", "error", "-c", program)


@pytest.fixture
def reader(bench: Bench, real_layout: Layout) -> Reader:
    return Reader(bench, real_layout)


def blocks_of(name: str) -> list[tuple[str, str, str]]:
    """Return kind, text and what stands before it, of each block that is meant to be run."""
    page = (ROOT / "docs" / name).read_text()
    return [(found[1], found[2], page[: found.start()]) for found in BLOCK.finditer(page)]


def test_tutorial_leads_from_an_engine_to_an_answer_and_leaves_nothing(reader: Reader, bench: Bench) -> None:
    shell: list[str] = ["set -eu"]
    for kind, text, before in blocks_of("tutorial/first-answer.md"):
        if kind == "sh":
            shell.append(text.replace(PYTHON, sys.executable))
        else:
            named = NAMED.search(before)
            assert named is not None, "a program of the tutorial has no name"
            (reader.folder / named[1]).write_text(text)
    out = reader.run("sh", "-c", "\n".join(shell))
    assert re.search(r"^engine  ready  http://127\.0\.0\.1:\d+  tiny-", out, re.MULTILINE)
    assert re.search(r"^-- (length|stop) \d+ tokens$", out, re.MULTILINE)
    counts = re.findall(r"(\d+) tokens were there, (\d+) were computed", out)
    assert len(counts) == 3
    for (before_n, new_n), (there_n, _) in pairwise([tuple(map(int, pair)) for pair in counts]):
        assert there_n >= before_n + new_n, "the prompt of the turn before was computed again"
    assert out.endswith("engine: stopped\nno engine\n")
    bench.require_nothing_left()


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, r".+"),
        (1, r".+"),
        (2, r"stopped\n.+"),
        (3, r"my-model\.gguf \d+\n"),
        (4, r"2 vectors of 64 numbers, pooled by last\n"),
        (5, r".*\d+ tokens reused, \d+ computed\n"),
    ],
    ids=["launch", "asyncio", "tier", "tiers", "embedder", "session"],
)
def test_programs_of_the_how_to_run_as_they_stand(
    reader: Reader, bench: Bench, number: int, said: str
) -> None:
    programs = [text for kind, text, _ in blocks_of("how-to/embed-in-a-program.md") if kind == "python"]
    assert len(programs) == 6
    program = programs[number].replace('LaunchOptions(model=Path("my-model.gguf")', SHORT)
    out = reader.python(program)
    assert re.fullmatch(said, out, re.DOTALL), out
    reader.run(sys.executable, "-m", "opencoti.launch", "stop", "--all")
    bench.require_nothing_left()
