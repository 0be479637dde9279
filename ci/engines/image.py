"""Toolchain images: built on this machine from files checked by hash, named by the hash of their recipe."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ci.engines.client import EngineClient, call_error, translated
from ci.engines.proof import prove_image
from ci.locks import exclusive_lock
from ci.paths import Layout
from ci.toolchains.debs import FetchedDeb, fetch_debs
from ci.toolchains.host import WheelToolchain
from ci.toolchains.recipe import DEBIAN_ARCHS, Recipe
from ci.toolchains.rootfs import TOOLCHAIN, PlacedDeb, write_context
from ci.toolchains.table import load_table
from opencoti.console import Console
from opencoti.errors import MissingError, OpencotiError, StorageError, VerificationError, storage_error

TOOLS: Final = f"/{TOOLCHAIN}/bin"
_RECIPE: Final = "org.opencoti.recipe"
_TOOLCHAIN: Final = "org.opencoti.toolchain"
_DEBS: Final = "org.opencoti.debs"
_LOCKED: Final = "locked"
_KEEP_IMAGES: Final = 3
_MIN_FREE_BYTES: Final = 2 << 30


@dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """An image that the daemon has.

    Args:
        id: what the daemon calls it.
        debs: `locked`, or the packages that were used instead of those of the lock.
    """

    tag: str
    id: str
    recipe_id: str
    debs: str
    size_bytes: int

    @property
    def is_locked(self) -> bool:
        """Whether everything in it is what the locks say."""
        return self.debs == _LOCKED


class ToolchainImage:
    """The image of one toolchain.

    Args:
        is_strict: accept nothing but what the locks name (releases).
    """

    def __init__(self, recipe: Recipe, layout: Layout, *, is_strict: bool = False) -> None:
        self._recipe = recipe
        self._layout = layout
        self.name = recipe.name
        self._is_strict = is_strict
        self.recipe_id = recipe.image_id
        self.tag = f"opencoti-toolchain-{recipe.name}:{self.recipe_id[:12]}"
        self.platform = f"linux/{DEBIAN_ARCHS[recipe.arch]}"

    def find(self, client: EngineClient) -> ImageRecord | None:
        """Return the image if the daemon has the right one."""
        data = client.image(self.tag)
        labels: Mapping[str, str] = ((data or {}).get("Config") or {}).get("Labels") or {}
        if data is None or labels.get(_RECIPE) != self.recipe_id:
            return None
        record = ImageRecord(
            tag=self.tag,
            id=str(data["Id"]),
            recipe_id=self.recipe_id,
            debs=labels.get(_DEBS, "?"),
            size_bytes=int(data.get("Size") or 0),
        )
        return record if record.is_locked or not self._is_strict else None

    def ensure(self, client: EngineClient, console: Console) -> ImageRecord:
        """Return the image, building and proving it when the daemon has none; one command at a time.

        Raises:
            ConfigError: strict, and the locked packages are not to be had.
            MissingError: `docker-image-failed`, apt is missing, or the daemon refuses.
            NetworkError: something cannot be fetched.
            StorageError: a disk is full.
            VerificationError: something has other bytes than its lock says.
        """
        if record := self.find(client):
            return record
        lock = self._layout.cache / "locks" / f"image-{self._recipe.name}.lock"
        with exclusive_lock(lock, f"image {self.tag}", wait=True):
            return self.find(client) or self.build(client, console)

    def build(self, client: EngineClient, console: Console) -> ImageRecord:
        """Build the image anew; see `ensure`."""
        self._check_space(client)
        toolchain = WheelToolchain(self._recipe, self._layout).prepare(console).parent
        debs = fetch_debs(
            self._recipe.deb_groups,
            self._recipe.debs,
            arch=DEBIAN_ARCHS[self._recipe.arch],
            downloads=self._layout.downloads,
            apt_folder=self._layout.cache / "apt",
            console=console,
            is_strict=self._is_strict,
        )
        console.info(f"building image {self.tag}")
        # It gets its name when it is proved: whatever ends us before, nothing takes it for a good one.
        candidate = f"{self.tag}-{secrets.token_hex(4)}"
        try:
            self._build_from(client, debs, toolchain, candidate)
            self._prove(client, candidate, console)
            self._name(client, candidate)
        finally:
            self._remove(client, candidate)
        record = self.find(client)
        if record is None:
            raise MissingError(
                "docker-image-failed", f"image {self.tag} was built, but {client.daemon.endpoint} has none"
            )
        self._remove_old(client)
        console.info(f"image {self.tag}: {record.size_bytes / 1e6:.0f} MB")
        return record

    def prove(self, client: EngineClient, console: Console) -> None:
        """Run the tools of the image and compile the probes of its backends; see `ci.engines.proof`.

        An image that fails is removed: the next build makes it anew.

        Raises:
            VerificationError: `image-unproved`.
        """
        try:
            self._prove(client, self.tag, console)
        except VerificationError:
            self._remove(client, self.tag)
            raise

    def put_back(self, client: EngineClient, before: ImageRecord | None) -> None:
        """Give the name back to the image that had it before something else was loaded, if there was one."""
        if before is None:
            self._remove(client, self.tag)
        else:
            with suppress(OpencotiError):
                self._name(client, before.id)

    def _prove(self, client: EngineClient, tag: str, console: Console) -> None:
        backends = load_table(self._layout.table).of_toolchain(self._recipe.name)
        prove_image(client, tag, self.platform, self._recipe, backends, console)

    def _name(self, client: EngineClient, image: str) -> None:
        repository, tag = self.tag.split(":")
        with translated(client.daemon, f"name image {self.tag}"):
            client.api.tag(image, repository, tag)

    def _placed(self, debs: list[FetchedDeb]) -> list[PlacedDeb]:
        """Every package in every place that the recipe wants it; of two with one file the later one wins."""
        paths = {(deb.package.suite, deb.package.name): deb.path for deb in debs}
        return [
            PlacedDeb(path=paths[group.suite, name], target=group.target, drop=group.drop, keep=group.keep)
            for group in self._recipe.deb_groups
            for name in sorted(group.names)
        ]

    def _build_from(
        self, client: EngineClient, debs: list[FetchedDeb], toolchain: Path, candidate: str
    ) -> None:
        prefix = f".image-{self.name}-"
        for left in self._layout.cache.glob(
            f"{prefix}*"
        ):  # by a build that was killed: `ensure` runs one only
            shutil.rmtree(left, ignore_errors=True)
        try:
            with tempfile.TemporaryDirectory(prefix=prefix, dir=self._layout.cache) as name:
                context = Path(name) / "context.tar"
                write_context(
                    context,
                    dockerfile=self._recipe.dockerfile,
                    debs=self._placed(debs),
                    toolchain=toolchain,
                )
                self._send(client, context, candidate, _describe(debs))
        except OSError as exc:
            raise storage_error(exc, f"cannot write the build context of {self.tag}") from exc

    def _send(self, client: EngineClient, context: Path, candidate: str, debs: str) -> None:
        labels = {_RECIPE: self.recipe_id, _TOOLCHAIN: self._recipe.name, _DEBS: debs}
        with translated(client.daemon, f"build image {self.tag}"), open(context, "rb") as file:
            messages = client.stream.build(
                fileobj=file,
                custom_context=True,
                tag=candidate,
                labels=labels,
                platform=self.platform,
                rm=True,
                forcerm=True,
                decode=True,
            )
            said = build_failure(messages)
        if said:
            raise _build_error(client, self.tag, said)

    def _check_space(self, client: EngineClient) -> None:
        folders = {self._layout.cache}
        # The disk of a daemon on another machine cannot be seen; a full one is told when it is written.
        root = Path(str(client.info().get("DockerRootDir") or "/"))
        if client.daemon.endpoint.socket_path and root.is_dir():
            folders.add(root)
        for folder in folders:
            os.makedirs(folder, exist_ok=True)
            free_bytes = shutil.disk_usage(folder).free
            if free_bytes < _MIN_FREE_BYTES:
                raise StorageError(
                    "docker-disk-low",
                    f"too little space to build image {self.tag}",
                    why=f"{free_bytes >> 20} MiB free in {folder}, needed are {_MIN_FREE_BYTES >> 20} MiB",
                    hint="free some space (`docker system df`), or set OPENCOTI_BUILD_CACHE to another disk",
                )

    def _remove_old(self, client: EngineClient) -> None:
        """Keep the newest images of this toolchain; others of ours go, unless something uses them."""
        with translated(client.daemon, "list images"):
            images = client.api.images(filters={"label": f"{_TOOLCHAIN}={self._recipe.name}"})
        images.sort(key=lambda image: int(image.get("Created") or 0), reverse=True)
        for image in images[_KEEP_IMAGES:]:
            self._remove(client, str(image["Id"]))

    def _remove(self, client: EngineClient, image: str) -> None:
        """Remove an image unless something uses it."""
        with suppress(OpencotiError), translated(client.daemon, "remove an image"):
            client.api.remove_image(image)


def build_failure(messages: Iterable[Mapping[str, Any]]) -> str:
    """Read the daemon's messages of a build to the end; return what went wrong, empty if nothing."""
    failure = ""
    for message in messages:
        if "error" in message or "errorDetail" in message:
            detail = message.get("errorDetail") or {}
            failure = str(detail.get("message") or message.get("error") or "unknown error")
    return failure


def _build_error(client: EngineClient, tag: str, said: str) -> OpencotiError:
    error = call_error(client.daemon, f"build image {tag}", said, None)
    if isinstance(error, StorageError):
        return error
    return MissingError(
        "docker-image-failed",
        f"the {client.daemon.kind} at {client.daemon.endpoint} failed to build image {tag}",
        why=" ".join(said.split())[:300],
        hint="see the log of the daemon, or use --engine host",
    )


def _describe(debs: list[FetchedDeb]) -> str:
    drift = [
        f"{deb.package.name}={deb.package.version}@{deb.package.sha256}" for deb in debs if not deb.locked
    ]
    return " ".join(drift) or _LOCKED
