"""What the environment says about fetching. Pure: the environment is an argument, read at call time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opencoti import paths
from opencoti.errors import ConfigError
from opencoti.fetch.addresses import DEFAULT_BASE, require_allowed
from opencoti.fetch.credential import VARIABLE, Credential

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"", "0", "false", "no", "off"}
DEFAULT_TRIES = 6
DEFAULT_TIMEOUT_S = 30.0
# As many as browsers open to one server.
DEFAULT_CONNECTIONS = 6
MAX_CONNECTIONS = 32
FAST_BYTES_PER_S = 40e6


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When to lose patience with a server.

    Attributes:
        timeout_s: no byte for this long, or too slow on average over this long, is a stall.
        min_bytes_per_s: slower than this counts as a stall.
        tries: attempts in a row that may bring nothing new.
        longest_wait_s: a server that asks for a longer pause than this is given up.
        connections: how many ranges are asked for at once, where a chunk table is known.
        fast_bytes_per_s: a connection of this speed is read from its socket directly (`direct`), and most of
            its chunks are checked by the SHA-256 of the whole file only (`workers`). 0: always.
        alone_bytes_per_s: while one connection brings this much, no more are opened.
    """

    timeout_s: float = DEFAULT_TIMEOUT_S
    min_bytes_per_s: float = 1024.0
    tries: int = DEFAULT_TRIES
    longest_wait_s: float = 120.0
    connections: int = DEFAULT_CONNECTIONS
    fast_bytes_per_s: float = FAST_BYTES_PER_S
    alone_bytes_per_s: float = 150e6


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything from the environment that a fetch depends on."""

    artifacts: Path
    base_url: str = DEFAULT_BASE
    is_offline: bool = False
    llamafile_local: str = ""
    embedder_local: str = ""
    credential: Credential | None = None
    limits: Limits = Limits()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        """Read the `OPENCOTI_*` variables of the runtime.

        Raises:
            ConfigError: `bad-variable`, `bad-token`, `address-refused` or `no-cache-folder`.
        """
        mirror = environ.get("OPENCOTI_MIRROR", "")
        base_url = require_allowed(mirror, "OPENCOTI_MIRROR") if mirror else DEFAULT_BASE
        return cls(
            artifacts=paths.artifacts_folder(environ),
            base_url=base_url,
            credential=Credential.of(environ.get(VARIABLE, ""), base_url),
            is_offline=_flag(environ, "OPENCOTI_OFFLINE"),
            llamafile_local=environ.get("OPENCOTI_LLAMAFILE_LOCAL", ""),
            embedder_local=environ.get("OPENCOTI_EMBEDDER_LOCAL", ""),
            limits=Limits(
                timeout_s=_number(environ, "OPENCOTI_TIMEOUT_S", DEFAULT_TIMEOUT_S, smallest=0.1),
                tries=int(_number(environ, "OPENCOTI_TRIES", DEFAULT_TRIES, smallest=1)),
                connections=int(
                    _number(
                        environ,
                        "OPENCOTI_CONNECTIONS",
                        DEFAULT_CONNECTIONS,
                        smallest=1,
                        largest=MAX_CONNECTIONS,
                    )
                ),
            ),
        )


def _flag(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name, "").strip().lower()
    if text not in _TRUE | _FALSE:
        raise _bad(name, text, "1 or 0")
    return text in _TRUE


def _number(
    environ: Mapping[str, str], name: str, default: float, *, smallest: float, largest: float = 86_400
) -> float:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError as exc:
        raise _bad(name, text, "a number") from exc
    if not smallest <= value <= largest:
        raise _bad(name, text, f"a number from {smallest:g} to {largest:g}")
    return value


def _bad(name: str, text: str, expected: str) -> ConfigError:
    return ConfigError(
        "bad-variable",
        f"the variable {name} is set to {text[:40]!r}",
        why=f"expected {expected}",
        hint=f"correct or unset {name}",
    )
