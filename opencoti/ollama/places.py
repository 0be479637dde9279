"""Where Ollama keeps its models: the user's folder, the service's, and what either was told to use.

`store_places` is pure: environment, system and the texts of the service's configuration are arguments.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Final, Literal

from opencoti.ollama.store import Store

VARIABLE: Final = "OLLAMA_MODELS"
System = Literal["linux", "macos", "windows"]
# The installer's service user, and what distributions made of it.
_LINUX_PLACES: Final = (
    "/usr/share/ollama/.ollama/models",
    "/var/lib/ollama/.ollama/models",
    "/var/lib/ollama/models",
    "/var/lib/ollama",
    "/var/snap/ollama/common/models",
)
_SERVICE_FILES: Final = (
    "etc/systemd/system/ollama.service",
    "usr/lib/systemd/system/ollama.service",
    "lib/systemd/system/ollama.service",
)
_MAX_TEXT_BYTES: Final = 64 << 10
# `Environment="A=b" OLLAMA_MODELS=/srv/x` and `"OLLAMA_MODELS=/srv/with space"`.
_ASSIGNMENT: Final = re.compile(r"""(["'])OLLAMA_MODELS=(.*?)\1|(?<![\w"'])OLLAMA_MODELS=(\S+)""")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder that may be a store, and why."""

    path: PurePath
    reason: str


def store_places(
    environ: Mapping[str, str], system: System, *, service_texts: Iterable[str] = ()
) -> tuple[Place, ...]:
    """Return the folders that may be stores, the likeliest first, each once.

    Args:
        environ: environment of this process.
        system: whose rules hold.
        service_texts: unit files of the service, which has an environment of its own (Linux).
    """
    make = PureWindowsPath if system == "windows" else PurePosixPath
    found: list[Place] = []
    if given := environ.get(VARIABLE, "").strip():
        found.append(Place(path=_expanded(make, given, environ), reason=VARIABLE))
    if home := environ.get("USERPROFILE" if system == "windows" else "HOME", ""):
        found.append(Place(path=make(home) / ".ollama" / "models", reason="this user's folder"))
    if system == "linux":
        found += [Place(path=make(x), reason="the service's configuration") for x in _assigned(service_texts)]
        found += [Place(path=make(x), reason="the service's folder") for x in _LINUX_PLACES]
    unique = {place.path: place for place in reversed(found)}
    return tuple(place for place in found if unique[place.path] is place)


def _expanded(make: type[PurePath], given: str, environ: Mapping[str, str]) -> PurePath:
    path = make(given.strip("\"'"))
    home = environ.get("HOME") or environ.get("USERPROFILE") or ""
    if path.parts[:1] == ("~",) and home:
        return make(home, *path.parts[1:])
    return path


def _assigned(texts: Iterable[str]) -> list[str]:
    lines = (line.strip() for text in texts for line in text.splitlines())
    wanted = [line for line in lines if line.startswith("Environment")]
    return [match[2] or match[3] for line in wanted for match in _ASSIGNMENT.finditer(line)]


def service_texts(root: Path = Path("/")) -> list[str]:
    """Return the unit files of the service and their drop-ins, as far as they can be read."""
    files = [root / name for name in _SERVICE_FILES]
    for file in list(files):
        with suppress(OSError):
            files += sorted(file.with_name(file.name + ".d").glob("*.conf"))
    texts = []
    for file in files:
        with suppress(OSError), open(file, encoding="utf-8", errors="replace") as stream:
            texts.append(stream.read(_MAX_TEXT_BYTES))
    return texts


def this_system() -> System:
    """Return the system that we run on."""
    if sys.platform == "win32":
        return "windows"
    return "macos" if sys.platform == "darwin" else "linux"


def known_stores(
    environ: Mapping[str, str] | None = None, *, explicit: Path | None = None, root: Path = Path("/")
) -> tuple[Store, ...]:
    """Return the places to look in on this machine, whether they are there or not.

    Args:
        environ: environment to read instead of this process's.
        explicit: this one only.
        root: where the folders of the system are; another one is for tests.
    """
    if explicit is not None:
        return (Store(root=Path(os.path.abspath(explicit)), reason="--store"),)
    given = os.environ if environ is None else environ
    system = this_system()
    texts = service_texts(root) if system == "linux" else []
    places = store_places(given, system, service_texts=texts)
    return tuple(Store(root=_below(root, place), reason=place.reason) for place in places)


def _below(root: Path, place: Place) -> Path:
    if root == Path("/") or place.reason in (VARIABLE, "this user's folder"):
        return Path(os.path.abspath(place.path))
    return root / place.path.relative_to("/")
