"""Getting a model's file through `opencoti.fetch`, verified and resumable, into a folder of its own.

The SHA-256 comes from the table, from the user, or (only where the user says so) from the host itself on
first use: hosts that keep large files by hash announce it in the header `X-Linked-ETag` of their redirect.
That protects against damage on the way, not against the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opencoti.console import Console
from opencoti.errors import NetworkError, UsageError, VerificationError
from opencoti.fetch.addresses import require_allowed
from opencoti.fetch.get import Fetched, fetch
from opencoti.fetch.settings import Settings
from opencoti.fetch.source import HttpSource, Request, request_for_url
from opencoti.hashing import is_sha256
from opencoti.models.gguf import Header, read_header
from opencoti.models.table import Quant

_HASH_HEADER: Final = "x-linked-etag"


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """A model's file in its place, verified, and its header."""

    fetched: Fetched
    header: Header

    @property
    def path(self) -> Path:
        """The file."""
        return self.fetched.path


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a file is, and what it must hash to (None: not known yet)."""

    url: str
    sha256: str | None
    name: str | None = None

    @classmethod
    def of_quant(cls, quant: Quant, *, url: str | None = None, sha256: str | None = None) -> Source:
        """Return the source of a quant; what the user gives replaces what the table says."""
        return cls(url=url or quant.url, sha256=sha256 or (None if url else quant.sha256))


Announce = Callable[[str, float], str | None]


def models_folder(settings: Settings) -> Path:
    """Return the folder of models: beside that of the artifacts, which `opencoti.fetch gc` cleans."""
    return settings.artifacts.with_name("models")


def download(
    source: Source,
    settings: Settings,
    console: Console,
    *,
    dest: Path | None = None,
    trust_host: bool = False,
    announce: Announce | None = None,
) -> ModelFile:
    """Make sure that a model's file is there, verified, and that it is a model.

    Args:
        source: where it is.
        settings: limits and switches of `opencoti.fetch`.
        console: told about progress.
        dest: folder, instead of one in `models_folder` under the hash.
        trust_host: where no SHA-256 is known, believe the one that the host announces.
        announce: asks the host; another one is for tests.

    Raises:
        UsageError: `model-hash-unknown`.
        ConfigError: `gguf-malformed`, the right bytes are no model.
        OpencotiError: as `opencoti.fetch.get.fetch`.
    """
    request = _request(source, settings, trust_host=trust_host, announce=announce or announced_sha256)
    if source.sha256 is None:
        console.warn(
            f"{request.name}: SHA-256 {request.sha256} is what its host announces; nobody else says so"
        )
    folder = models_folder(settings) / request.sha256[:12] if dest is None else dest
    fetched = fetch(request, settings, console, dest=folder, allow_trial=False)
    return ModelFile(fetched=fetched, header=read_header(fetched.path))


def _request(source: Source, settings: Settings, *, trust_host: bool, announce: Announce) -> Request:
    sha256 = source.sha256
    if sha256 is None:
        # Everything else about the address is checked before anybody is asked.
        probe = request_for_url(source.url, "0" * 64, name=source.name)
        if not trust_host or not isinstance(probe.source, HttpSource):
            raise _unknown(source.url)
        if settings.is_offline:
            raise NetworkError(
                "offline",
                f"the SHA-256 of {probe.name} is not known, and OPENCOTI_OFFLINE forbids to ask for it",
                hint="unset OPENCOTI_OFFLINE, or give --sha256 HEX",
            )
        sha256 = announce(probe.source.url, settings.limits.timeout_s)
        if sha256 is None:
            raise VerificationError(
                "model-hash-not-announced",
                f"the host of {source.url} announces no SHA-256",
                hint="give --sha256 HEX, as the publisher shows it beside the file",
            )
    return request_for_url(source.url, sha256, name=source.name)


def announced_sha256(url: str, timeout_s: float) -> str | None:
    """Ask a host for the SHA-256 of a file; None where it does not say.

    Raises:
        ConfigError: `address-refused`.
        NetworkError: `model-host-silent`, no answer.
    """
    import httpx

    require_allowed(url, "--url")
    try:
        # The redirect itself is what carries the header; where it leads need not be known.
        answer = httpx.head(url, timeout=timeout_s, follow_redirects=False)
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise NetworkError(
            "model-host-silent",
            f"cannot ask for the SHA-256 of {url}",
            why=str(exc) or type(exc).__name__,
            hint="check the network and the proxy settings; with --sha256 HEX nobody is asked",
        ) from exc
    if answer.status_code >= 400:
        raise NetworkError(
            "model-host-silent",
            f"cannot ask for the SHA-256 of {url}",
            why=f"status {answer.status_code}",
            hint="is the address right? files behind a login cannot be fetched",
        )
    told = answer.headers.get(_HASH_HEADER, "").removeprefix("W/").strip('"').lower()
    return told if is_sha256(told) else None


def _unknown(url: str) -> UsageError:
    return UsageError(
        "model-hash-unknown",
        f"it is not known what {url} must hash to",
        why="the table of quants has no SHA-256 for it",
        hint="give --sha256 HEX, as the publisher shows it beside the file; or --trust-host to believe the "
        "one that the host announces",
    )
