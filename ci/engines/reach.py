"""Finding out whether a daemon sees this machine's folders, by asking it for a file that we have just made.

The address tells nothing: a socket may be forwarded or mounted into a container, a TCP port may be local,
and a path that exists on both sides may be two folders.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ci.engines.client import EngineClient, translated
from ci.engines.container import (
    BAD_REQUEST,
    ContainerRequest,
    Mount,
    UserMapping,
    create_arguments,
    remove_container,
)
from ci.engines.signals import SignalGate
from ci.engines.transfer import receive_file
from ci.engines.workplace import StageFolders
from opencoti.console import Console
from opencoti.errors import VerificationError, storage_error

_NONCE: Final = ".opencoti-nonce"


def sees_folders(
    client: EngineClient,
    image: str,
    folders: StageFolders,
    *,
    platform: str,
    console: Console,
) -> bool:
    """Tell whether containers of this daemon can mount the three folders of a stage.

    A container is made and looked into, never started.

    Raises:
        MissingError: the daemon went away.
        StorageError: a folder cannot be written.
    """
    with _nonces(folders.out, folders.tool_cache) as expected:
        if witness := _witness(folders.source):
            expected = {**expected, folders.source.resolve(): witness}
        mounts = tuple(
            Mount(source=str(folder), target=f"/reach{number}", is_read_only=True)
            for number, folder in enumerate(expected)
        )
        request = ContainerRequest(
            image=image,
            argv=("/bin/sh",),
            env={},
            mounts=mounts,
            user=UserMapping(user="65534:65534"),
            platform=platform,
            working_dir="/",
        )
        with SignalGate() as gate:
            try:
                if not _create(client, request):
                    return False
                with gate.open():
                    return all(
                        _read(client, request, f"{mount.target}/{path.name}") == path.read_bytes()
                        for mount, path in zip(mounts, expected.values(), strict=True)
                    )
            finally:
                remove_container(client, request.container_name, console)


@contextmanager
def _nonces(*folders: Path) -> Iterator[Mapping[Path, Path]]:
    """Put a file with a secret into each folder while the block runs: folder to file."""
    files = {folder.resolve(): folder.resolve() / f"{_NONCE}-{secrets.token_hex(8)}" for folder in folders}
    try:
        for file in files.values():
            file.write_text(secrets.token_hex(16), encoding="ascii")
        yield files
    except OSError as exc:
        raise storage_error(exc, f"cannot write {exc.filename}") from exc
    finally:
        for file in files.values():
            file.unlink(missing_ok=True)


def _witness(source: Path) -> Path | None:
    """A file of the source tree, which is not written to: its content must be the same on both sides."""
    files = (path for path in sorted(source.resolve().iterdir()) if path.is_file() and not path.is_symlink())
    return next(files, None)


def _create(client: EngineClient, request: ContainerRequest) -> bool:
    import docker

    with translated(client.daemon, "make a container"):
        try:
            client.api.create_container(**create_arguments(request, client))
        except docker.errors.APIError as exc:
            if exc.status_code == BAD_REQUEST:
                return False
            raise
    return True


def _read(client: EngineClient, request: ContainerRequest, path: str) -> bytes | None:
    import docker

    with tempfile.TemporaryDirectory(prefix="opencoti-reach-") as folder:
        target = Path(folder) / "file"
        with translated(client.daemon, "read a file"):
            try:
                chunks, _ = client.api.get_archive(request.container_name, path)
                receive_file(iter(chunks), target, name=path.rsplit("/", 1)[-1])
            except (docker.errors.NotFound, VerificationError):
                return None
        return target.read_bytes() if target.is_file() else None
