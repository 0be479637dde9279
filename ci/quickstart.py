"""The main job in one command: from the pin to an engine that answered, in the user's cache.

`run` is the command's function; its parser is in `ci/build_cli.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ci import process
from ci.build import BuildOptions, build_cpu, prepare_source
from ci.context import Context
from ci.package.artifact import Packaged
from ci.package.command import PackageOptions, package
from ci.paths import Layout
from ci.repository import repository_facts
from opencoti.errors import BuildError, OpencotiError
from opencoti.files import write_atomic

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Duration of each step in seconds, in order."""

    steps: dict[str, float] = field(default_factory=dict)

    def measure(self, name: str, action: Callable[[], T]) -> T:
        """Run a step and note how long it took."""
        started = time.monotonic()
        result = action()
        self.steps[name] = time.monotonic() - started
        return result

    def table(self) -> str:
        """Render the steps as lines of text."""
        return "\n".join(f"  {name:<10} {seconds:8.1f} s" for name, seconds in self.steps.items())


@dataclass(frozen=True, kw_only=True)
class QuickstartResult:
    """What came out of it."""

    artifact: Path
    manifest: Path
    fetched: Path
    sha256: str
    size: int
    timings: Timings


def quickstart(context: Context, options: BuildOptions) -> QuickstartResult:
    """Vendor, apply, build, package, verify, smoke and fetch; each step says when it had nothing to do."""
    from ci.smoke.command import prove
    from ci.verify.command import verify_packaged

    console, timings = context.console, Timings()
    repository_facts(context.layout.root)  # the manifest needs a commit: told before minutes of compiling
    with console.group("vendor, apply"):
        timings.measure("source", lambda: prepare_source(context))
    with console.group("build_cpu"):
        built = timings.measure("build_cpu", lambda: build_cpu(context, options))
    with console.group("package"):
        packaged = timings.measure(
            "package", lambda: package(context, built, PackageOptions(is_cpu_only=True))
        )
    with console.group("verify"):
        timings.measure("verify", lambda: verify_packaged(packaged.artifact, packaged.manifest, console))
    with console.group("smoke"):
        timings.measure("smoke", lambda: prove(context, packaged.artifact, allow_reuse=True))
    with console.group("fetch"):
        fetched = timings.measure("fetch", lambda: _fetch(packaged))
    console.info(timings.table())
    return QuickstartResult(
        artifact=packaged.artifact,
        manifest=packaged.manifest,
        fetched=fetched,
        sha256=packaged.sha256,
        size=packaged.size,
        timings=timings,
    )


def _fetch(packaged: Packaged) -> Path:
    """Hand the artifact over the way a user gets it: the real client, with a `file:` pin."""
    pin = packaged.artifact.with_name(packaged.artifact.name + ".pin")
    tag = packaged.artifact.name.rsplit("-linux-", 1)[0]
    line = f"file:{packaged.artifact} {tag} {packaged.artifact.name} {packaged.sha256}\n"
    write_atomic(pin, line.encode())
    done = process.run(
        [sys.executable, "-m", "opencoti.fetch", "get", "--json", "--pin", pin], cwd=Layout.find().root
    )
    if not done.is_ok:
        raise client_error(done)
    return Path(json.loads(done.stdout)["path"])


def client_error(done: process.Completed) -> OpencotiError:
    """Make the client's own error, its exit code included, from what it printed with `--json`."""
    try:
        told = json.loads(done.stdout)
        kinds = {kind.exit_code: kind for kind in OpencotiError.__subclasses__()}
        return kinds[told["exit_code"]](told["error"], told["what"], why=told["why"], hint=told["hint"])
    except (ValueError, KeyError, TypeError):
        lines = done.error_text.splitlines() or [f"exit code {done.code}"]
        return BuildError(
            "quickstart-fetch", "the client could not fetch the new artifact", why=lines[-1][:300]
        )


def run(args: argparse.Namespace, context: Context) -> int:
    """Do it all and print the path of the fetched engine."""
    from ci.build_cli import options_of

    done = quickstart(context, options_of(args))
    context.console.info(f"artifact: {done.artifact} ({done.size / 1e6:.1f} MB, sha256 {done.sha256})")
    context.console.info(f"try it:   {done.fetched} -m MODEL.gguf --port 8080")
    context.console.result(
        str(done.fetched),
        {
            "artifact": str(done.artifact),
            "manifest": str(done.manifest),
            "fetched": str(done.fetched),
            "sha256": done.sha256,
            "size": done.size,
            "seconds": {name: round(value, 2) for name, value in done.timings.steps.items()},
        },
    )
    return 0
