"""Taking files of a build folder back from a daemon that cannot see this machine."""

from __future__ import annotations

import posixpath
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from ci.engines.client import EngineClient, translated
from ci.engines.compiler_cache import STATS_FILE
from ci.engines.container import OUT, ContainerRequest, new_run_id, run_container
from ci.engines.transfer import Received, is_inside, match_path, receive_file
from ci.stages.model import Stage
from opencoti.console import Console
from opencoti.errors import BuildError, VerificationError

# What `ci.stages.checks` reads between steps, what explains a failed configuration, what the cache did.
CHECKED: Final = (
    "CMakeCache.txt",
    "build.ninja",
    "CMakeFiles/rules.ninja",
    "CMakeFiles/CMakeConfigureLog.yaml",
    STATS_FILE,
)
_LINKS_FOLLOWED: Final = 8
_NAMES_PER_CALL: Final = 500
# The images have no `find`.
_LIST: Final = """walk() {
for entry in "$1"/* "$1"/.[!.]*; do
if [ -d "$entry" ] && [ ! -h "$entry" ]; then walk "$entry"; elif [ -f "$entry" ]; then echo "${entry#./}"; fi
done
}
walk .
"""


def run_inside(
    client: EngineClient, template: ContainerRequest, argv: tuple[str, ...], console: Console
) -> list[str]:
    """Run a helper command in a container like those of the stage; return the lines it printed.

    Raises:
        BuildError: `remote-command-failed`.
    """
    lines: list[str] = []
    # By the name: `sh` looks it up in the stage's own PATH, the folder of the tools.
    request = replace(template, argv=("/bin/sh", "-c", 'exec "$@"', "sh", *argv), run_id=new_run_id())
    ended = run_container(client, request, lines.append, console)
    if ended.code != 0:
        raise BuildError(
            "remote-command-failed",
            f"{' '.join(argv[:3])} failed in a container at {client.daemon.endpoint}",
            why=f"exit code {ended.code}: {' '.join(lines[-3:])[:300]}",
            hint="run the command again; `--engine host` builds without containers",
        )
    return lines


class OutputReader:
    """Brings files of the build folder back; `holder` is a container that has it mounted."""

    def __init__(
        self, client: EngineClient, template: ContainerRequest, *, holder: str, out: Path, console: Console
    ) -> None:
        self._client = client
        self._template = template
        self._holder = holder
        self._out = out
        self._console = console

    def fetch_checked(self) -> None:
        """Bring back what the checks between steps look at, as far as it is there."""
        for name in CHECKED:
            self._fetch(name)

    def fetch_outputs(self, stage: Stage) -> None:
        """Bring back every file that the stage declares; one that is not there is nobody's concern here.

        Raises:
            VerificationError: `remote-output-damaged`, a file has other bytes than in the container.
        """
        names = self._names(stage.outputs)
        wanted = self._hash(names)
        size = 0
        for name in names:
            received = self._fetch(name)
            if received is None or received.sha256 != wanted.get(name):
                raise VerificationError(
                    "remote-output-damaged",
                    f"output {name} of stage {stage.name} did not come back whole",
                    why=f"SHA-256 in the container {wanted.get(name, 'unknown')}, "
                    f"here {received.sha256 if received else 'no file'}",
                    hint="run the command again; if it happens twice, look at the connection and the daemon",
                )
            size += received.size
        self._console.info(f"   outputs: {len(names)} files fetched, {size / 1e6:.1f} MB")

    def _names(self, patterns: tuple[str, ...]) -> list[str]:
        found = run_inside(self._client, self._template, ("/bin/sh", "-c", _LIST), self._console)
        matching = {name for name in found if any(match_path(name, pattern) for pattern in patterns)}
        return sorted(filter(is_inside, matching))

    def _hash(self, names: list[str]) -> dict[str, str]:
        hashes: dict[str, str] = {}
        for start in range(0, len(names), _NAMES_PER_CALL):
            command = ("cmake", "-E", "sha256sum", *names[start : start + _NAMES_PER_CALL])
            for line in run_inside(self._client, self._template, command, self._console):
                digest, _, name = line.partition("  ")
                hashes[name] = digest
        return hashes

    def _fetch(self, name: str) -> Received | None:
        """Bring one file back under its own name; a link is followed inside the build folder."""
        target = self._out / name
        target.unlink(missing_ok=True)
        place = name
        for _ in range(_LINKS_FOLLOWED):
            received = self._receive(place, target)
            if received is None or not received.link:
                return received
            place = posixpath.normpath(posixpath.join(posixpath.dirname(place), received.link))
            place = posixpath.relpath(place, OUT) if place.startswith("/") else place
            if not is_inside(place):
                return None
        return None

    def _receive(self, place: str, target: Path) -> Received | None:
        import docker

        with translated(self._client.daemon, f"send {place}"):
            try:
                chunks, _ = self._client.stream.get_archive(self._holder, f"{OUT}/{place}")
            except docker.errors.NotFound:
                return None
            try:
                return receive_file(iter(chunks), target, name=posixpath.basename(place))
            except tarfile.TarError as exc:
                target.unlink(missing_ok=True)
                raise VerificationError(
                    "remote-stream-cut",
                    f"{place} did not come back whole from {self._client.daemon.endpoint}",
                    why=str(exc),
                    hint="run the command again; look at the connection and the log of the daemon",
                ) from exc
