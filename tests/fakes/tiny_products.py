"""Everything that the stages of a whole release leave, in miniature: real ELF files that keep every rule.

Imitates the products of the compilers, not the engine: the server ends at once with code 0, libraries export
what a loader looks for, GPU libraries hold containers of device code with nothing in them. Compiled by the
pinned zig in about a second per architecture.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from ci.paths import Layout
from ci.stages import elf
from ci.toolchains.table import Backend, Table
from tests.fakes.gpu_files import PTX, SASS, FatEntry, bundle, fat_binary

_TARGETS = {"x86_64": "x86_64-linux-gnu.2.28", "aarch64": "aarch64-linux-gnu.2.28"}
_SERVER = "int main(void) { return 0; }\n"
_LIBRARY = "int opencoti_%s(void) { return 1; }\n"
_VARIANT = "int ggml_backend_init(void) { return 1; }\nint ggml_backend_score(void) { return 1; }\n"
_GPU = """
__asm__(".section %s,\\"a\\"\\n.globl device_code\\ndevice_code:\\n.incbin \\"device-code\\"\\n.previous\\n");
extern const char device_code[] __attribute__((visibility("hidden")));
int ggml_backend_init(void) { return device_code[0]; }
"""
_VULKAN = "int ggml_backend_init(void) { return 1; }\n"
_SECTIONS = {"cuda": ".nv_fatbin", "hip": ".hip_fatbin"}


def write_products(folder: Path, table: Table, zig: Path) -> Path:
    """Write `folder/STAGE/bin/NAME` for every stage that the table gives, such as `cuda13-x86_64`."""
    for backend in table.backends:
        for arch in backend.hosts:
            target = folder / f"{backend.name}-{arch}" / "bin"
            target.mkdir(parents=True)
            make = _Compiler(zig=zig, arch=arch, folder=target)
            if backend.kind == "cpu":
                _write_engine(make, arch)
            else:
                _write_gpu(make, backend, arch)
    return folder


class _Compiler:
    def __init__(self, *, zig: Path, arch: str, folder: Path) -> None:
        self.folder = folder
        self._line = [str(zig), "cc", "-target", _TARGETS[arch], "-O1", "-g0", "-s", "-fno-sanitize=all"]
        cache = str(Layout.find().cache / "tool-cache" / "tests")
        self._env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "ZIG_GLOBAL_CACHE_DIR": cache,
            "ZIG_LOCAL_CACHE_DIR": cache,
        }

    def __call__(self, name: str, text: str, *words: str) -> Path:
        source = self.folder / "source.c"
        source.write_text(text)
        subprocess.run(
            [*self._line, *words, "-o", name, source.name],
            cwd=self.folder, env=self._env, check=True, capture_output=True,
        )  # fmt: skip
        source.unlink()
        return self.folder / name


def _write_engine(make: _Compiler, arch: str) -> None:
    make(elf.SERVER, _SERVER, "-pie", "-fPIE")
    for name in elf.CORE_LIBRARIES:
        word = name.partition(".")[0].replace("-", "_")
        make(name, _LIBRARY % word, "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{name}")
    first, *others = elf.variant_names(arch)
    made = make(first, _VARIANT, "-shared", "-fPIC", "-nostdlib")
    for name in others:
        shutil.copy(made, made.with_name(name))


def _write_gpu(make: _Compiler, backend: Backend, arch: str) -> None:
    code = make.folder / "device-code"
    text = _VULKAN
    if backend.kind in _SECTIONS:
        code.write_bytes(_device_code(backend.kind, backend.targets_for(arch)))
        text = _GPU % _SECTIONS[backend.kind]
    make(backend.library, text, "-shared", "-fPIC", "-nostdlib")
    code.unlink(missing_ok=True)


def _device_code(kind: str, targets: Iterable[str]) -> bytes:
    """Return containers for targets as the table writes them: `75`, `90+ptx`, `gfx1100`."""
    if kind == "hip":
        return bundle(*targets)
    entries = []
    for target in targets:
        arch, _, ptx = target.partition("+")
        entries.append(FatEntry(kind=SASS, arch=arch))
        entries += [FatEntry(kind=PTX, arch=arch)] if ptx else []
    return fat_binary(*entries)
