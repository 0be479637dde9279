"""Pages from docstrings: every public name of a small package is there, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.docs_api import api_pages, render_docstring
from tests.conftest import ROOT

INIT = '''"""What the package is. With a dot.

More of it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opencoti.sample.thing import Options, Thing, make

__all__ = ["Options", "Thing", "make"]
'''
THING = '''"""Things."""


class Thing:
    """A thing.

    Args:
        size: how large it is,
            in bytes.
        name: how it is called.
    """

    def __init__(
        self,
        size: int,
        *,
        name: str = "x",
        a_long_name_of_an_argument: dict[str, list[int]] | None = None,
    ) -> None:
        self.size = size

    @property
    def area(self) -> int:
        """Return its area."""
        return self.size

    @classmethod
    def load(cls, path: str) -> "Thing":
        """Read one."""
        return cls(len(path))

    def _hidden(self) -> None:
        """Do nothing."""

    def undocumented(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options."""

    depth: int = 3
    _secret: int = 0


async def make(thing: Thing, /, *more: Thing) -> None:
    """Make it.

    Raises:
        UsageError: `too-small`.
    """


def helper() -> None:
    """Help."""
'''


@pytest.fixture
def page(tmp_path: Path) -> str:
    folder = tmp_path / "opencoti" / "sample"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(INIT)
    (folder / "thing.py").write_text(THING)
    private = tmp_path / "opencoti" / "private"
    private.mkdir()
    (private / "__init__.py").write_text('"""Nothing public."""\n')
    pages = api_pages(tmp_path)
    reference = tmp_path / "docs" / "reference" / "api"
    assert set(pages) == {reference / "index.md", reference / "sample.md"}
    assert (
        "| [opencoti.sample](sample.md) | What the package is. With a dot |" in pages[reference / "index.md"]
    )
    return pages[reference / "sample.md"]


def test_public_names_and_members_are_there_and_no_others(page: str) -> None:
    heads = [line for line in page.splitlines() if line.startswith("#")]
    assert heads == [
        *("# opencoti.sample", "## Options", "## Thing", "### Thing.area", "### Thing.load", "## make")
    ]


def test_signatures_are_those_of_a_caller(page: str) -> None:
    assert "class Options(\n    *,\n    depth: int = 3,\n)" in page
    assert "    size: int,\n    *,\n    name: str = 'x',\n    a_long_name_of_an_argument: dict" in page
    assert "area: int\n" in page
    assert "@classmethod\ndef load(path: str) -> 'Thing'" in page
    assert "async def make(thing: Thing, /, *more: Thing) -> None" in page


def test_sections_become_lists_whose_items_may_have_several_lines(page: str) -> None:
    assert "**Args**\n\n- `size`: how large it is,\n  in bytes.\n- `name`: how it is called." in page
    assert "**Raises**\n\n- `UsageError`: `too-small`." in page


def test_text_that_is_no_section_stays_as_it_is() -> None:
    assert render_docstring("One.\n\nNote: that.\nAnd more.") == "One.\n\nNote: that.\nAnd more."


def test_runtime_has_a_page_for_each_of_its_interfaces() -> None:
    names = {path.stem for path in api_pages(ROOT)}
    assert {"client", "embedder", "launch", "tier", "index"} <= names
