"""The generated pages are fresh, and error ids are what they promise to be."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

from ci.docs import pages, raised_errors
from ci.paths import Layout
from tests.conftest import ROOT


def test_generated_pages_are_fresh(real_layout: Layout) -> None:
    # argparse words its help differently from one Python to the next; the page is written by 3.11.
    unfit = {"commands.md"} if sys.version_info[:2] != (3, 11) else set()
    stale = [
        str(path)
        for path, text in pages(real_layout).items()
        if path.name not in unfit and path.read_text() != text
    ]
    assert not stale, "run ./noxw -s docs"


def test_one_id_has_one_exit_code() -> None:
    codes: dict[str, set[int]] = defaultdict(set)
    for error in raised_errors(ROOT):
        codes[error.error_id].add(error.exit_code)
    assert len(codes) > 100
    assert {name: found for name, found in codes.items() if len(found) > 1} == {}


def test_ids_are_kebab_case() -> None:
    wrong = [
        e.error_id for e in raised_errors(ROOT) if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", e.error_id)
    ]
    assert not wrong


def test_links_between_pages_lead_somewhere() -> None:
    pages_to_check = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    links = [
        (page, target)
        for page in pages_to_check
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text())
    ]
    broken = [
        f"{page.name}: {target}"
        for page, target in links
        if "://" not in target and not (page.parent / Path(target)).exists()
    ]
    assert not broken
