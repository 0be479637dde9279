"""Where the engine of a smoke test runs: this machine, or a container that has a device that it lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

from ci.smoke.emulation import Emulator
from ci.smoke.scratch import Scratch
from ci.smoke.server import Server, launch


class Place(Protocol):
    """Starts engines."""

    def address(self, scratch: Scratch, port: int) -> tuple[str, ...]:
        """Return the words of the command line that say where a server listens; `port` 0: its own choice."""

    def launch(
        self,
        artifact: Path,
        arguments: Sequence[str],
        *,
        scratch: Scratch,
        log: IO[bytes],
        variables: Mapping[str, str],
    ) -> Server:
        """Start an artifact. Raises like `ci.smoke.server.launch`."""


@dataclass(frozen=True, kw_only=True)
class ThisMachine:
    """The engine is a process of this machine, emulated or not."""

    emulator: Emulator | None = None

    def address(self, scratch: Scratch, port: int) -> tuple[str, ...]:
        """See `Place.address`."""
        return ("--host", "127.0.0.1", "--port", str(port))

    def launch(
        self,
        artifact: Path,
        arguments: Sequence[str],
        *,
        scratch: Scratch,
        log: IO[bytes],
        variables: Mapping[str, str],
    ) -> Server:
        """See `Place.launch`."""
        return launch(
            artifact, arguments, scratch=scratch, log=log, emulator=self.emulator, variables=variables
        )


HERE: Final = ThisMachine()
