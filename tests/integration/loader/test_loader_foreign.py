"""The loader for aarch64, run under QEMU: it does there what it does here (cases B13, B17)."""

from __future__ import annotations

import hashlib
import os
import platform
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ci.package.loader import build_loader
from ci.smoke.emulation import Emulator, find_emulator
from tests.conftest import require
from tests.integration.loader.artifacts import ENTRY, LOADER_SOURCES, Bench, CompileC, Started

ARCH = "aarch64"

pytestmark = pytest.mark.skipif(platform.machine() == ARCH, reason="here it is no foreign architecture")


@pytest.fixture(scope="module")
def foreign_loader(zig: Path, zig_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_loader(zig, tmp_path_factory.mktemp("loader") / "loader", arch=ARCH, cache=zig_cache)


@pytest.fixture(scope="module")
def emulator(foreign_loader: Path) -> Emulator:
    require(shutil.which(f"qemu-{ARCH}-static") is not None, "apt-get install qemu-user-static")
    require(Path(f"/usr/{ARCH}-linux-gnu/lib").is_dir(), "apt-get install libc6-arm64-cross")
    found = find_emulator(foreign_loader, {"PATH": os.environ["PATH"]})
    assert found is not None
    return found


@pytest.fixture(scope="module")
def foreign_engine(compile_c: CompileC) -> Path:
    return compile_c("entry.c", arch=ARCH)


@pytest.fixture
def foreign(foreign_loader: Path, foreign_engine: Path, tmp_path: Path) -> Bench:
    (tmp_path / "home").mkdir()
    return Bench(loader=foreign_loader.read_bytes(), engine=foreign_engine.read_bytes(), root=tmp_path)


def start(bench: Bench, emulator: Emulator, artifact: Path, *words: str) -> Started:
    done = subprocess.run(
        [*emulator.prefix, artifact, *words],
        env=bench.environment | emulator.variables,
        cwd=bench.root,
        capture_output=True,
        check=False,
        timeout=120,
    )
    return Started(code=done.returncode, stdout=done.stdout, stderr=done.stderr.decode("utf-8", "replace"))


def test_it_unpacks_its_engine_and_becomes_it(foreign: Bench, emulator: Emulator) -> None:
    artifact = foreign.pack(foreign.files(libggml_base__so=b"library"))
    done = start(foreign, emulator, artifact, "-m", "a b", "", "ü")
    assert done.stderr == ""
    assert (done.code, done.all("arg")) == (0, [str(artifact), "-m", "a b", "", "ü"])
    assert done.one("exe") == str(foreign.folder / ENTRY)
    assert (foreign.folder / "libggml_base.so").read_bytes() == b"library"


def test_it_finds_damage(foreign: Bench, emulator: Emulator) -> None:
    artifact = foreign.pack(foreign.files(x__bin=b"x" * 100_000))
    assert start(foreign, emulator, artifact, "--opencoti-verify").code == 0
    data = artifact.read_bytes()
    artifact.write_bytes(data.replace(b"xx", b"xy", 1))
    done = start(foreign, emulator, artifact, "--opencoti-verify")
    assert (done.code, "bad x.bin" in done.stdout.decode().splitlines()) == (6, True)


def test_it_ends_with_the_program_that_started_it(foreign: Bench, emulator: Emulator) -> None:
    artifact = foreign.pack(foreign.files())
    code = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    words: list[str | Path] = [sys.executable, "-c", code, *emulator.prefix, artifact]
    env = foreign.environment | emulator.variables | {"ENTRY_CAT": "1"}
    parent = subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None
    assert parent.stdout is not None
    # The engine waits for its input, which we hold open: only the death of its parent can end it.
    child = _child_of(parent.pid)
    os.kill(parent.pid, signal.SIGKILL)
    ended = os.pidfd_open(child)
    assert select.select([ended], [], [], 30)[0], "the emulated engine goes on"
    os.close(ended)
    parent.communicate()


def _child_of(pid: int) -> int:
    """Return the one child of a process, once its program is the emulator."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children and "qemu" in os.readlink(f"/proc/{children[0]}/exe"):
            return int(children[0])
    raise AssertionError("nothing was started")


def test_a_loader_and_an_engine_for_different_processors_end_with_one_clear_error(
    bench: Bench, foreign_engine: Path
) -> None:
    """Case B13: the loader runs here, the engine in it cannot."""
    artifact = bench.pack({ENTRY: foreign_engine.read_bytes()})
    done = bench.start(artifact)
    assert done.code == 4
    assert "it is for another kind of processor" in done.stderr
    assert "uname -m" in done.stderr


@pytest.mark.parametrize("implementation", ["portable", "hardware"])
@pytest.mark.parametrize("cpu", ["cortex-a57", "max"])
def test_its_sha256_equals_hashlib(
    compile_c: CompileC, emulator: Emulator, cpu: str, implementation: str
) -> None:
    sources = (LOADER_SOURCES / "sha256.c", LOADER_SOURCES / "sha256_hardware.c")
    driver = compile_c("sha256_driver.c", f"-I{LOADER_SOURCES}", *sources, arch=ARCH)
    data = random.Random(2).randbytes(70_000)
    for size in (0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 4097, 70_000):
        words: Sequence[str | Path] = (*emulator.prefix, driver, implementation, "4096")
        env = emulator.variables | {"QEMU_CPU": cpu}
        done = subprocess.run(words, env=env, input=data[:size], capture_output=True, check=False)
        assert done.stdout.decode().strip() == hashlib.sha256(data[:size]).hexdigest()
