"""Shared fixtures: a layout in a temporary folder, a console that records, and what CI must have."""

from __future__ import annotations

import io
import os
import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ci.context import Context
from ci.paths import Layout
from ci.toolchains.host import find_toolchain
from opencoti.console import Console
from opencoti.errors import NetworkError, OpencotiError

# What no package can bring: these may be missing in CI as well.
HARDWARE = ("this processor has no SHA instructions",)

ROOT = Path(__file__).resolve().parent.parent
IN_CI = os.environ.get("CI") == "true"

# A busy machine is no finding. Where CI is set, Hypothesis has a profile of its own, which this goes on from.
settings.register_profile(
    "opencoti", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("opencoti")

# A shell starts its background jobs without it, and programs inherit that: those here are to be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass
class RecordedConsole:
    """A real console whose two streams can be read back."""

    out: io.StringIO = field(default_factory=io.StringIO)
    err: io.StringIO = field(default_factory=io.StringIO)
    console: Console = field(init=False)

    def __post_init__(self) -> None:
        self.console = Console(stdout=self.out, stderr=self.err)

    @property
    def text(self) -> str:
        """Everything that went to standard error."""
        return self.err.getvalue()


@pytest.fixture
def recorded() -> RecordedConsole:
    return RecordedConsole()


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A checkout and a cache of their own, both empty."""
    root = tmp_path / "checkout"
    root.mkdir()
    return Layout(root=root, cache=tmp_path / "cache")


@pytest.fixture
def context(layout: Layout, real_layout: Layout, recorded: RecordedConsole) -> Context:
    """A checkout with the table, the pins and the tag of this one, and nothing built."""
    shutil.copytree(real_layout.containers, layout.containers)
    for folder in (real_layout.pins, real_layout.opencoti_tag.parent):
        target = layout.root / folder.relative_to(real_layout.root)
        shutil.copytree(folder, target)
    return Context(layout=layout, console=recorded.console)


@pytest.fixture(scope="session")
def real_layout() -> Layout:
    """This checkout, with the build cache of this user."""
    return Layout.find()


def require(condition: bool, reason: str) -> None:
    """Skip a test on a user's machine that lacks something; fail in CI, which must have it."""
    if not condition:
        if IN_CI:
            pytest.fail(f"CI must have this: {reason}")
        pytest.skip(reason)


@pytest.fixture(scope="session")
def zig() -> Path:
    """The zig compiler: OPENCOTI_TEST_ZIG, else the pinned one, unpacked into the build cache."""
    configured = os.environ.get("OPENCOTI_TEST_ZIG")
    if configured:
        return Path(configured)
    try:
        programs = find_toolchain("zig", Layout.find()).prepare(Console(quiet=True))
    except NetworkError as error:
        if IN_CI:
            raise
        pytest.skip(f"no zig and no network: set OPENCOTI_TEST_ZIG ({error})")
    return programs.parent / "zig" / "zig"


@pytest.fixture(scope="session")
def docker_daemon() -> None:
    """A container engine that answers."""
    from ci.engines.endpoint import find_endpoint, probe

    try:
        probe(find_endpoint())
        answers = True
    except OpencotiError:
        answers = False
    require(answers, "no container engine answers")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """In CI a skipped test counts as failed, whoever skipped it: it would prove nothing."""
    if not IN_CI:
        return
    skipped = terminalreporter.stats.get("skipped", [])
    unexpected = [report for report in skipped if not str(report.longrepr[2]).endswith(HARDWARE)]
    for report in unexpected:
        terminalreporter.write_line(f"FAILED (skipped in CI) {report.nodeid}: {report.longrepr[2]}", red=True)
    if unexpected and terminalreporter._session is not None:
        terminalreporter._session.exitstatus = pytest.ExitCode.TESTS_FAILED
