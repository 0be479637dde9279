"""Getting the file of an sdist pin: by project, version and SHA-256, through pip's own indexes.

Pip does the finding and the transport, so its configuration (indexes, mirrors, proxies, CA, credentials)
is the only one. Nothing is installed and no build backend runs. The pip in use is the pinned one of this
environment, which is what makes its inner interface something to lean on.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ci.locks import exclusive_lock
from ci.paths import Layout
from ci.pins import SdistOrigin, SourcePin
from opencoti.console import Console
from opencoti.errors import ConfigError, MissingError, NetworkError, VerificationError, storage_error
from opencoti.files import require_safe_name
from opencoti.hashing import sha256_file

_SUFFIX: Final = ".tar.gz"
_BLOCK_BYTES: Final = 1 << 18
_PIP_WORDS: Final = (
    *("--no-binary", ":all:", "--no-deps", "--no-input", "--no-cache-dir"),
    "--ignore-requires-python",  # it is unpacked, not installed
)
_HTTP_GONE: Final = (404, 410)
_HTTP_ERROR: Final = 400
_NETWORK_HINT: Final = (
    "check the network and pip's settings (`pip config list`), then run this again; the download cache "
    "of a machine that was online serves too (OPENCOTI_BUILD_CACHE)"
)


@dataclass(frozen=True, kw_only=True)
class _Index:
    """Pip's session and finder, and the failures that the finder kept to itself."""

    session: Any
    finder: Any
    failures: list[str] = field(default_factory=list)


def fetch_sdist(layout: Layout, pin: SourcePin, console: Console, *, offline: bool) -> Path:
    """Return the pinned file in the download cache, fetched first if it is not there or damaged.

    Raises:
        ConfigError: `pin-not-found`, no index has this release; `pin-archive-kind`.
        NetworkError: `source-offline`, `source-download`.
        VerificationError: `source-hash`, an index has the file with other bytes.
        StorageError: the cache cannot be written.
    """
    origin = _origin(pin)
    folder = layout.downloads / origin.sha256
    if cached := _cached(folder, origin, console):
        return cached
    if offline:
        raise NetworkError(
            "source-offline",
            f"the source of pin {pin.path.name} is not in the download cache",
            why=f"{origin.project} {origin.version} is needed and --offline forbids to fetch it",
            hint="run `vendor` once without --offline",
        )
    with exclusive_lock(folder / ".lock", f"the download of {origin.project}", wait=True):
        _sweep(folder)
        return _cached(folder, origin, console) or _download(folder, pin, origin, console)


def _origin(pin: SourcePin) -> SdistOrigin:
    assert isinstance(pin.origin, SdistOrigin)
    return pin.origin


def _cached(folder: Path, origin: SdistOrigin, console: Console) -> Path | None:
    """Return the cached file if it still has its hash; a damaged one is reported and not used."""
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        try:
            found = sha256_file(path)
        except OSError as exc:
            raise storage_error(exc, f"cannot read {path}") from exc
        if found == origin.sha256:
            return path
        console.warn(f"{path} in the download cache is damaged (sha256 {found[:16]}…): it is replaced")
    return None


def _sweep(folder: Path) -> None:
    """Remove what a killed download left; the caller holds the lock, so nobody is writing it."""
    for leftover in folder.glob(".part-*"):
        leftover.unlink(missing_ok=True)


def _download(folder: Path, pin: SourcePin, origin: SdistOrigin, console: Console) -> Path:
    console.status(f"looking for {origin.project} {origin.version} on pip's indexes")
    with _pip_index(pin) as index:
        links = _links(index, pin, origin)
        wrong = [link for link in links if _announced(link) not in ("", origin.sha256)]
        usable = [link for link in links if link not in wrong]
        found = [f"announced {_announced(link)}" for link in wrong]
        for link in sorted(usable, key=lambda link: _announced(link) == ""):
            name = require_safe_name(link.filename, f"the index, for pin {pin.path.name}")
            digest = _store(index.session, link, folder / name, pin, console)
            if digest == origin.sha256:
                return folder / name
            found.append(f"received {digest}")
    raise VerificationError(
        "source-hash",
        f"no file of {origin.project} {origin.version} has the SHA-256 of pin {pin.path.name}",
        why=f"expected {origin.sha256}, {', '.join(found)}",
        hint="compare the pin with the project's release page; never use other bytes than published",
    )


def _announced(link: Any) -> str:
    return str(link.hash) if link.hash_name == "sha256" else ""


@contextmanager
def _pip_index(pin: SourcePin) -> Iterator[_Index]:
    """Yield what `pip download` would look with, configured as it would be."""
    try:
        from pip._internal.commands import create_command
    except ImportError as exc:
        raise MissingError(
            "pip-missing",
            f"pip is missing, and pin {pin.path.name} is fetched with it",
            why=str(exc),
            hint="run this through `./noxw`, which makes an environment with everything in it",
        ) from exc
    # Without a handler of its own, the logging module would print pip's warnings behind our back.
    logging.getLogger("pip").addHandler(logging.NullHandler())
    command: Any = create_command("download")
    options, _ = command.parse_args([*_PIP_WORDS, "x"])
    with command.main_context(), command._build_session(options) as session:
        index = _Index(session=session, finder=command._build_package_finder(options, session))
        session.request = _recording(session.request, index.failures)
        yield index


def _recording(request: Callable[..., Any], failures: list[str]) -> Callable[..., Any]:
    """Wrap a session's `request` so that a failure of the network is not mistaken for an empty index."""

    def recorded(*args: Any, **kwargs: Any) -> Any:
        try:
            response = request(*args, **kwargs)
        except Exception as exc:
            failures.append(_first_line(exc))
            raise
        if response.status_code >= _HTTP_ERROR and response.status_code not in _HTTP_GONE:
            failures.append(f"HTTP status {response.status_code}")
        return response

    return recorded


def _links(index: _Index, pin: SourcePin, origin: SdistOrigin) -> list[Any]:
    """Return the links of the pinned release's source archive, best first as pip orders them."""
    candidates = index.finder.find_all_candidates(origin.project)
    links = [c.link for c in candidates if str(c.version) == origin.version and not c.link.is_wheel]
    if not links and index.failures:
        raise _network_error(pin, index.failures[0])
    if not links:
        versions = sorted({str(candidate.version) for candidate in candidates})
        raise ConfigError(
            "pin-not-found",
            f"pip's indexes have no source archive of {origin.project} {origin.version}, "
            f"which pin {pin.path.name} names",
            why=f"they have {', '.join(versions[-5:])}" if versions else "they have no release of it",
            hint="check the pin, and pip's settings with `pip config list`",
        )
    archives = [link for link in links if link.filename.endswith(_SUFFIX)]
    if not archives:
        raise ConfigError(
            "pin-archive-kind",
            f"the source archive of pin {pin.path.name} is {links[0].filename}",
            why=f"only {_SUFFIX} archives are unpacked",
            hint="pin a release with such an archive, or a git repository",
        )
    return archives


def _store(session: Any, link: Any, target: Path, pin: SourcePin, console: Console) -> str:
    """Stream a link to `target` if its bytes have the pinned hash; return the hash that they have."""
    handle, name = tempfile.mkstemp(prefix=".part-", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            digest = _transfer(session, link, file.write, pin, console)
            file.flush()
            os.fsync(file.fileno())
        if digest == _origin(pin).sha256:
            temporary.chmod(0o644)
            temporary.replace(target)
        return digest
    except OSError as exc:
        raise storage_error(exc, f"cannot write {target}") from exc
    finally:
        temporary.unlink(missing_ok=True)


def _transfer(
    session: Any, link: Any, write: Callable[[bytes], int], pin: SourcePin, console: Console
) -> str:
    """Pass the bytes of a link to `write`; return their SHA-256."""
    digest, done = hashlib.sha256(), 0
    with closing(_get(session, link, pin)) as response:
        _require_success(response, link, pin)
        total = int(response.headers.get("Content-Length") or 0)
        blocks = _blocks(response.raw)
        while block := _next_block(blocks, pin):
            write(block)
            digest.update(block)
            done += len(block)
            console.status(f"{link.filename}: {done / 1e6:.1f} of {total / 1e6:.1f} MB")
    if total and done < total:
        raise _network_error(pin, f"the connection ended after {done} of {total} bytes")
    return digest.hexdigest()


def _get(session: Any, link: Any, pin: SourcePin) -> Any:
    from pip._internal.exceptions import PipError

    try:
        return session.get(link.url_without_fragment, stream=True, headers={"Accept-Encoding": "identity"})
    except (PipError, OSError) as exc:
        raise _network_error(pin, _first_line(exc)) from exc


def _require_success(response: Any, link: Any, pin: SourcePin) -> None:
    if response.status_code in _HTTP_GONE:
        raise ConfigError(
            "pin-not-found",
            f"the index lists {link.filename} of pin {pin.path.name} but does not have the file",
            why=f"HTTP status {response.status_code}",
            hint="try another index or mirror (`pip config list` shows which are in use)",
        )
    if response.status_code >= _HTTP_ERROR:
        raise _network_error(pin, f"HTTP status {response.status_code}")


def _blocks(raw: Any) -> Iterator[bytes]:
    """Yield the bytes as they were sent: the hash is of the file, whatever encoding is claimed."""
    if hasattr(raw, "stream"):
        yield from raw.stream(_BLOCK_BYTES, decode_content=False)
    else:
        # Pip gives a plain file for a `file:` link.
        yield from iter(lambda: raw.read(_BLOCK_BYTES), b"")


def _next_block(blocks: Iterator[bytes], pin: SourcePin) -> bytes:
    """Return the next bytes of a transfer, none at its end; apart from our own writes, which fail alike."""
    from pip._internal.exceptions import PipError
    from pip._vendor.urllib3.exceptions import HTTPError

    try:
        return next(blocks, b"")
    except (PipError, HTTPError, OSError) as exc:
        raise _network_error(pin, _first_line(exc)) from exc


def _first_line(exc: BaseException) -> str:
    lines = [line for line in str(exc).splitlines() if line.strip()]
    return f"{type(exc).__name__}: {lines[0][:200]}" if lines else type(exc).__name__


def _network_error(pin: SourcePin, why: str) -> NetworkError:
    return NetworkError(
        "source-download", f"cannot download the source of pin {pin.path.name}", why=why, hint=_NETWORK_HINT
    )
