"""Proving a toolchain image: every tool is run once, the probe of every backend compiled and read back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ci.engines.client import EngineClient
from ci.engines.container import ContainerRequest, UserMapping, run_container
from ci.toolchains.probe import measured_targets, probe_command
from ci.toolchains.recipe import Recipe
from ci.toolchains.rootfs import TOOLCHAIN
from ci.toolchains.table import Backend
from opencoti.console import Console
from opencoti.errors import VerificationError

_TOOLS: Final = f"/{TOOLCHAIN}/bin"
_SCRATCH: Final = "/tmp"  # noqa: S108 - of the container
_ENVIRONMENT: Final = {
    "HOME": _SCRATCH,
    "PATH": _TOOLS,
    "ZIG_GLOBAL_CACHE_DIR": _SCRATCH,
    "ZIG_LOCAL_CACHE_DIR": _SCRATCH,
}
_LINES_SHOWN: Final = 3
_WIDTH: Final = 300


def prove_image(
    client: EngineClient,
    tag: str,
    platform: str,
    recipe: Recipe,
    backends: Sequence[Backend],
    console: Console,
) -> None:
    """Compare what the image does with its recipe and with the table.

    Args:
        client: connection to the daemon that has the image.
        tag: name of the image.
        platform: what it runs as, as the daemon writes it.
        recipe: says which commands must show what.
        backends: rows of the table that this toolchain builds.
        console: gets progress.

    Raises:
        VerificationError: `image-unproved`; names every difference.
    """
    proof = _Proof(client, tag, platform, console)
    found = [proof.tool(step.run, step.shows) for step in recipe.prove]
    found += [proof.backend(backend, recipe.arch) for backend in backends if backend.probe]
    if problems := [problem for problem in found if problem]:
        raise VerificationError(
            "image-unproved",
            f"image {tag} does not do what its recipe and the table say",
            why="; ".join(problems),
            hint=f"build it again: `python -m ci images {recipe.name} --build`",
        )


class _Proof:
    """Runs command lines in the folder of the tools; each method returns what is wrong, or nothing."""

    def __init__(self, client: EngineClient, tag: str, platform: str, console: Console) -> None:
        self._client = client
        self._tag = tag
        self._platform = platform
        self._console = console

    def tool(self, command: str, shows: str) -> str:
        """Run a tool that must print `shows`."""
        code, lines = self._run(command)
        if code == 0 and any(shows in line for line in lines):
            return ""
        return f"`{command}` ended with {code} and did not show {shows}: {_tail(lines)}"

    def backend(self, backend: Backend, arch: str) -> str:
        """Compile the probe of a backend for every target of the table."""
        declared = backend.declared_for(arch)
        self._console.info(f"probing {self._tag}: {', '.join(declared)}")
        code, lines = self._run(probe_command(backend, arch))
        if code != 0:
            return f"the probe of {backend.name} ended with {code}: {_tail(lines)}"
        measured = measured_targets(backend, lines)
        if measured == declared:
            return ""
        shown = ", ".join(measured) or "nothing"
        return f"{backend.name}: the table declares {', '.join(declared)}, measured was {shown}"

    def _run(self, command: str) -> tuple[int, list[str]]:
        lines: list[str] = []
        request = ContainerRequest(
            image=self._tag,
            argv=("/bin/sh", "-c", f"cd {_TOOLS} && {command}"),
            env=_ENVIRONMENT,
            mounts=(),
            user=UserMapping(user="65534:65534"),
            platform=self._platform,
        )
        ended = run_container(self._client, request, lines.append, self._console)
        return ended.code, lines


def _tail(lines: Sequence[str]) -> str:
    return " ".join(lines[-_LINES_SHOWN:])[:_WIDTH]
