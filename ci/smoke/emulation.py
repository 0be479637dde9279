"""Running an artifact for another processor: whether that is needed, with what, and what then was tested.

QEMU runs the program; the kernel hands it every program of that processor (`emulated`), so the loader of an
artifact executes its engine the way it does on a machine of its own. Changes nothing on this one.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci import process
from opencoti.errors import MissingError, UsageError, storage_error
from opencoti.evidence import Device

SYSROOT_VARIABLE: Final = "QEMU_LD_PREFIX"
CPU_VARIABLE: Final = "QEMU_CPU"
NOT_TESTED: Final = ("a processor of this architecture", "speed")
_PROGRAM: Final = Path(__file__).with_name("emulated.py")
_ELF_START: Final = b"\x7fELF\x02\x01"
_MACHINE_OFFSET: Final = 18
_GLIBC: Final = re.compile(r"\(.*GLIBC (\d+\.\d+)")


@dataclass(frozen=True, kw_only=True)
class _Processor:
    """A processor: its number in ELF headers, its dynamic linker, and Debian's package of its C library."""

    machine: int
    linker: str
    package: str


_PROCESSORS: Final[Mapping[str, _Processor]] = {
    "x86_64": _Processor(machine=62, linker="lib64/ld-linux-x86-64.so.2", package="libc6-amd64-cross"),
    "aarch64": _Processor(machine=183, linker="lib/ld-linux-aarch64.so.1", package="libc6-arm64-cross"),
}


@dataclass(frozen=True, kw_only=True)
class Emulator:
    """QEMU for one processor, with the C library that its programs link to.

    Attributes:
        program: the emulator, linked statically or with its libraries at their place.
        arch: the processor.
        sysroot: folder whose `lib` holds the dynamic linker and the C library of that processor.
        cpu: which model of the processor it plays, None for the emulator's own choice: all that it knows.
    """

    program: Path
    arch: str
    sysroot: Path
    cpu: str | None = None

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words in front of a command that start it emulated, with its own children."""
        machine = str(_PROCESSORS[self.arch].machine)
        return (sys.executable, "-I", "-S", str(_PROGRAM), str(self.program), machine)

    @property
    def variables(self) -> dict[str, str]:
        """What the emulator reads from the environment of a command."""
        cpu = {CPU_VARIABLE: self.cpu} if self.cpu else {}
        return {SYSROOT_VARIABLE: str(self.sysroot)} | cpu

    def device(self) -> Device:
        """Describe the machine that its programs see; the kernel is this machine's."""
        version = process.run([self.program, "--version"]).text.split("\n", 1)[0]
        linker = self.sysroot / _PROCESSORS[self.arch].linker
        shown = process.run([self.program, "-L", self.sysroot, linker, "--version"]).text
        found = _GLIBC.search(shown)
        return Device(
            cpu_model=f"{self.arch}, emulated: {self.cpu or 'every feature that the emulator has'}",
            kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
            glibc=f"glibc {found[1]}" if found else None,
            emulator=version or self.program.name,
        )


def find_emulator(
    artifact: Path, environ: Mapping[str, str], *, qemu: Path | None = None, host: str | None = None
) -> Emulator | None:
    """Return what runs an artifact here, None when this machine does so by itself.

    Args:
        artifact: a program; one that is no 64-bit ELF file is never emulated.
        environ: `QEMU_LD_PREFIX` and `QEMU_CPU` are taken from it, and PATH.
        qemu: the emulator, where it is not the one on PATH.
        host: processor of this machine, as the kernel names it; asked for if None.

    Raises:
        UsageError: `smoke-qemu-needless`.
        MissingError: `smoke-foreign-arch`, `smoke-no-sysroot`, `smoke-cannot-emulate`.
    """
    host = host or platform.machine()
    arch = elf_arch(artifact)
    if arch is None or arch == host:
        if qemu is not None:
            raise UsageError(
                "smoke-qemu-needless", f"--qemu: {artifact.name} is not for another processor than {host}"
            )
        return None
    program = _find_program(arch, environ, qemu)
    if program is None:
        raise _foreign(artifact, arch, host)
    emulator = Emulator(
        program=program, arch=arch, sysroot=_sysroot(arch, environ), cpu=environ.get(CPU_VARIABLE) or None
    )
    _require_kernel(emulator, artifact)
    return emulator


def elf_arch(path: Path) -> str | None:
    """Return the processor that a program is for; None for anything but a 64-bit ELF file of a known one."""
    try:
        with open(path, "rb") as file:
            start = file.read(_MACHINE_OFFSET + 2)
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
    if not start.startswith(_ELF_START) or len(start) < _MACHINE_OFFSET + 2:
        return None
    machine = int.from_bytes(start[_MACHINE_OFFSET:], "little")
    return next((name for name, known in _PROCESSORS.items() if known.machine == machine), None)


def _find_program(arch: str, environ: Mapping[str, str], qemu: Path | None) -> Path | None:
    names = [str(qemu)] if qemu else [f"qemu-{arch}-static", f"qemu-{arch}"]
    found = (shutil.which(name, path=environ.get("PATH", os.defpath)) for name in names)
    return next((Path(path).resolve() for path in found if path), None)


def _sysroot(arch: str, environ: Mapping[str, str]) -> Path:
    processor = _PROCESSORS[arch]
    folder = Path(environ.get(SYSROOT_VARIABLE) or f"/usr/{arch}-linux-gnu")
    if not (folder / processor.linker).is_file():
        raise MissingError(
            "smoke-no-sysroot",
            f"there is no C library for {arch} programs",
            why=f"{folder / processor.linker} is missing",
            hint=f"apt-get install {processor.package}, or set {SYSROOT_VARIABLE} to a folder that has one",
        )
    return folder.resolve()


def _require_kernel(emulator: Emulator, artifact: Path) -> None:
    """Try the emulator on nothing: the kernel may be too old, or allow no namespaces."""
    tried = process.run(emulator.prefix)
    if not tried.is_ok:
        raise MissingError(
            "smoke-cannot-emulate",
            f"cannot run {artifact.name} under {emulator.program.name}",
            why=tried.error_text.strip() or f"the attempt ended with {tried.code}",
            hint=f"it takes Linux 6.7 and user namespaces; or test on a machine with {emulator.arch}",
        )


def _foreign(artifact: Path, arch: str, host: str) -> MissingError:
    packages = f"qemu-user-static {_PROCESSORS[arch].package}"
    return MissingError(
        "smoke-foreign-arch",
        f"cannot run {artifact.name} here",
        why=f"it is for {arch}, this machine is {host}",
        hint=f"apt-get install {packages}, or test on a machine with {arch}",
    )
