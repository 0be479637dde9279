"""Pushing images: what the daemon says becomes a record by digest; the token stands nowhere."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ci import workflows_push as push
from ci.engines.client import EngineClient
from ci.engines.image import ToolchainImage
from opencoti.errors import MissingError, NetworkError, UsageError
from release.checking.images import load_images

DIGEST = "sha256:" + "ab" * 32
RECIPE = "cd" * 32
TOKEN = "ghs_" + "Zx9" * 12


class Daemon:
    """Imitates the two calls of the docker SDK that a push needs, and what a daemon streams meanwhile."""

    def __init__(self, *lines: dict[str, Any]) -> None:
        self.lines = lines
        self.tagged: list[tuple[str, str, str]] = []
        self.pushed: list[dict[str, Any]] = []
        self.daemon = SimpleNamespace(kind="docker", endpoint="unix:///x")
        self.api = self.stream = self

    def tag(self, image: str, repository: str, tag: str) -> None:
        self.tagged.append((image, repository, tag))

    def push(self, repository: str, **words: Any) -> list[dict[str, Any]]:
        self.pushed.append({"repository": repository, **words})
        return list(self.lines)


def image(*, is_there: bool = True) -> ToolchainImage:
    record = SimpleNamespace(id="sha256:1") if is_there else None
    return cast(
        ToolchainImage,
        SimpleNamespace(recipe_id=RECIPE, tag="opencoti-toolchain-zig:x", find=lambda client: record),
    )


def run(daemon: Daemon, *, is_there: bool = True, auth: dict[str, str] | None = None) -> push.PushedImage:
    client = cast(EngineClient, daemon)
    return push.push_image(
        client, "zig", image(is_there=is_there), target="ghcr.io/mann1x/opencoti", auth=auth
    )


def test_record_has_the_digest_that_the_daemon_told(tmp_path: Path) -> None:
    daemon = Daemon({"status": "Pushing"}, {"aux": {"Tag": RECIPE[:12], "Digest": DIGEST, "Size": 1}})
    auth = push.credentials({push.TOKEN_VARIABLE: TOKEN, push.USER_VARIABLE: "who"})
    pushed = run(daemon, auth=auth)
    assert daemon.tagged == [("sha256:1", "ghcr.io/mann1x/opencoti/toolchain-zig", RECIPE[:12])]
    assert daemon.pushed[0]["auth_config"] == {"username": "who", "password": TOKEN}
    path = tmp_path / "images.json"
    push.write_record([pushed], path)
    (entry,) = load_images(path.read_bytes(), "r").images
    assert (str(entry), entry.recipe) == (f"ghcr.io/mann1x/opencoti/toolchain-zig@{DIGEST}", RECIPE)
    assert TOKEN not in path.read_text()


@pytest.mark.parametrize(
    "lines", [[], [{"status": "x"}], [{"error": "denied: who are you"}], [{"aux": {"Digest": "latest"}}]]
)
def test_push_without_a_digest_failed(lines: list[dict[str, Any]]) -> None:
    with pytest.raises(NetworkError) as caught:
        run(Daemon(*lines), auth={"username": "u", "password": TOKEN})
    assert caught.value.error_id == "push-failed"
    assert TOKEN not in str(caught.value) + caught.value.hint


def test_image_that_was_not_made_from_the_locks_is_not_pushed() -> None:
    daemon = Daemon()
    with pytest.raises(MissingError) as caught:
        run(daemon, is_there=False)
    assert (caught.value.error_id, daemon.pushed) == ("push-image-missing", [])


@pytest.mark.parametrize("text", ["ghcr.io/Mann1x/OpenCoti", "localhost:5000/a/b-c", "127.0.0.1:5000/a"])
def test_place_in_a_registry_is_taken_in_lower_case(text: str) -> None:
    assert push.parse_target(text + "/") == text.lower()


@pytest.mark.parametrize(
    "text", ["", "ghcr.io", "https://ghcr.io/a", "ghcr.io/a:tag", "ghcr.io/a b", "ghcr.io/../a"]
)
def test_what_is_no_place_in_a_registry_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        push.parse_target(text)
    assert caught.value.error_id == "push-target-malformed"


def test_registry_that_asks_for_nothing_is_told_nothing() -> None:
    assert push.credentials({push.USER_VARIABLE: "who"}) is None
