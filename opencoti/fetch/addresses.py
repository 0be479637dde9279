"""Which addresses may be asked: https, or http on this very machine. Pure."""

from __future__ import annotations

from urllib.parse import SplitResult, quote, urljoin, urlsplit

from opencoti.errors import ConfigError, NetworkError

DEFAULT_BASE = "https://github.com"
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")


def require_allowed(url: str, origin: str) -> str:
    """Return `url` if it may be asked.

    Args:
        url: the whole address.
        origin: where it came from, for the message (`--url`, `OPENCOTI_MIRROR`).

    Raises:
        ConfigError: `address-refused`; neither https nor http on loopback, or a user name is in it.
    """
    if why := _objection(url):
        raise ConfigError(
            "address-refused",
            f"the address from {origin} is refused",
            why=why,
            hint="use https (http is for 127.0.0.1, ::1 and localhost only), without a user name in it",
        )
    return url


def release_url(base: str, repository: str, tag: str, asset: str) -> str:
    """Return the download address of a release asset (the CDN path, never the API)."""
    return f"{base.rstrip('/')}/{repository}/releases/download/{quote(tag, safe='')}/{quote(asset, safe='')}"


def latest_url(base: str, repository: str, asset: str) -> str:
    """Return the download address of an asset of the newest release."""
    return f"{base.rstrip('/')}/{repository}/releases/latest/download/{quote(asset, safe='')}"


def follow_redirect(url: str, location: str) -> str:
    """Return where a redirect leads.

    Raises:
        NetworkError: `redirect-refused`; it leaves https, or leads into plain http on this machine.
    """
    target, why = _joined(url, location)
    why = why or _objection(target)
    if not why and _split(target).scheme == "http" and _split(url).scheme != "http":
        why = "it leads from https to http"
    if why:
        raise NetworkError(
            "redirect-refused",
            f"{url} redirects to an address that is refused",
            why=why,
            hint="check the address, or a proxy or mirror in between",
        )
    return target


def _joined(url: str, location: str) -> tuple[str, str]:
    """Return where `location` leads, or why it leads nowhere."""
    try:
        return urljoin(url, location), ""
    except ValueError:
        return "", "it is no valid address"


def last_segment(url: str) -> str:
    """Return the last part of the path of `url`, not decoded; empty where there is none."""
    return _split(url).path.rpartition("/")[2]


def _split(url: str) -> SplitResult:
    return urlsplit(url, allow_fragments=False)


def _objection(url: str) -> str:
    """Say why `url` must not be asked; empty when it may."""
    if any(char <= " " or char == "\x7f" for char in url):
        return "it holds blanks or control characters"
    try:
        parts = _split(url)
        host, _ = parts.hostname, parts.port
    except ValueError as exc:
        return f"it is no valid address ({exc})"
    if not host:
        return "it names no host"
    if parts.username is not None or parts.password is not None:
        return "it holds a user name or password"
    if parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK_HOSTS):
        return ""
    return f"{parts.scheme}://{host} is not https"
