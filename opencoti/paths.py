"""Where the runtime keeps its files on a user's machine. Creates nothing; the environment is read at call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from opencoti.errors import ConfigError

CACHE_VARIABLE = "OPENCOTI_CACHE_DIR"
_KEY_DIGITS = 12


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the cache folder: `OPENCOTI_CACHE_DIR`, else the system's place for caches.

    A relative or `~` path in the variable is resolved against the working directory or the home folder.

    Raises:
        ConfigError: `no-cache-folder`, no home folder is known.
    """
    given = (os.environ if environ is None else environ).get(CACHE_VARIABLE, "")
    try:
        if given:
            return Path(os.path.abspath(Path(given).expanduser()))
        import platformdirs

        return platformdirs.user_cache_path("opencoti", appauthor=False).expanduser()
    except RuntimeError as exc:
        raise ConfigError(
            "no-cache-folder",
            "cannot tell where the cache folder is",
            why=str(exc),
            hint=f"set HOME, or {CACHE_VARIABLE} to a folder",
        ) from exc


def artifacts_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder that holds one folder per fetched file. Raises `ConfigError`."""
    return cache_folder(environ) / "artifacts"


def artifact_folder(sha256: str, environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of the file with this SHA-256. Raises `ConfigError`."""
    return artifacts_folder(environ) / sha256[:_KEY_DIGITS]
