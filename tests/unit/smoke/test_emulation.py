"""Choosing an emulator for an artifact, and the errors when there is none (cases B13, B17)."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from ci.context import Context
from ci.paths import Layout
from ci.smoke.command import prove
from ci.smoke.emulation import Emulator, elf_arch, find_emulator
from ci.smoke.run import Plan, failed
from opencoti.errors import MissingError, UsageError
from tests.conftest import RecordedConsole

MACHINES = {"x86_64": 62, "aarch64": 183, "riscv64": 243}


def program(path: Path, arch: str, *, bits: int = 2, order: int = 1) -> Path:
    """Write the first bytes of an ELF program."""
    start = b"\x7fELF" + bytes([bits, order, 1]) + bytes(9)
    path.write_bytes(start + struct.pack("<HH", 2, MACHINES[arch]) + bytes(44))
    path.chmod(0o755)
    return path


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    return program(tmp_path / "engine-aarch64.llamafile", "aarch64")


@pytest.fixture
def sysroot(tmp_path: Path) -> Path:
    folder = tmp_path / "sysroot"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "ld-linux-aarch64.so.1").touch()
    return folder


def qemu(folder: Path, name: str = "qemu-aarch64-static") -> Path:
    """A program that can be registered as an emulator; it is never run."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_the_processor_is_read_from_the_header(tmp_path: Path, arch: str) -> None:
    assert elf_arch(program(tmp_path / "a", arch)) == arch


def test_other_files_have_no_processor(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"\x7fELF\x02\x01")
    (tmp_path / "script").write_text("#!/bin/sh\n" + "# text\n" * 9)
    files = [
        tmp_path / "short",
        tmp_path / "script",
        program(tmp_path / "32", "aarch64", bits=1),
        program(tmp_path / "big", "aarch64", order=2),
        program(tmp_path / "riscv", "riscv64"),
    ]
    assert [elf_arch(path) for path in files] == [None] * len(files)


def test_nothing_is_emulated_on_its_own_machine(artifact: Path) -> None:
    assert find_emulator(artifact, {}, host="aarch64") is None


def test_an_emulator_that_nobody_needs_is_refused(artifact: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        find_emulator(artifact, {}, qemu=qemu(tmp_path), host="aarch64")
    assert caught.value.error_id == "smoke-qemu-needless"


def test_without_an_emulator_the_error_names_both_machines(artifact: Path, tmp_path: Path) -> None:
    """Case B13: not a failure of the artifact."""
    with pytest.raises(MissingError) as caught:
        find_emulator(artifact, {"PATH": str(tmp_path)}, host="x86_64")
    assert caught.value.error_id == "smoke-foreign-arch"
    assert caught.value.why == "it is for aarch64, this machine is x86_64"
    assert "qemu-user-static libc6-arm64-cross" in (caught.value.hint or "")


def test_without_a_c_library_the_error_names_the_package(artifact: Path, tmp_path: Path) -> None:
    environ = {"PATH": str(qemu(tmp_path / "bin").parent), "QEMU_LD_PREFIX": str(tmp_path / "nowhere")}
    with pytest.raises(MissingError) as caught:
        find_emulator(artifact, environ, host="x86_64")
    assert caught.value.error_id == "smoke-no-sysroot"
    assert str(tmp_path / "nowhere" / "lib" / "ld-linux-aarch64.so.1") in caught.value.why


def test_the_one_on_path_is_taken_with_what_the_environment_says(
    artifact: Path, tmp_path: Path, sysroot: Path
) -> None:
    program = qemu(tmp_path / "bin", "qemu-aarch64")
    environ = {"PATH": str(program.parent), "QEMU_LD_PREFIX": str(sysroot), "QEMU_CPU": "cortex-a72"}
    found = find_emulator(artifact, environ, host="x86_64")
    assert found is not None
    assert (found.program, found.arch) == (program.resolve(), "aarch64")
    assert found.variables == {"QEMU_LD_PREFIX": str(sysroot.resolve()), "QEMU_CPU": "cortex-a72"}


def test_what_the_kernel_refuses_to_register_is_told(artifact: Path, tmp_path: Path, sysroot: Path) -> None:
    odd = qemu(tmp_path / "a:b")  # the kernel's own separator
    with pytest.raises(MissingError) as caught:
        find_emulator(artifact, {"QEMU_LD_PREFIX": str(sysroot)}, qemu=odd, host="x86_64")
    assert caught.value.error_id == "smoke-cannot-emulate"
    assert "the kernel lets nobody register an emulator here" in caught.value.why


def test_the_registration_stays_in_its_namespace(artifact: Path, tmp_path: Path, sysroot: Path) -> None:
    register = Path("/proc/sys/fs/binfmt_misc")
    before = sorted(os.listdir(register))
    assert find_emulator(artifact, {"QEMU_LD_PREFIX": str(sysroot)}, qemu=qemu(tmp_path), host="x86_64")
    assert sorted(os.listdir(register)) == before


def test_evidence_says_that_everything_was_emulated(artifact: Path, tmp_path: Path, sysroot: Path) -> None:
    program = qemu(tmp_path)
    program.write_text(
        '#!/bin/sh\ncase "$1" in\n--version) echo "qemu-aarch64 version 7.2.22 (Debian)"; echo more ;;\n'
        '-L) echo "ld.so (Debian GLIBC 2.36-8) stable release version 2.36." ;;\nesac\n'
    )
    emulator = Emulator(program=program, arch="aarch64", sysroot=sysroot, cpu="cortex-a72")
    plan = Plan(
        artifact=artifact, model=tmp_path, logs=tmp_path, fallback=tmp_path, backend="cpu", emulator=emulator
    )
    evidence = failed(plan, MissingError("smoke-died", "it ended"))
    assert evidence.device.emulator == "qemu-aarch64 version 7.2.22 (Debian)"
    assert evidence.device.cpu_model == "aarch64, emulated: cortex-a72"
    assert evidence.device.glibc == "glibc 2.36"
    assert evidence.device.cpu_features == ()
    assert {"a processor of this architecture", "speed", "GPU offload"} <= set(evidence.not_tested)


def test_a_smoke_test_of_a_foreign_artifact_writes_no_evidence_without_an_emulator(
    layout: Layout, recorded: RecordedConsole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    foreign = "x86_64" if os.uname().machine == "aarch64" else "aarch64"
    with pytest.raises(MissingError) as caught:
        prove(
            Context(layout=layout, console=recorded.console),
            program(tmp_path / "a.llamafile", foreign),
            model=tmp_path / "none.gguf",
        )
    assert caught.value.error_id == "smoke-foreign-arch"
    assert not layout.dist.exists()
