"""Folders, ports, proxies and settings around the engine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from opencoti import paths, procfs
from opencoti.doctor.finding import Finding
from opencoti.errors import OpencotiError
from opencoti.launch.environment import is_held_back
from opencoti.launch.failures import is_noexec

_LEAST_FREE_BYTES: Final = 1 << 30
_FULL_BYTES: Final = 64 << 20  # an engine does not even unpack
_USUAL_PORTS: Final = (8080, 9931, 11434)
_PROXIES: Final = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")
_RUNTIME_VARIABLES: Final = (
    "OPENCOTI_CACHE_DIR",
    "OPENCOTI_MIRROR",
    "OPENCOTI_OFFLINE",
    "OPENCOTI_LLAMAFILE_LOCAL",
    "OPENCOTI_EMBEDDER_LOCAL",
    "OPENCOTI_EXTRACT_DIR",
    "OLLAMA_MODELS",
    "SSL_CERT_FILE",
)


def examine_folders(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Look at the folders that fetching and running write to."""
    from opencoti.launch.state import engines_folder

    yield _named("cache", lambda: paths.cache_folder(environ))
    yield _named("engine notes", lambda: engines_folder(environ))
    home = environ.get("HOME", "")
    base = environ.get("OPENCOTI_EXTRACT_DIR", "") or (f"{home}/.llamafile" if home else "")
    if base:
        yield _folder("unpacking", Path(base), runs_programs=True)
    else:
        yield Finding(
            topic="folders",
            name="unpacking",
            status="note",
            found="HOME is not set",
            advice="the launcher asks the user database; a bare start needs OPENCOTI_EXTRACT_DIR",
        )


def _named(name: str, find: Callable[[], Path]) -> Finding:
    try:
        return _folder(name, find(), runs_programs=name == "cache")
    except OpencotiError as error:
        return Finding.of_error("folders", name, error)


def _folder(name: str, folder: Path, *, runs_programs: bool) -> Finding:
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(nearest).free
    data = {"path": str(folder), "exists": folder.exists(), "free_bytes": free}
    told = f"{folder}{'' if folder.exists() else ' (not there yet)'}, {free / 1e9:.1f} GB free"
    trouble = _trouble(folder, nearest, free, runs_programs=runs_programs)
    if trouble is None:
        return Finding(topic="folders", name=name, status="ok", found=told, data=data)
    what, advice, is_fatal = trouble
    return Finding(
        topic="folders",
        name=name,
        status="fail" if is_fatal else "warn",
        found=f"{told}: {what}",
        advice=advice,
        exit_code=8 if is_fatal else 0,
        data=data,
    )


def _trouble(folder: Path, nearest: Path, free: int, *, runs_programs: bool) -> tuple[str, str, bool] | None:
    """Return what is wrong with a folder, what to do, and whether nothing works without that."""
    elsewhere = "set OPENCOTI_EXTRACT_DIR" if ".llamafile" in folder.parts else "set OPENCOTI_CACHE_DIR"
    if not folder.is_absolute():
        return "it is no absolute path", "give OPENCOTI_EXTRACT_DIR in full", True
    if not nearest.is_dir():
        return f"{nearest} is no folder", f"remove it, or {elsewhere} to another folder", True
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"{nearest} cannot be written", f"{elsewhere} to a folder that can be written", True
    if runs_programs and is_noexec(nearest):
        return "programs may not run there (noexec)", f"{elsewhere} to a folder on another file system", True
    if free < _LEAST_FREE_BYTES:
        return "nearly full", f"free some space, or {elsewhere} to another disk", free < _FULL_BYTES
    return None


def examine_network(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Look at proxies, ports and running engines; nothing is sent anywhere."""
    yield _proxies(environ)
    yield _ports()
    yield _engines(environ)


def _proxies(environ: Mapping[str, str]) -> Finding:
    found = {}
    for name in _PROXIES:
        value = environ.get(name) or environ.get(name.lower(), "")
        if value:
            found[name] = value if name == "NO_PROXY" else without_password(value)
    told = ", ".join(f"{name}={value}" for name, value in found.items())
    return Finding(
        topic="network",
        name="proxies",
        status="ok",
        found=f"{told}; never used for an engine on this machine" if found else "none",
        data=found,
    )


def without_password(address: str) -> str:
    """Return the address of a proxy without the user and password that may be in it."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(not an address)"
    scheme = f"{parts.scheme}://" if parts.scheme else ""
    hidden = "***@" if parts.username or parts.password else ""
    return f"{scheme}{hidden}{host}{port}"


def _ports() -> Finding:
    taken = {item.port: procfs.owner_of(item) for item in procfs.listeners() if item.port in _USUAL_PORTS}
    told = ", ".join(f"{port} is taken by {owner}" for port, owner in sorted(taken.items()))
    return Finding(
        topic="network",
        name="ports",
        status="note" if taken else "ok",
        found=told or f"{', '.join(map(str, _USUAL_PORTS))} are free; the launcher chooses a free one anyway",
        data={str(port): owner for port, owner in taken.items()},
    )


def _engines(environ: Mapping[str, str]) -> Finding:
    from opencoti.launch.state import engines_folder, known_states

    try:
        states = list(known_states(engines_folder(environ)))
    except OpencotiError as error:
        return Finding.of_error("network", "engines", error, status="warn")
    stale = [state.name for state in states if state.condition() == "stale"]
    told = ", ".join(f"{state.name} {state.condition()} at {state.url}" for state in states)
    return Finding(
        topic="network",
        name="engines",
        status="note" if stale else "ok",
        found=told or "none runs",
        advice=f"`python -m opencoti.launch stop {stale[0]}` removes what is left of it" if stale else "",
        data={"engines": [state.as_dict() for state in states]},
    )


def examine_variables(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Look at the variables that change what is done."""
    found = {name: environ[name] for name in _RUNTIME_VARIABLES if environ.get(name)}
    found = {name: without_password(x) if "MIRROR" in name else x for name, x in found.items()}
    told = ", ".join(f"{name}={value}" for name, value in found.items())
    yield Finding(topic="settings", name="variables", status="ok", found=told or "none is set", data=found)
    held = sorted(name for name in environ if is_held_back(name))
    if held:
        # Names only: OPENCOTI_SIGNING_KEY is among them.
        yield Finding(
            topic="settings",
            name="held back",
            status="note",
            found=f"{', '.join(held)}: the launcher keeps them from the engine",
            advice="unset what you do not need; --pass-env NAME lets one through",
            data={"names": held},
        )
