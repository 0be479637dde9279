"""Every error that a user can cause, by exit code. Imports nothing of this project.

An error has a kebab-case id (listed in `docs/reference/errors.md`) and up to three texts: what failed
and on what, why, and what to do next. Code that handles an error decides by its type or id, never by
its text.
"""

from __future__ import annotations

import errno
from typing import ClassVar


class OpencotiError(Exception):
    """Base of all expected failures.

    Args:
        error_id: kebab-case name of this failure; one id always has one exit code.
        what: what failed, and on what.
        why: the measured reason, empty when `what` says it all.
        hint: what the user should do next.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, error_id: str, what: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.error_id = error_id
        self.what = what
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}: {self.why}" if self.why else self.what

    def as_dict(self) -> dict[str, object]:
        """Return the error as data, the form that `--json` prints."""
        return {
            "error": self.error_id,
            "exit_code": self.exit_code,
            "what": self.what,
            "why": self.why,
            "hint": self.hint,
        }


class UsageError(OpencotiError):
    """A command was called with words it does not understand."""

    exit_code = 2


class ConfigError(OpencotiError):
    """A pin, lock, manifest, table or series file is malformed or contradicts itself."""

    exit_code = 3


class MissingError(OpencotiError):
    """A toolchain, container engine, device or program is not there."""

    exit_code = 4


class BuildError(OpencotiError):
    """A build, patch or packaging step failed."""

    exit_code = 5


class VerificationError(OpencotiError):
    """Bytes are not what they should be: hash, signature, policy, rollback."""

    exit_code = 6


class NetworkError(OpencotiError):
    """The network or a remote service failed."""

    exit_code = 7


class StorageError(OpencotiError):
    """A disk is full or read-only, or a permission is missing."""

    exit_code = 8


class BusyError(OpencotiError):
    """Someone else holds what this command needs."""

    exit_code = 9


def storage_error(exc: OSError, what: str) -> StorageError:
    """Turn an `OSError` on a local file into a `StorageError` that says what to do about it."""
    hints = {
        errno.ENOSPC: "free some space, or set OPENCOTI_CACHE_DIR or OPENCOTI_BUILD_CACHE to another disk",
        errno.EDQUOT: "the quota is used up: free some space",
        errno.EROFS: "the file system is read-only: choose another folder",
        errno.EACCES: "check the owner and the mode of the folder",
        errno.EPERM: "check the owner and the mode of the folder",
        errno.EISDIR: "a folder stands where a file should be: rename or remove it",
        errno.ENOTDIR: "a file stands where a folder should be: rename or remove it",
    }
    return StorageError(
        "storage-failed", what, why=exc.strerror or str(exc), hint=hints.get(exc.errno or 0, "")
    )
