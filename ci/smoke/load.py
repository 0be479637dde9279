"""What can be said of a backend on a machine without its device: it loads, and it is what it declares.

The library is taken out of the artifact, compared with its manifest and with the table, and loaded by a
process of its own in which stubs stand in for the vendor's libraries. Nothing of it is called.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ci import process
from ci.backends import rules_of
from ci.dso.elf import ElfFacts, inspect_elf
from ci.dso.rules import ENGINE_LIBRARIES, check_elf
from ci.paths import Layout
from ci.smoke.device import this_device
from ci.smoke.stubs import Stand, make_stubs
from ci.toolchains.table import Backend
from opencoti.console import Console
from opencoti.errors import OpencotiError, VerificationError, storage_error
from opencoti.evidence import Evidence, Failure, LoadResult, MappedFile, TestedArtifact
from opencoti.hashing import sha256_bytes
from opencoti.jsonio import parse_strict
from opencoti.manifest import Dso, Manifest

# Raised when the test changes in what it proves.
LOAD_VERSION: Final = 1
ENTRY: Final = "ggml_backend_init"
_PROBE: Final = Path(__file__).with_name("load_probe.py")
_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, kw_only=True)
class LoadPlan:
    """What is loaded: the library `dso` of an artifact, which its manifest describes."""

    artifact: Path
    manifest: Manifest
    dso: Dso
    backend: Backend
    layout: Layout

    @property
    def not_tested(self) -> tuple[str, ...]:
        """What this says nothing about: everything that takes a device."""
        return (
            f"on a device: this machine has none for {self.backend.title}",
            "that the backend starts, finds a device and computes anything",
            "the driver and the vendor's libraries",
        )


def load_test(plan: LoadPlan, console: Console) -> Evidence:
    """Inspect and load a backend library; the evidence is of kind `load`.

    Raises:
        VerificationError: `load-member-differs`, `load-unsound`, `load-archs-differ`, `load-failed`,
            `load-no-entry`, `load-foreign`.
        OpencotiError: the stubs cannot be made.
    """
    started = _now()
    with tempfile.TemporaryDirectory(prefix="opencoti-load-") as name:
        folder = Path(name).resolve()
        library = _extract(plan, folder)
        facts = inspect_elf(library)
        _check(plan, facts)
        stand = make_stubs(facts, plan.backend, plan.layout, _made(folder / "vendor"), console)
        inode = _load(library, stand)
    result = LoadResult(
        dso=MappedFile(path=plan.dso.name, inode=inode, sha256=plan.dso.sha256),
        entry=ENTRY,
        archs=facts.gpu_targets,
        stubs=stand.stubs,
        real=stand.real,
    )
    return _evidence(plan, started, result=result)


def load_failed(plan: LoadPlan, error: OpencotiError) -> Evidence:
    """Make the evidence of a load test that ended with `error`."""
    failure = Failure(error=error.error_id, what=error.what, why=error.why)
    return _evidence(plan, _now(), failure=failure)


def _evidence(
    plan: LoadPlan, started: str, *, result: LoadResult | None = None, failure: Failure | None = None
) -> Evidence:
    manifest = plan.manifest
    return Evidence(
        kind="load",
        test_version=LOAD_VERSION,
        artifact=TestedArtifact(name=manifest.name, sha256=manifest.sha256, size=manifest.size),
        device=this_device(),
        backend=plan.backend.name,
        started=started,
        passed=failure is None,
        loaded=result,
        failure=failure,
        not_tested=plan.not_tested,
    )


def _extract(plan: LoadPlan, folder: Path) -> Path:
    """Write the library, and what it is linked to in the artifact, into `folder`; return its path."""
    for name in (plan.dso.name, *sorted(ENGINE_LIBRARIES)):
        member = plan.manifest.member(name)
        if member is None:
            continue
        try:
            with open(plan.artifact, "rb") as file:
                file.seek(member.offset)
                data = file.read(member.size)
            if sha256_bytes(data) != member.sha256:
                raise VerificationError(
                    "load-member-differs",
                    f"{name} in {plan.artifact.name} is not the file of the manifest",
                    hint=f"`python -m ci verify {plan.artifact}` says where they differ",
                )
            (folder / name).write_bytes(data)
        except OSError as exc:
            raise storage_error(exc, f"cannot take {name} out of {plan.artifact}") from exc
    return folder / plan.dso.name


def _check(plan: LoadPlan, facts: ElfFacts) -> None:
    """Compare the library with the table and with its manifest."""
    targets = plan.backend.targets_for(plan.manifest.arch)
    rules = rules_of(plan.backend, plan.manifest.arch, targets)
    if plan.manifest.partial:
        # A trial has fewer devices than the table; its manifest says which.
        rules = replace(rules, targets=None)
    if problems := check_elf(facts, rules):
        raise VerificationError(
            "load-unsound",
            f"{plan.dso.name} is not what the table says of {plan.backend.name}",
            why="; ".join(map(str, problems[:3])),
            hint="see `python -m ci inspect` and containers/toolchains.toml",
        )
    declared = plan.dso.archs if facts.gpu_targets else ()
    if set(facts.gpu_targets) != set(declared):
        raise VerificationError(
            "load-archs-differ",
            f"{plan.dso.name} is not for the devices that the manifest declares",
            why=f"measured: {', '.join(facts.gpu_targets)}; declared: {', '.join(declared)}",
            hint="package the artifact again",
        )


def _load(library: Path, stand: Stand) -> int:
    """Load the library in a process of its own; return its inode as the kernel had it mapped."""
    command: list[str | Path] = [sys.executable, "-I", "-S", _PROBE, library, ENTRY]
    environment = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": stand.search_path}
    try:
        done = process.run(command, cwd=library.parent, env=environment, timeout_s=_TIMEOUT_S)
    except subprocess.TimeoutExpired as exc:
        raise _failed(library, f"loading did not end within {_TIMEOUT_S:.0f} s") from exc
    if done.code == 4:
        raise VerificationError("load-no-entry", f"{library.name} has no function {ENTRY}")
    if not done.is_ok:
        said = done.error_text[-500:]
        raise _failed(library, said or f"the process that loads it ended with {done.code}")
    mapped = parse_strict(done.stdout, "what the kernel has mapped")
    inode = mapped.get(str(library))
    if inode != library.stat().st_ino:
        raise VerificationError(
            "load-foreign", f"another file than {library} was mapped", why=f"inode {inode} is mapped"
        )
    return int(inode)


def _failed(library: Path, why: str) -> VerificationError:
    return VerificationError(
        "load-failed",
        f"{library.name} cannot be loaded",
        why=why,
        hint="a name that nothing provides, or a constructor that crashes",
    )


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
