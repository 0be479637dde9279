"""Where a client keeps what it has seen: the ratchet and proofs per repo and product, and newer trust roots.

Two things in one folder: `seen.json` (`opencoti.seen/1`, see `opencoti.trust.memory`), and the roots that
were fetched after installation, as they were signed; they are verified again at each start, from the shipped
root on. Files are written whole and under a lock. Call `remember` only after the job has fully succeeded: a
failed or stopped one must leave no trace. A damaged file is an error and not a fresh start: forgetting is a
decision of the user, who may remove the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opencoti import paths
from opencoti.errors import ConfigError, storage_error
from opencoti.fetch.lock import target_lock
from opencoti.files import write_atomic
from opencoti.jsonio import parse_strict, render_json
from opencoti.minisign import SIGNATURE_SUFFIX
from opencoti.trust.memory import Memory, Observation, Scope, Seen, Strength, TrustState, merge

if TYPE_CHECKING:
    from opencoti.trust.chain import RootLink, TrustedRoot

SCHEMA = "opencoti.seen/1"
SEEN_NAME = "seen.json"
_MAX_BYTES = 1 << 20
_LOCK_NAME = "trust.lock"
_STRENGTHS = {strength.label: strength for strength in Strength}


def trust_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder: in `OPENCOTI_CACHE_DIR` if that is set, else in the system's place for state.

    Not in the default cache, which people empty without a thought.

    Raises:
        ConfigError: `no-cache-folder`, no home folder is known.
    """
    if (os.environ if environ is None else environ).get(paths.CACHE_VARIABLE):
        return paths.cache_folder(environ) / "trust"
    try:
        import platformdirs

        return platformdirs.user_state_path("opencoti", appauthor=False).expanduser() / "trust"
    except RuntimeError as exc:
        raise ConfigError(
            "no-cache-folder",
            "cannot tell where to keep what was verified",
            why=str(exc),
            hint=f"set HOME, or {paths.CACHE_VARIABLE} to a folder",
        ) from exc


def load(folder: Path) -> TrustState:
    """Read what was seen; nothing where the folder or the file is not there.

    Raises:
        ConfigError: `seen-malformed`, `json-malformed`.
        StorageError: the file cannot be read.
    """
    path = folder / SEEN_NAME
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return TrustState()
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
    return parse_state(data, str(path))


def remember(folder: Path, *observations: Observation) -> None:
    """Add what a finished job has shown. Sequences and proofs never go down.

    Raises:
        VerificationError: `index-equivocation`, another process saw another index meanwhile.
        ConfigError, StorageError: as `load`; the folder cannot be written.
    """
    _make_folder(folder)
    with target_lock(folder / _LOCK_NAME, lambda _: None) as lock:
        before = load(folder)
        after = before
        for observation in observations:
            after = merge(after, observation)
        if after != before:
            lock.require_held()
            write_atomic(folder / SEEN_NAME, render_state(after), mode=0o600)


def load_root(folder: Path, shipped: TrustedRoot) -> TrustedRoot:
    """Return the newest root: the shipped one, or what was fetched since, verified again link by link.

    Raises:
        VerificationError, ConfigError: as `walk`; a stored root was tampered with.
        StorageError: a file cannot be read.
    """
    from opencoti.trust.chain import walk

    root = shipped
    while (link := _stored_link(folder, root.version + 1)) is not None:
        root = walk(root, [link])
    return root


def remember_root(folder: Path, root: TrustedRoot, link: RootLink) -> TrustedRoot:
    """Verify the root that follows `root`, keep it, and return it.

    Raises:
        VerificationError, ConfigError: as `walk`; nothing is kept.
        StorageError: the folder cannot be written.
    """
    from opencoti.trust.chain import walk

    newer = walk(root, [link])
    _make_folder(folder)
    path = _root_path(folder, newer.version)
    with target_lock(folder / _LOCK_NAME, lambda _: None):
        # The signatures first: a root without them would be refused at the next start.
        write_atomic(path.with_name(path.name + SIGNATURE_SUFFIX), link.signatures)
        write_atomic(path, link.data)
    return newer


def parse_state(data: bytes, origin: str) -> TrustState:
    """Read the text of `seen.json`. Raises `ConfigError` (`seen-malformed`, `json-malformed`)."""
    document = parse_strict(data, origin, max_bytes=_MAX_BYTES)
    try:
        return _state_of(document)
    except (KeyError, TypeError, ValueError) as exc:
        raise ConfigError(
            "seen-malformed",
            f"cannot read {origin}",
            why="it is not what opencoti wrote",
            hint="it guards against old releases offered as new; remove it to go on without that memory",
        ) from exc


def render_state(state: TrustState) -> bytes:
    """Return the bytes of `seen.json`."""
    return render_json({"schema": SCHEMA, "seen": [_memory_dict(memory) for memory in state.memories]})


def _memory_dict(memory: Memory) -> dict[str, Any]:
    return {
        "repo": memory.scope.repo,
        "product": memory.scope.product,
        "strength": None if memory.strength is None else memory.strength.label,
        "indexes": [{"key": s.key, "sequence": s.sequence, "sha256": s.sha256} for s in memory.seen],
    }


def _state_of(document: Any) -> TrustState:
    if document["schema"] != SCHEMA:
        raise ValueError(document["schema"])
    memories = tuple(_memory_of(item) for item in _list(document["seen"]))
    if len({memory.scope for memory in memories}) != len(memories):
        raise ValueError("a repo and product stand twice")
    return TrustState(memories=memories)


def _memory_of(item: Any) -> Memory:
    strength = item["strength"]
    return Memory(
        scope=Scope(repo=_string(item["repo"]), product=_string(item["product"])),
        strength=None if strength is None else _STRENGTHS[strength],
        seen=tuple(_seen_of(entry) for entry in _list(item["indexes"])),
    )


def _seen_of(entry: Any) -> Seen:
    sequence = entry["sequence"]
    if type(sequence) is not int or sequence < 1:
        raise ValueError(sequence)
    return Seen(key=_string(entry["key"]), sequence=sequence, sha256=_string(entry["sha256"]))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(value)
    return value


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _stored_link(folder: Path, version: int) -> RootLink | None:
    from opencoti.trust.chain import RootLink

    path = _root_path(folder, version)
    try:
        return RootLink(
            data=path.read_bytes(), signatures=path.with_name(path.name + SIGNATURE_SUFFIX).read_bytes()
        )
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc


def _root_path(folder: Path, version: int) -> Path:
    from opencoti.trust.document import root_name

    return folder / root_name(version)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as exc:
        raise storage_error(exc, f"cannot create {folder}") from exc
