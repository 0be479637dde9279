"""A token for one server: sent to that origin over https (or loopback) only, and shown nowhere."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from opencoti.errors import ConfigError

VARIABLE = "OPENCOTI_TOKEN"
_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")
_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, kw_only=True)
class Credential:
    """A bearer token and the address whose scheme, host and port it is for."""

    base_url: str
    token: str = field(repr=False)

    @classmethod
    def of(cls, token: str, base_url: str) -> Credential | None:
        """Make one from the value of the variable; nothing where that is empty.

        Raises:
            ConfigError: `bad-token`; the value is not shown.
        """
        token = token.strip()
        if not token:
            return None
        if _TOKEN.fullmatch(token) is None:
            raise ConfigError(
                "bad-token",
                f"the variable {VARIABLE} holds no token",
                why="it has blanks, control characters or others that no header may hold",
                hint=f"correct or unset {VARIABLE}",
            )
        return cls(base_url=base_url, token=token)

    def headers_for(self, url: str) -> dict[str, str]:
        """Return what a request to `url` carries: nothing, unless it is to the very server."""
        is_meant = _origin(url) == _origin(self.base_url)
        return {"authorization": f"Bearer {self.token}"} if is_meant else {}


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url, allow_fragments=False)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
