"""What the probes of GPU toolkits read of this machine: variables, PATH, headers, printed versions.

Read-only: nothing is written, and the programs that are called are asked for their version or their lists.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ci import process
from opencoti.errors import MissingError

Version = tuple[int, ...]
_ANSWER_LIMIT_S: Final = 60.0
_DEFAULT_PATH: Final = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """This machine, or in a test a folder that looks like one.

    Attributes:
        environ: its variables, PATH among them.
        prefix: what lies below `/`.
        glibc: version of its C library, empty where that is another one.
    """

    environ: Mapping[str, str]
    prefix: Path = Path("/")
    glibc: Version = field(default_factory=lambda: _glibc_version())

    @property
    def local(self) -> Path:
        """Where CUDA toolkits are installed."""
        return self.prefix / "usr" / "local"

    @property
    def optional(self) -> Path:
        """Where ROCm is installed."""
        return self.prefix / "opt"

    @property
    def include_folders(self) -> tuple[Path, ...]:
        """Where header packages put theirs."""
        return (self.local / "include", self.prefix / "usr" / "include")

    def named(self, *variables: str) -> str:
        """Return the value of the first variable that is set."""
        return next((value for name in variables if (value := self.environ.get(name, ""))), "")

    def which(self, program: str) -> Path | None:
        """Return where PATH has a program."""
        found = shutil.which(program, path=self.environ.get("PATH", _DEFAULT_PATH))
        return Path(found) if found else None

    def ask(self, argv: Sequence[str | Path]) -> str:
        """Run a program that prints and ends; return both its streams, whatever its exit code.

        Raises:
            MissingError: `program-missing`; `toolkit-program-unusable`, it is for another machine or hangs.
        """
        environment = {"PATH": self.environ.get("PATH", _DEFAULT_PATH), "LC_ALL": "C.UTF-8"}
        try:
            done = process.run(argv, env=environment, timeout_s=_ANSWER_LIMIT_S)
        except (OSError, subprocess.TimeoutExpired) as exc:
            why = exc.strerror if isinstance(exc, OSError) else f"no answer within {_ANSWER_LIMIT_S:.0f} s"
            raise MissingError(
                "toolkit-program-unusable",
                f"cannot use {argv[0]}",
                why=why or str(exc),
                hint="install the toolkit again, or use --engine docker",
            ) from exc
        return f"{done.text}\n{done.error_text}"


def this_machine() -> Machine:
    """Return the machine that this process runs on."""
    return Machine(environ=os.environ)


def parse_version(text: str) -> Version:
    """Return the numbers of `12.8.93`, as far as there are any."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def dotted(version: Version) -> str:
    """Return a version as text."""
    return ".".join(map(str, version))


def read_macros(header: Path) -> dict[str, int]:
    """Return the numbers that a header defines by name; empty when it cannot be read."""
    try:
        text = header.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found = re.findall(
        r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+\(?(\d+)\)?[ \t]*(?://.*|/\*.*)?$", text, re.MULTILINE
    )
    return {name: int(value) for name, value in found}


def library_versions(folders: Sequence[Path], name: str) -> dict[Path, Version]:
    """Return the libraries `<name>.so.<version>` of some folders, each with the version in its name."""
    return {
        path: version
        for folder in folders
        for path in sorted(folder.glob(f"{name}.so.*"))
        if (version := parse_version(path.name.removeprefix(f"{name}.so.")))
    }


def library_folders(root: Path) -> list[Path]:
    """Return the folders of a toolkit that may hold its libraries."""
    known = [root / "lib64", root / "lib", *root.glob("targets/*/lib"), *root.glob("lib/*-linux-gnu")]
    return list(dict.fromkeys(folder.resolve() for folder in known if folder.is_dir()))


def _glibc_version() -> Version:
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        return ()
    return parse_version(text.removeprefix("glibc "))
