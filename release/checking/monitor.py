"""The scheduled look at what was released: is it still there, still the same, still fresh, still buildable.

Every check runs, whatever the others found; the report says all of it, `opencoti.monitor/1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypeVar

from opencoti.console import Console
from opencoti.errors import OpencotiError, VerificationError
from opencoti.fetch.addresses import latest_url
from opencoti.fetch.documents import Reader
from opencoti.fetch.download import Tools
from opencoti.fetch.settings import Limits
from opencoti.fetch.source import HttpSource
from opencoti.index import load_index
from opencoti.trust.chain import TrustedRoot
from opencoti.trust.comment import INDEX_NAME
from release.checking.images import ImageEntry
from release.checking.published import Listed, check_files, check_manifests, check_sizes, read_listed
from release.checking.registry import Registry
from release.checking.remote_files import RemoteFiles

SCHEMA = "opencoti.monitor/1"
State = Literal["ok", "warn", "failed"]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class MonitorRequest:
    """What to look at. `tag` None is the newest release; `is_quick` asks for sizes instead of all bytes."""

    repo: str
    base_url: str
    tag: str | None = None
    is_quick: bool = False
    warn_days: int = 30
    images: tuple[ImageEntry, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The outcome of one check."""

    name: str
    subject: str
    state: State
    detail: str
    error: OpencotiError | None = None

    def as_dict(self) -> dict[str, object]:
        """Return it as data."""
        return {
            "name": self.name,
            "subject": self.subject,
            "state": self.state,
            "detail": self.detail,
            "error": None if self.error is None else self.error.as_dict(),
        }


@dataclass(frozen=True, kw_only=True)
class MonitorReport:
    """All findings."""

    request: MonitorRequest
    checked: str
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """0, or the code of the gravest failure: bytes that differ, then what is gone, then the network."""
        codes = {item.error.exit_code for item in self.findings if item.error is not None}
        return next((code for code in (6, 4, 3, 7) if code in codes), min(codes, default=0))

    def as_dict(self) -> dict[str, object]:
        """Return it as data."""
        return {
            "schema": SCHEMA,
            "checked": self.checked,
            "repo": self.request.repo,
            "from": self.request.base_url,
            "isGood": self.exit_code == 0,
            "findings": [item.as_dict() for item in self.findings],
        }

    def text(self) -> str:
        """Return it for people."""
        return "\n".join(f"{f.state:<7} {f.name} {f.subject}: {f.detail}" for f in self.findings)


class Monitor:
    """One look. The outside comes in as arguments."""

    def __init__(
        self,
        request: MonitorRequest,
        *,
        root: TrustedRoot,
        now: datetime,
        tools: Tools,
        limits: Limits,
        console: Console,
    ) -> None:
        self._request = request
        self._root = root
        self._now = now
        self._tools = tools
        self._limits = limits
        self._console = console

    def findings(self, registry: Registry) -> Sequence[Finding]:
        """Run every check."""
        found = [*self._release(), *(self._image(registry, entry) for entry in self._request.images)]
        return tuple(found)

    def _release(self) -> Iterator[Finding]:
        try:
            tag = self._request.tag or self._newest_tag()
            files = self._files(tag)
            # Being expired is a finding of its own, and no reason to leave the others out.
            listed = read_listed(
                files, repo=self._request.repo, tag=tag, root=self._root, now=self._now, on_expired="warn"
            )
        except OpencotiError as error:
            subject = self._request.tag or "latest"
            yield Finding(name="release", subject=subject, state="failed", detail=str(error), error=error)
            return
        yield Finding(
            name="release", subject=tag, state="ok", detail=f"signed, number {listed.index.sequence}"
        )
        yield self._freshness(listed)
        yield _run(
            "manifests",
            tag,
            lambda: check_manifests(files, listed, repo=self._request.repo, root=self._root),
            lambda count: f"{count} are signed and as the index says",
        )
        check = (
            (lambda: check_sizes(files, listed))
            if self._request.is_quick
            else (lambda: check_files(files, listed, self._console))
        )
        how = "are there" if self._request.is_quick else "have the released bytes"
        yield _run("assets", tag, check, lambda done: f"{len(done)} {how}")

    def _newest_tag(self) -> str:
        """Return the tag that the newest index names; its signature is checked where the tag is asked for."""
        url = latest_url(self._request.base_url, self._request.repo, INDEX_NAME)
        reader = Reader(self._tools, self._limits, self._console)
        return load_index(reader.read(HttpSource(url=url)), url).tag

    def _files(self, tag: str) -> RemoteFiles:
        return RemoteFiles(
            self._request.base_url,
            self._request.repo,
            tag,
            tools=self._tools,
            limits=self._limits,
            console=self._console,
        )

    def _freshness(self, listed: Listed) -> Finding:
        left = listed.index.expires_at - self._now
        detail = f"expires {listed.index.expires}"
        if left <= timedelta(0):
            error = VerificationError(
                "release-expired",
                f"release {listed.index.tag} has expired",
                why=detail,
                hint="cut a new release: clients refuse this one",
            )
            return Finding(
                name="expiry", subject=listed.index.tag, state="failed", detail=detail, error=error
            )
        state: State = "warn" if left < timedelta(days=self._request.warn_days) else "ok"
        return Finding(
            name="expiry", subject=listed.index.tag, state=state, detail=f"{detail}, in {left.days} days"
        )

    def _image(self, registry: Registry, entry: ImageEntry) -> Finding:
        return _run(
            "image",
            str(entry),
            lambda: registry.look(entry),
            lambda found: f"can be pulled: {found.blob_count} blobs, {found.size} bytes",
        )


def _run(name: str, subject: str, check: Callable[[], T], describe: Callable[[T], str]) -> Finding:
    try:
        result = check()
    except OpencotiError as error:
        return Finding(name=name, subject=subject, state="failed", detail=str(error), error=error)
    return Finding(name=name, subject=subject, state="ok", detail=describe(result))
