"""The check after publishing: the real client fetches from the real addresses, then all is compared."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from opencoti.console import Console
from opencoti.errors import MissingError, NetworkError
from opencoti.fetch.download import Tools
from opencoti.fetch.get import Fetched, fetch, open_real
from opencoti.fetch.release import ReleaseWish, Resolver, Trust
from opencoti.fetch.settings import Settings
from release.checking.published import (
    CheckedFile,
    Listed,
    check_files,
    check_manifests,
    compare_with_folder,
    read_listed,
)
from release.checking.remote_files import RemoteFiles
from release.checking.waiting import Deadline, until


@dataclass(frozen=True, kw_only=True)
class CheckRequest:
    """What to check.

    Attributes:
        folder: what was published, to compare with.
        must_be_latest: clients that ask for the newest release must get this one.
        allow_trial: start the fetched engine once.
    """

    repo: str
    tag: str
    base_url: str
    folder: Path | None = None
    must_be_latest: bool = False
    allow_trial: bool = True


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """A release that clients get as it was meant. `fetched` is None where nothing in it is for this host."""

    request: CheckRequest
    sequence: int
    fetched: Fetched | None
    files: tuple[CheckedFile, ...]
    manifest_count: int
    compared_count: int

    def as_dict(self) -> dict[str, object]:
        """Return it as data."""
        return {
            "repo": self.request.repo,
            "tag": self.request.tag,
            "from": self.request.base_url,
            "sequence": self.sequence,
            "client": None if self.fetched is None else _fetched_dict(self.fetched),
            "manifests": self.manifest_count,
            "comparedWithFolder": self.compared_count,
            "assets": [{"name": f.name, "size": f.size, "sha256": f.sha256} for f in self.files],
        }


def check_release(
    request: CheckRequest, trust: Trust, settings: Settings, console: Console, deadline: Deadline
) -> CheckReport:
    """Check a published release.

    Args:
        request: which one.
        trust: the root that clients start from. Its memory is not used: an empty one is made.
        settings: patience; the cache of it is not used either.
        console: told about progress.
        deadline: how long a release may take to show up.

    Raises:
        VerificationError: as `opencoti.policy` and `published`; what a client would refuse.
        NetworkError: it did not show up in time; `release-not-latest`.
        StorageError: no room for the file of this host.
    """
    settings = replace(settings, base_url=request.base_url)
    with (
        open_real(settings.limits) as tools,
        tempfile.TemporaryDirectory(prefix="opencoti-check-") as scratch,
    ):
        trust = replace(trust, folder=Path(scratch) / "trust")
        settings = replace(settings, artifacts=Path(scratch) / "artifacts", is_offline=False)
        files = _files(request, settings, console, tools)
        listed = until(lambda: _listed(request, trust, files, settings, console, tools), deadline, console)
        fetched = until(lambda: _run_client(request, trust, settings, console, tools), deadline, console)
        checked = until(lambda: check_files(files, listed, console), deadline, console)
        manifests = until(
            lambda: check_manifests(files, listed, repo=request.repo, root=trust.anchor), deadline, console
        )
        compared = 0
        if request.folder is not None:
            compared = compare_with_folder(files, listed, request.folder)
    return CheckReport(
        request=request,
        sequence=listed.index.sequence,
        fetched=fetched,
        files=checked,
        manifest_count=manifests,
        compared_count=compared,
    )


def _files(request: CheckRequest, settings: Settings, console: Console, tools: Tools) -> RemoteFiles:
    return RemoteFiles(
        request.base_url, request.repo, request.tag, tools=tools, limits=settings.limits, console=console
    )


def _listed(
    request: CheckRequest,
    trust: Trust,
    files: RemoteFiles,
    settings: Settings,
    console: Console,
    tools: Tools,
) -> Listed:
    listed = read_listed(files, repo=request.repo, tag=request.tag, root=trust.anchor, now=trust.now())
    if request.must_be_latest:
        _require_latest(request, listed, settings, console, tools)
    return listed


def _require_latest(
    request: CheckRequest, listed: Listed, settings: Settings, console: Console, tools: Tools
) -> None:
    from opencoti.fetch.addresses import latest_url
    from opencoti.fetch.documents import Reader
    from opencoti.fetch.source import HttpSource
    from opencoti.trust.comment import INDEX_NAME

    url = latest_url(request.base_url, request.repo, INDEX_NAME)
    if Reader(tools, settings.limits, console).read(HttpSource(url=url)) != listed.verified.data:
        raise NetworkError(
            "release-not-latest",
            f"{url} is not the index of {request.tag}",
            why="clients that ask for the newest release get another one",
            hint="wait, or mark the release as the latest one",
        )


def _run_client(
    request: CheckRequest, trust: Trust, settings: Settings, console: Console, tools: Tools
) -> Fetched | None:
    """Fetch as `python -m opencoti.fetch get --tag` does, into an empty cache, with no memory."""
    wish = ReleaseWish(repository=request.repo, tag=request.tag)
    try:
        resolved = Resolver(settings, trust, console, tools).resolve(wish)
    except MissingError as error:
        if error.error_id != "nothing-for-this-host":
            raise
        console.warn(f"the client cannot be tried on this machine: {error}")
        return None
    fetched = fetch(
        resolved.request,
        settings,
        console,
        allow_trial=request.allow_trial,
        find_chunks=resolved.find_blueprint,
    )
    resolved.remember()
    return fetched


def _fetched_dict(fetched: Fetched) -> dict[str, object]:
    # The path is gone with the scratch folder.
    return {
        "name": fetched.path.name,
        "sha256": fetched.sha256,
        "size": fetched.size,
        "transferredBytes": fetched.transferred_bytes,
        "seconds": round(fetched.seconds, 3),
    }
