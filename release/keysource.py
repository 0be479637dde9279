"""Where keys come from: files, the environment, a terminal. Secrets are never taken from the command line."""

from __future__ import annotations

import getpass
import os
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from opencoti.console import Console
from opencoti.errors import ConfigError, StorageError, storage_error
from opencoti.files import write_atomic
from opencoti.minisign import PublicKey
from release.keys import SENSITIVE, KdfLimits, SecretKey

KEY_VARIABLE = "OPENCOTI_SIGNING_KEY"
PASSWORD_VARIABLE = "OPENCOTI_SIGNING_PASSWORD"  # noqa: S105 - the name of a variable
_MAX_BYTES = 64 << 10


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What keys are read from, so that tests can put in their own. `ask` is None without a terminal."""

    environ: Mapping[str, str]
    ask: Callable[[str], str] | None

    @classmethod
    def real(cls) -> Surroundings:
        """Return those of this process."""
        return cls(environ=os.environ, ask=getpass.getpass if sys.stdin.isatty() else None)

    def password(self) -> str:
        """Return the password of a signing key.

        Raises:
            ConfigError: `signing-password-missing`.
        """
        if given := self.environ.get(PASSWORD_VARIABLE):
            return given
        if self.ask is None:
            raise ConfigError(
                "signing-password-missing",
                "the signing key has a password, and nobody can be asked for it",
                hint=f"set {PASSWORD_VARIABLE}",
            )
        return self.ask("Password of the signing key: ")

    def new_password(self) -> str:
        """Return a password for a new key, asked for twice. Raises like `password`."""
        first = self.password()
        is_typed = not self.environ.get(PASSWORD_VARIABLE) and self.ask is not None
        if is_typed and self.ask is not None and self.ask("Again: ") != first:
            raise ConfigError(
                "signing-password-differs",
                "the two passwords differ",
                hint="start again, nothing was written",
            )
        if not first:
            raise ConfigError(
                "signing-password-missing", "the password is empty", hint="use --no-password to have none"
            )
        return first


def find_secret_key(file: Path | None, console: Console, surroundings: Surroundings) -> SecretKey:
    """Return the signing key from a file, else from `OPENCOTI_SIGNING_KEY`.

    Raises:
        ConfigError: `signing-key-missing`, `signing-key-malformed`, `signing-password-missing`,
            `signing-password-wrong`.
        StorageError: the file cannot be read.
    """
    if file is not None:
        _warn_if_public(file, console)
        return SecretKey.parse(_read(file), str(file), surroundings.password)
    text = surroundings.environ.get(KEY_VARIABLE, "")
    if not text.strip():
        raise ConfigError(
            "signing-key-missing",
            "there is no key to sign with",
            hint=f"name one with --key FILE or in {KEY_VARIABLE}, or use --ephemeral for a development build",
        )
    data = text.strip().replace("\r\n", "\n").encode("utf-8", "replace")
    return SecretKey.parse(data, f"in {KEY_VARIABLE}", surroundings.password)


def read_public_key(given: str) -> PublicKey:
    """Return the public key of a `.pub` file, or of the line that starts with RW itself.

    Raises:
        ConfigError: `public-key-malformed`.
        StorageError: the file cannot be read.
    """
    if given.startswith("RW") and not Path(given).exists():
        return PublicKey.parse(given.encode("utf-8", "replace"), "on the command line")
    return PublicKey.parse(_read(Path(given)), given)


def write_key_pair(
    prefix: Path, key: SecretKey, password: str | None, *, limits: KdfLimits = SENSITIVE
) -> tuple[Path, Path]:
    """Write `PREFIX.key` (mode 0600) and `PREFIX.pub`; never over an existing file.

    Raises:
        StorageError: `key-exists`; the folder cannot be written.
    """
    secret, public = (prefix.with_name(prefix.name + suffix) for suffix in (".key", ".pub"))
    for path in (secret, public):
        if path.exists() or path.is_symlink():
            raise StorageError(
                "key-exists", f"{path} exists", hint="a key is never overwritten: move it away"
            )
    write_atomic(secret, key.render(password, limits), mode=0o600)
    write_atomic(public, key.public.render())
    return secret, public


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_BYTES)
    except OSError as exc:
        raise storage_error(exc, f"cannot read key {path}") from exc


def _warn_if_public(path: Path, console: Console) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as exc:
        raise storage_error(exc, f"cannot read key {path}") from exc
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        console.warn(f"{path} can be read by other users: chmod 600 {path}")
