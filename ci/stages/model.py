"""What a stage is: a pure description of one build. Nothing here runs, reads or writes anything."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from opencoti.errors import ConfigError

_PLACEHOLDER: Final = re.compile(r"\{(src|out|tools|jobs)\}")
_KEY_SCHEMA: Final = "opencoti.stage/1"


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """What the placeholders of a stage stand for on one engine.

    Paths are those that the stage sees: inside a container they differ from the ones of this machine.
    """

    src: str
    out: str
    tools: str
    jobs: int

    def expand(self, text: str) -> str:
        """Replace the placeholders in one word; every other brace stays."""
        return _PLACEHOLDER.sub(lambda match: str(getattr(self, match[1])), text)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command of a stage. Words may hold `{src}`, `{out}`, `{tools}` and `{jobs}`."""

    title: str
    argv: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One build: what runs, on what, and which files it must leave.

    Args:
        name: also the name of its folder and its log ("cpu-x86_64").
        toolchain: name of the toolchain that it runs with ("zig").
        steps: run one after another; the first that fails ends the stage.
        env: added to the minimal environment of every engine; values may hold the placeholders.
        source_tree: git tree id of the source.
        inputs: further content that the products depend on, name to SHA-256.
        outputs: paths or globs under `{out}`; each must match at least one file.
        labels: words of the steps that only name the product. A build folder configured with other labels
            is configured again and stays; any other change of the commands empties it.
        folder_name: its build folder and log where they must lie apart from those of another source; it
            changes no product and is no part of the key. Its name if empty.
        memory_limit_mb: limit of a container, in MiB; the host engine sets none.
        pids_limit: limit of processes in a container; the host engine sets none.
    """

    name: str
    toolchain: str
    steps: tuple[Step, ...]
    env: Mapping[str, str]
    source_tree: str
    inputs: Mapping[str, str]
    outputs: tuple[str, ...]
    labels: tuple[str, ...] = ()
    folder_name: str = ""
    memory_limit_mb: int | None = None
    pids_limit: int | None = None

    def __post_init__(self) -> None:
        for path in self.outputs:
            if path.startswith("/") or ".." in path.split("/"):
                raise ConfigError(
                    "stage-output-outside", f"output {path!r} of stage {self.name} leaves its folder"
                )

    @property
    def place(self) -> str:
        """The name of its build folder and log."""
        return self.folder_name or self.name

    def key(self, toolchain_id: str) -> str:
        """Return the content key (SHA-256) of this stage's result.

        Placeholders are hashed as they stand, so neither the place of the checkout nor the number of
        jobs is part of it; limits and titles change no product and are left out.
        """
        return digest(
            {
                "schema": _KEY_SCHEMA,
                "name": self.name,
                "toolchain": [self.toolchain, toolchain_id],
                "steps": [list(step.argv) for step in self.steps],
                "env": dict(self.env),
                "source_tree": self.source_tree,
                "inputs": dict(self.inputs),
                "outputs": list(self.outputs),
            }
        )


def digest(data: object) -> str:
    """Return the SHA-256 of `data` as canonical JSON."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
