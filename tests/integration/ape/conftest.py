"""What the tests of the ape lane need: the cross gcc, ccache, and a checkout of their own."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest

from ci.context import Context
from ci.engines.compiler_cache import OFF_VARIABLE, find_ccache
from ci.patches.apply import apply
from ci.paths import Layout
from opencoti.console import Console
from tests.conftest import RecordedConsole, require
from tests.fakes.ape_checkout import ApeCheckout, make_ape_checkout


@pytest.fixture(autouse=True)
def _tools(monkeypatch: pytest.MonkeyPatch) -> None:
    for program in ("aarch64-linux-gnu-gcc", "gcc", "g++", "make", "patch"):
        require(shutil.which(program) is not None, f"{program} is not installed")
    require(bool(find_ccache()), "ccache is not installed")
    monkeypatch.delenv(OFF_VARIABLE, raising=False)
    monkeypatch.delenv("OPENCOTI_LANE", raising=False)


@pytest.fixture
def context(layout: Layout, recorded: RecordedConsole) -> Context:
    return Context(layout=layout, console=recorded.console)


@pytest.fixture
def checkout(context: Context) -> ApeCheckout:
    return make_ape_checkout(context)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A checkout with the series applied; tests get copies."""
    folder = tmp_path_factory.mktemp("template")
    layout = Layout(root=folder / "checkout", cache=folder / "cache")
    context = Context(layout=layout, console=Console(quiet=True, stderr=io.StringIO()))
    make_ape_checkout(context)
    apply(layout, context.console, lane="ape")
    return layout


@pytest.fixture
def applied(template: Layout, context: Context) -> ApeCheckout:
    """A checkout with the series applied."""
    shutil.copytree(template.root, context.layout.root, dirs_exist_ok=True, symlinks=True)
    return ApeCheckout(context)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home folder, with what earlier builds by hand left in it."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder
