"""The import rule: the runtime stands alone, and the build side leans on nothing but the runtime."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

ALLOWED = {
    "opencoti": {"opencoti"},
    "ci": {"ci", "opencoti"},
    "release": {"release", "ci", "opencoti"},
    "perf": {"perf", "ci", "opencoti"},
}
OURS = set(ALLOWED)


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").split(".")[0]


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_package_imports_only_what_the_rule_allows(package: str) -> None:
    for path in sorted((ROOT / package).rglob("*.py")):
        breach = (set(imported(path)) & OURS) - ALLOWED[package]
        assert not breach, f"{path} imports {breach}"


def test_noxfile_imports_nothing_of_ours() -> None:
    assert not set(imported(ROOT / "noxfile.py")) & OURS


def test_errors_module_imports_nothing_of_ours() -> None:
    assert not set(imported(ROOT / "opencoti" / "errors.py")) & OURS


def test_importing_the_runtime_loads_nothing_heavy() -> None:
    heavy = ("httpx", "pydantic", "rich", "cryptography")
    code = f"import sys, opencoti; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_module_is_named_like_the_standard_library() -> None:
    names = {path.stem for package in ALLOWED for path in (ROOT / package).glob("*.py")}
    assert not (names - {"__init__", "__main__", "cli"}) & (sys.stdlib_module_names - {"platform"})
