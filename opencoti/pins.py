"""Artifact pins: which published file is wanted, and the SHA-256 that it must have.

One line, `#` starts a comment line, fields are separated by blanks:

    <owner>/<repo> <tag> <asset> <sha256>
    file:<path>    <tag> <asset> <sha256>

`<path>` may hold blanks; a relative one counts from the working directory of whoever resolves it. Source pins
of the build side (`vendors/pin/`) are another format. Nothing here touches the network.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opencoti.errors import ConfigError
from opencoti.files import require_safe_name
from opencoti.hashing import is_sha256

NO_RELEASE: Final = "no release yet"
_FILE_PREFIX = "file:"
_MAX_PIN_BYTES = 64 << 10
_REPOSITORY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})/(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}")
_TAG = re.compile(r"[0-9A-Za-z][0-9A-Za-z._+-]{0,127}")
_HINT = "see docs/reference/artifact-pins.md for the format"


@dataclass(frozen=True, kw_only=True)
class RepositoryOrigin:
    """A release of a repository on GitHub (or on the mirror that stands in for it)."""

    repository: str


@dataclass(frozen=True, kw_only=True)
class FileOrigin:
    """A file on this machine; `path` is as written, possibly relative."""

    path: str


@dataclass(frozen=True, kw_only=True)
class ArtifactPin:
    """One pinned file. `asset` is a safe plain file name, `sha256` lowercase hex."""

    origin: RepositoryOrigin | FileOrigin
    tag: str
    asset: str
    sha256: str
    read_from: str

    @classmethod
    def load(cls, path: Path) -> ArtifactPin:
        """Read a pin file.

        Raises:
            ConfigError: `artifact-pin-missing`, `artifact-pin-malformed`, `no-release`.
            VerificationError: `unsafe-name`, the asset is no plain file name.
        """
        try:
            with open(path, "rb") as file:
                data = file.read(_MAX_PIN_BYTES + 1)
        except OSError as exc:
            raise ConfigError(
                "artifact-pin-missing", f"cannot read pin {path}", why=exc.strerror or str(exc), hint=_HINT
            ) from exc
        if len(data) > _MAX_PIN_BYTES:
            raise _malformed(str(path), f"it is longer than {_MAX_PIN_BYTES} bytes")
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as exc:
            raise _malformed(str(path), f"byte {exc.start} is not UTF-8") from exc
        return cls.parse(text, str(path))

    @classmethod
    def load_shipped(cls, package: str = "opencoti.fetch") -> ArtifactPin:
        """Read the pin that is installed with one of our packages. Raises like `load`."""
        from importlib import resources

        text = resources.files(package).joinpath("pin.txt").read_text(encoding="utf-8")
        return cls.parse(text, "the shipped pin")

    @classmethod
    def parse(cls, text: str, read_from: str) -> ArtifactPin:
        """Read the text of a pin file; `read_from` names it in messages. Raises like `load`."""
        lines = [line.strip() for line in text.removeprefix("\ufeff").splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        if lines == [NO_RELEASE]:
            raise ConfigError(
                "no-release",
                f"{read_from} says: {NO_RELEASE}",
                why="nothing has been published that could be downloaded",
                hint="build it with `./noxw -s quickstart` in a checkout, or name a pin with --pin FILE",
            )
        if len(lines) != 1:
            raise _malformed(read_from, f"expected one line that is no comment, found {len(lines)}")
        return cls._parse_line(lines[0], read_from)

    @classmethod
    def _parse_line(cls, line: str, read_from: str) -> ArtifactPin:
        fields = line.rsplit(None, 3)
        if len(fields) != 4:
            raise _malformed(
                read_from, f"expected `<origin> <tag> <asset> <sha256>`, found {len(fields)} fields"
            )
        origin, tag, asset, sha256 = fields
        if not is_sha256(sha256.lower()):
            raise _malformed(read_from, f"sha256 {sha256[:80]!r} is not 64 hex digits")
        if not _TAG.fullmatch(tag):
            raise _malformed(
                read_from, f"tag {tag[:60]!r} holds other characters than letters, digits, . _ + -"
            )
        return cls(
            origin=_origin(origin, read_from),
            tag=tag,
            asset=require_safe_name(asset, read_from),
            sha256=sha256.lower(),
            read_from=read_from,
        )


def is_repository(text: str) -> bool:
    """Tell whether `text` is `<owner>/<repo>`."""
    return _REPOSITORY.fullmatch(text) is not None


def is_tag(text: str) -> bool:
    """Tell whether `text` can be the tag of a release."""
    return _TAG.fullmatch(text) is not None


def _origin(text: str, read_from: str) -> RepositoryOrigin | FileOrigin:
    if text.startswith(_FILE_PREFIX):
        path = text[len(_FILE_PREFIX) :]
        if not path or "\0" in path:
            raise _malformed(read_from, f"`file:` is followed by no usable path: {path[:60]!r}")
        return FileOrigin(path=path)
    if not _REPOSITORY.fullmatch(text):
        raise _malformed(read_from, f"origin {text[:80]!r} is neither `<owner>/<repo>` nor `file:<path>`")
    return RepositoryOrigin(repository=text)


def _malformed(read_from: str, why: str) -> ConfigError:
    return ConfigError("artifact-pin-malformed", f"cannot read pin {read_from}", why=why, hint=_HINT)
