"""Where the index comes from that pins are flipped to."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from opencoti.console import Console
from opencoti.errors import storage_error
from opencoti.fetch.addresses import release_url
from opencoti.fetch.documents import Reader
from opencoti.fetch.get import open_real
from opencoti.fetch.settings import Settings
from opencoti.fetch.source import HttpSource
from opencoti.index import ReleaseIndex
from opencoti.minisign import SIGNATURE_SUFFIX
from opencoti.policy import Asked, verify_index
from opencoti.trust.comment import INDEX_NAME
from opencoti.trust.keys import TrustedKeys, open_signed
from opencoti.trust.memory import TrustState
from release.staging.folder import read_index


def folder_index(folder: Path, *, keys: Callable[[], TrustedKeys], console: Console) -> ReleaseIndex:
    """Return the index of a staged folder; its signature is checked where it has one.

    Raises:
        ConfigError: `not-staged`; the index is malformed.
        VerificationError: as `opencoti.trust.keys.open_signed`.
        StorageError: a file cannot be read.
    """
    index = read_index(folder)
    signature = folder / (INDEX_NAME + SIGNATURE_SUFFIX)
    if not signature.exists():
        console.warn(f"{folder} is not signed: this is your own staged release, and nothing proves that")
        return index
    try:
        data, signed = (folder / INDEX_NAME).read_bytes(), signature.read_bytes()
    except OSError as exc:
        raise storage_error(exc, f"cannot read {folder}") from exc
    open_signed(data, signed, keys=keys(), what=INDEX_NAME)
    return index


def published_index(
    base_url: str,
    *,
    repo: str,
    tag: str,
    keys: TrustedKeys,
    now: datetime,
    settings: Settings,
    console: Console,
) -> ReleaseIndex:
    """Return the verified index of a published release.

    Raises:
        VerificationError, ConfigError: as `opencoti.policy`.
        NetworkError: it cannot be fetched.
    """
    url = release_url(base_url, repo, tag, INDEX_NAME)
    with open_real(settings.limits) as tools:
        reader = Reader(tools, settings.limits, console)
        data = reader.read(HttpSource(url=url))
        signature = reader.read(HttpSource(url=url + SIGNATURE_SUFFIX))
    asked = Asked(repo=repo, tag=tag)
    return verify_index(data, signature, asked=asked, root=keys, state=TrustState(), now=now).index
