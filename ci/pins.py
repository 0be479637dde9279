"""Source pins: which upstream tree is built, as one line in `vendors/pin/<source>.txt`.

Three forms, one line, `#` starts a comment:

    sdist:<project>==<version>#<folder> <commit> <tag> sha256=<hex> [tree=<git tree id>]
    <url> <commit> <tag> [tree=<git tree id>]
    submodule:<url> <commit> <tag> [tree=<git tree id>]

`commit` is the upstream commit (40 hex), `tag` the upstream version, `tree` the git tree id (40 hex) of the
pristine tree, which anyone can compute with `git write-tree`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from opencoti.errors import ConfigError
from opencoti.hashing import is_sha256

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TAG = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")
_SDIST = re.compile(
    r"sdist:(?P<project>[A-Za-z0-9._-]+)==(?P<version>[A-Za-z0-9.]+)#(?P<folder>[A-Za-z0-9._/-]+)"
)
_SUBMODULE = "submodule:"
_GIT_URL = re.compile(r"(https://|file:///|ssh://|git@)\S+")


@dataclass(frozen=True, kw_only=True)
class SdistOrigin:
    """A folder inside a source distribution of a Python package index."""

    project: str
    version: str
    folder: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class GitOrigin:
    """A git repository."""

    url: str


@dataclass(frozen=True, kw_only=True)
class SubmoduleOrigin:
    """A git submodule of this checkout, `vendors/sources/<name of the pin>`, which the user brings there.

    Its own submodules belong to the source, and so do the patches that it applies to them.
    """

    url: str


@dataclass(frozen=True, kw_only=True)
class SourcePin:
    """One pinned upstream tree."""

    name: str
    origin: SdistOrigin | GitOrigin | SubmoduleOrigin
    commit: str
    tag: str
    tree: str | None
    path: Path

    @property
    def version(self) -> str:
        """The `<ver>` of file names and version strings: upstream version and seven digits of the commit.

        A submodule is pinned at a release of its upstream, whose number says it all; the engine looks for
        its libraries below a folder of that name.
        """
        if isinstance(self.origin, SubmoduleOrigin):
            return self.tag
        return f"{self.tag}-g{self.commit[:7]}"

    @classmethod
    def load(cls, path: Path) -> SourcePin:
        """Read a pin file.

        Raises:
            ConfigError: `pin-missing`, `pin-malformed`; the message names the file and the field.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError as exc:
            raise ConfigError(
                "pin-missing", f"there is no pin {path}", hint="see docs/reference/pins.md for the format"
            ) from exc
        except UnicodeDecodeError as exc:
            raise _malformed(path, f"byte {exc.start} is not UTF-8") from exc
        lines = [line.strip() for line in text.splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        if len(lines) != 1:
            raise _malformed(path, f"expected one line that is no comment, found {len(lines)}")
        return cls.from_line(lines[0], path)

    @classmethod
    def from_line(cls, line: str, path: Path) -> SourcePin:
        """Read the one line of a pin; `path` gives the source its name. Raises `pin-malformed`."""
        return cls._parse(line.split(), path)

    @classmethod
    def _parse(cls, words: list[str], path: Path) -> SourcePin:
        if len(words) < 3:
            raise _malformed(
                path, f"expected `<origin> <commit> <tag> [key=value]`, found {len(words)} fields"
            )
        origin_text, commit, tag, *rest = words
        options = _options(rest, path)
        if not _COMMIT.fullmatch(commit):
            raise _malformed(path, f"commit {commit[:60]!r} is not 40 lowercase hex digits")
        if not _TAG.fullmatch(tag):
            raise _malformed(path, f"tag {tag[:60]!r} holds other characters than letters, digits, . _ -")
        tree = options.pop("tree", None)
        if tree is not None and not _COMMIT.fullmatch(tree):
            raise _malformed(path, f"tree {tree[:60]!r} is not 40 lowercase hex digits")
        origin = _origin(origin_text, options, path)
        if options:
            raise _malformed(path, f"unknown field {next(iter(options))!r}; known are sha256 and tree")
        return cls(name=path.stem, origin=origin, commit=commit, tag=tag, tree=tree, path=path)


def _options(words: list[str], path: Path) -> dict[str, str]:
    options: dict[str, str] = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or key in options:
            raise _malformed(path, f"field {word[:60]!r} is not `key=value`, or stands twice")
        options[key] = value
    return options


def _origin(text: str, options: dict[str, str], path: Path) -> SdistOrigin | GitOrigin | SubmoduleOrigin:
    if match := _SDIST.fullmatch(text):
        sha256 = options.pop("sha256", "")
        if not is_sha256(sha256):
            raise _malformed(path, "an sdist pin needs sha256=<64 lowercase hex digits>")
        folder = match["folder"]
        if folder.startswith("/") or ".." in folder.split("/"):
            raise _malformed(path, f"folder {folder!r} leaves the archive")
        return SdistOrigin(project=match["project"], version=match["version"], folder=folder, sha256=sha256)
    url = text.removeprefix(_SUBMODULE)
    if _GIT_URL.fullmatch(url):
        return GitOrigin(url=url) if url == text else SubmoduleOrigin(url=url)
    raise _malformed(
        path,
        f"origin {text[:80]!r} is neither `sdist:<project>==<version>#<folder>`, nor `submodule:<git url>`, "
        "nor a git URL",
    )


def _malformed(path: Path, why: str) -> ConfigError:
    return ConfigError(
        "pin-malformed", f"cannot read pin {path}", why=why, hint="see docs/reference/pins.md for the format"
    )
