"""Pushing proved toolchain images to a registry, and the record of what is there by digest.

Credentials come from the environment only (`OPENCOTI_REGISTRY_USER`, `OPENCOTI_REGISTRY_TOKEN`) and stand in
no message. The record has the form that `release monitor --images` reads, `opencoti.images/1`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ci.engines.client import EngineClient, translated
from ci.engines.image import ToolchainImage
from opencoti.errors import MissingError, NetworkError, UsageError
from opencoti.files import write_atomic
from opencoti.jsonio import render_json

USER_VARIABLE: Final = "OPENCOTI_REGISTRY_USER"
TOKEN_VARIABLE: Final = "OPENCOTI_REGISTRY_TOKEN"  # noqa: S105 (a name, no secret)
_TARGET: Final = re.compile(r"[a-z0-9.-]+(:[0-9]{1,5})?(/[a-z0-9]+([._-][a-z0-9]+)*)+")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class PushedImage:
    """An image in a registry."""

    name: str
    recipe: str
    reference: str
    digest: str

    def as_dict(self) -> dict[str, str]:
        """Return its entry in the record."""
        return {
            "name": self.name,
            "recipe": self.recipe,
            "reference": self.reference,
            "digest": self.digest,
        }


def credentials(environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return what the registry is told; None where nothing is set, for registries that ask for nothing."""
    token = environ.get(TOKEN_VARIABLE, "")
    return {"username": environ.get(USER_VARIABLE, "") or "opencoti", "password": token} if token else None


def parse_target(text: str) -> str:
    """Return `<registry>/<path>` in the spelling that registries take.

    Raises:
        UsageError: `push-target-malformed`.
    """
    target = text.lower().rstrip("/")
    if not _TARGET.fullmatch(target):
        raise UsageError(
            "push-target-malformed",
            f"--to {text[:80]!r} is no place in a registry",
            hint="write it as in ghcr.io/OWNER/NAME",
        )
    return target


def push_image(
    client: EngineClient, name: str, image: ToolchainImage, *, target: str, auth: Mapping[str, str] | None
) -> PushedImage:
    """Push an image that this machine has, under the hash of its recipe; return it by digest.

    Raises:
        MissingError: `push-image-missing`; `docker-lost`, `docker-call-failed`.
        NetworkError: `push-failed`, the registry refused, or did not say what it stored.
    """
    record = image.find(client)
    if record is None:
        raise MissingError(
            "push-image-missing",
            f"there is no image {image.tag} made from the locks alone",
            hint=f"`python -m ci images {name} --build --locked`",
        )
    reference = f"{target}/toolchain-{name}"
    tag = image.recipe_id[:12]
    with translated(client.daemon, f"push {reference}"):
        client.api.tag(record.id, reference, tag)
        lines = client.stream.push(
            reference, tag=tag, stream=True, decode=True, auth_config=dict(auth) if auth else None
        )
        digest = _digest_of(lines, reference)
    return PushedImage(name=name, recipe=image.recipe_id, reference=reference, digest=digest)


def write_record(images: Iterable[PushedImage], path: Path) -> None:
    """Write the record. Raises `StorageError`."""
    entries = [image.as_dict() for image in images]
    write_atomic(path, render_json({"schema": "opencoti.images/1", "images": entries}))


def _digest_of(lines: Iterable[Any], reference: str) -> str:
    """Read the daemon's account of a push to its end: the digest comes last, and so may an error."""
    digest = ""
    for line in lines:
        if isinstance(line, dict) and "error" in line:
            raise _failed(reference, str(line["error"]))
        aux = line.get("aux") if isinstance(line, dict) else None
        if isinstance(aux, dict) and isinstance(aux.get("Digest"), str):
            digest = aux["Digest"]
    if not _DIGEST.fullmatch(digest):
        raise _failed(reference, "the daemon named no digest")
    return digest


def _failed(reference: str, why: str) -> NetworkError:
    return NetworkError(
        "push-failed",
        f"{reference} could not be pushed",
        why=" ".join(why.split())[:300],
        hint=f"check who may write there, and {USER_VARIABLE} and {TOKEN_VARIABLE}",
    )
