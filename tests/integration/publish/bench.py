"""One staged release, one fake GitHub, and runs of the publisher between them, without waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from opencoti.errors import OpencotiError
from opencoti.trust.keys import only_key
from release.publish import Options, Outcome, publish
from release.publish_candidate import Asked, Candidate, load_candidate
from release.remote.github import GitHubRemote
from release.remote.limits import Clock, Limits, Patience
from release.remote.model import Remote
from release.remote.settings import GitHubSettings
from tests.conftest import RecordedConsole
from tests.fakes.github.server import GitHub
from tests.fakes.github.state import FakeClock
from tests.fakes.staged_release import COMMIT, StagedRelease

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def candidate_of(staged: StagedRelease, **changes: object) -> Candidate:
    asked = Asked(
        **{
            "tag": staged.tag,
            "repo": None,
            "keys": only_key(staged.key.public, allow_development=True),
            "now": NOW,
            "is_github": True,
            **changes,
        }  # type: ignore[arg-type]
    )
    return load_candidate(staged.folder, asked)


def clock_of(fake: FakeClock) -> Clock:
    return Clock(monotonic=fake.monotonic, now=fake.now, sleep=fake.sleep)


@dataclass
class Bench:
    """Publishes `candidate` to `github`, as often as wanted."""

    candidate: Candidate
    github: GitHub
    limits: Limits = field(default_factory=Limits)
    stall_s: float = 20.0
    recorded: RecordedConsole = field(default_factory=RecordedConsole)

    def settings(self) -> GitHubSettings:
        environ = self.github.environ
        return GitHubSettings(
            token=environ["GITHUB_TOKEN"],
            api_url=environ["GITHUB_API_URL"],
            server_url=environ["GITHUB_SERVER_URL"],
            stall_s=self.stall_s,
            answer_s=self.stall_s,
        )

    def publish(
        self, options: Options | None = None, wrap: Callable[[Remote], Remote] = lambda r: r
    ) -> Outcome:
        clock = clock_of(self.github.clock)
        patience = Patience(console=self.recorded.console, limits=self.limits, clock=clock)
        with GitHubRemote(self.candidate.index.repo, self.settings(), clock) as remote:
            return publish(self.candidate, wrap(remote), options or Options(), patience)

    def outcome(self, options: Options | None = None) -> Outcome | OpencotiError:
        """Publish, and return an error as a value."""
        try:
            return self.publish(options)
        except OpencotiError as error:
            return error

    def check(self) -> None:
        """Whatever happened so far, nothing may be wrong."""
        assert self.github.shapes.breaches == [], self.github.shapes.breaches
        wanted = {file.name: file.sha256 for file in self.candidate.files}
        releases = [r for r in self.github.store.releases.values() if r.tag == self.candidate.tag]
        assert len(releases) <= 1, "duplicates"
        for asset in self.github.store.deleted:
            assert asset.state != "uploaded" or asset.sha256 != wanted.get(asset.name), "a good asset is gone"
        for release in releases:
            if not release.is_draft:
                found = {asset.name: asset.sha256 for asset in release.assets.values()}
                assert found == wanted
                assert all(asset.state == "uploaded" for asset in release.assets.values())

    @property
    def is_public(self) -> bool:
        return any(
            release.tag == self.candidate.tag and not release.is_draft
            for release in self.github.store.releases.values()
        )


@contextmanager
def github_for(staged: StagedRelease, **changes: object) -> Iterator[GitHub]:
    with GitHub(**changes) as github:  # type: ignore[arg-type]
        github.store.commits.add(staged.commit)
        yield github


def staged_in(folder: Path) -> StagedRelease:
    return StagedRelease(folder=folder / "release" / "c7", commit=COMMIT).write()
