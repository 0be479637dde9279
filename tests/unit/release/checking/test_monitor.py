"""The scheduled look: every check runs, and the exit code is that of the gravest finding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from opencoti.errors import MissingError, NetworkError, OpencotiError, VerificationError
from opencoti.fetch.download import Tools
from opencoti.fetch.settings import Limits
from opencoti.fetch.transport import HttpxTransport
from release.checking.images import ImageEntry
from release.checking.monitor import Finding, Monitor, MonitorReport, MonitorRequest
from release.checking.registry import Registry
from release.sums import render_sums
from tests.conftest import RecordedConsole
from tests.fakes.http_faults import FaultServer, serving
from tests.fakes.registry import serving_registry
from tests.fakes.releases import Publisher
from tests.integration.fetch.bench import CONTENT
from tests.unit.release.samples import NOW, REPO, TAG, VERSION, sign

NAME = "engine.llamafile"
DOWNLOAD = f"/{REPO}/releases/download/{TAG}"


@dataclass
class Site:
    """A release on a server, with its list of files."""

    server: FaultServer
    publisher: Publisher = field(default_factory=Publisher)

    def publish(self) -> None:
        files = self.publisher.publish({NAME: CONTENT})
        from opencoti.hashing import sha256_bytes

        names = [path.rpartition("/")[2] for path in files if path.startswith(DOWNLOAD)]
        listed = {
            name: sha256_bytes(files[f"{DOWNLOAD}/{name}"]) for name in names if not name.endswith(".minisig")
        }
        sums = render_sums(listed)
        comment = f"product=opencoti repo={REPO} tag={TAG} version={VERSION} file=SHA256SUMS"
        files[f"{DOWNLOAD}/SHA256SUMS"] = sums
        files[f"{DOWNLOAD}/SHA256SUMS.minisig"] = sign(sums, self.publisher.key, comment)
        self.server.files = files

    def look(
        self, *images: ImageEntry, now: datetime = NOW, is_quick: bool = False
    ) -> list[tuple[str, str, str | None]]:
        return [
            (item.name, item.state, item.error.error_id if item.error else None)
            for item in self.findings(*images, now=now, is_quick=is_quick)
        ]

    def findings(
        self, *images: ImageEntry, now: datetime = NOW, is_quick: bool = False
    ) -> tuple[Finding, ...]:
        request = MonitorRequest(
            repo=REPO, base_url=f"http://127.0.0.1:{self.server.port}", is_quick=is_quick, images=images
        )
        limits = Limits(timeout_s=30, tries=2)
        with HttpxTransport(timeout_s=30) as transport, Registry(timeout_s=30) as registry:
            monitor = Monitor(
                request,
                root=self.publisher.root(),
                now=now,
                tools=Tools(transport=transport, sleep=lambda _: None),
                limits=limits,
                console=RecordedConsole().console,
            )
            return tuple(monitor.findings(registry))


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(b"") as server:
        made = Site(server=server)
        made.publish()
        yield made


GOOD = [("release", "ok", None), ("expiry", "ok", None), ("manifests", "ok", None), ("assets", "ok", None)]


def test_good_release_is_good(site: Site) -> None:
    assert site.look() == GOOD
    assert site.look(is_quick=True) == GOOD


def test_release_that_expires_soon_is_a_warning_and_an_expired_one_a_failure(site: Site) -> None:
    soon, later = datetime(2026, 8, 20, tzinfo=UTC), datetime(2026, 9, 1, tzinfo=UTC)
    assert site.look(now=soon)[1] == ("expiry", "warn", None)
    expired = site.look(now=later)
    assert expired[1] == ("expiry", "failed", "release-expired")
    assert [state for _, state, _ in expired] == ["ok", "failed", "ok", "ok"]  # the others are looked at


def test_changed_and_missing_assets_are_found(site: Site) -> None:
    site.server.files[f"{DOWNLOAD}/{NAME}"] = CONTENT[:-1] + b"?"
    assert site.look()[3] == ("assets", "failed", "asset-differs")
    assert site.look(is_quick=True)[3] == ("assets", "ok", None)  # same size: that is what quick means
    site.server.files[f"{DOWNLOAD}/{NAME}"] = CONTENT[:-1]
    assert site.look(is_quick=True)[3] == ("assets", "failed", "asset-differs")
    del site.server.files[f"{DOWNLOAD}/{NAME}"]
    assert site.look(is_quick=True)[3] == ("assets", "failed", "not-found")


def test_list_that_lacks_what_the_index_names_is_found(site: Site) -> None:
    comment = f"product=opencoti repo={REPO} tag={TAG} version={VERSION} file=SHA256SUMS"
    sums = render_sums({"something": "0" * 64})
    site.server.files[f"{DOWNLOAD}/SHA256SUMS"] = sums
    site.server.files[f"{DOWNLOAD}/SHA256SUMS.minisig"] = sign(sums, site.publisher.key, comment)
    assert site.look() == [("release", "failed", "release-incomplete")]


def test_list_of_another_release_is_found(site: Site) -> None:
    comment = f"product=opencoti repo={REPO} tag=c0 version={VERSION} file=SHA256SUMS"
    sums = site.server.files[f"{DOWNLOAD}/SHA256SUMS"]
    site.server.files[f"{DOWNLOAD}/SHA256SUMS.minisig"] = sign(sums, site.publisher.key, comment)
    assert site.look() == [("release", "failed", "wrong-tag")]


def test_images_are_looked_for_whatever_the_release_is_like(site: Site) -> None:
    site.server.files = {"/another": b""}
    with serving_registry() as registry:
        there = ImageEntry(name="zig", reference=registry.reference, digest=registry.push(b"layer"))
        gone = ImageEntry(name="rocm", reference=registry.reference, digest="sha256:" + "0" * 64)
        assert site.look(there, gone) == [
            ("release", "failed", "not-found"), ("image", "ok", None), ("image", "failed", "image-gone"),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([], 0),
        ([NetworkError("a", "x")], 7),
        ([NetworkError("a", "x"), MissingError("b", "x")], 4),
        ([NetworkError("a", "x"), MissingError("b", "x"), VerificationError("c", "x")], 6),
    ],
)
def test_exit_code_is_that_of_the_gravest_finding(errors: list[OpencotiError], code: int) -> None:
    findings = [Finding(name="n", subject="s", state="failed", detail="d", error=error) for error in errors]
    good = Finding(name="n", subject="s", state="ok", detail="d")
    report = MonitorReport(
        request=MonitorRequest(repo=REPO, base_url="x"), checked="t", findings=(good, *findings)
    )
    assert (report.exit_code, report.as_dict()["isGood"]) == (code, code == 0)
