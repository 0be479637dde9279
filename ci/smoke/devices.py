"""Which devices this machine has for a backend, as system and driver say it, before any engine is asked."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci import process
from ci.smoke.target import Target
from ci.toolchains.table import Backend, Kind
from opencoti import procfs
from opencoti.errors import ConfigError, MissingError
from opencoti.evidence import Accelerator, MappedFile
from opencoti.hashing import sha256_file
from opencoti.jsonio import parse_strict

# Where drivers, their libraries and single devices are chosen; the engine needs them like the query does.
_CHOOSING: Final[Mapping[Kind, tuple[str, ...]]] = {
    "cuda": ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"),
    "hip": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION", "LD_LIBRARY_PATH"),
    "vulkan": ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "LD_LIBRARY_PATH", "XDG_RUNTIME_DIR"),
}
VISIBLE: Final = "GGML_VK_VISIBLE_DEVICES"
_NODES: Final[Mapping[Kind, tuple[str, ...]]] = {
    # A card of its own, Windows' subsystem for Linux, a Jetson.
    "cuda": ("dev/nvidiactl", "dev/dxg", "dev/nvhost-gpu"),
    "hip": ("dev/kfd",),
}
_VERSIONS: Final[Mapping[Kind, str]] = {
    "cuda": "proc/driver/nvidia/version",
    "hip": "sys/module/amdgpu/version",
}
_NVIDIA_VERSION: Final = re.compile(r"Kernel Module.*?\s(\d+\.\d[\d.]*)")
_QUERY: Final = Path(__file__).with_name("vulkan_query.py")
_QUERY_TIMEOUT_S: Final = 60.0
# VkPhysicalDeviceType; the engine takes the first two by itself.
_REAL_TYPES: Final = (1, 2)
_CPU_TYPE: Final = 4
_DRIVER_LIBRARY: Final = re.compile(
    r"lib(vulkan|nvidia|cuda|cublas|nvvm|amdhip|hsa|hipblas|rocblas|LLVM|GLX_nvidia)[A-Za-z0-9_.+-]*"
)


@dataclass(frozen=True, kw_only=True)
class VulkanDevice:
    """A device as the loader of Vulkan lists it; `kind` is the number of its type."""

    name: str
    kind: int
    driver: str

    @property
    def accelerator(self) -> Accelerator:
        """The same for evidence."""
        return Accelerator(name=self.name, is_software=self.kind == _CPU_TYPE, driver=self.driver or None)


def find_target(backend: Backend, environ: Mapping[str, str], *, root: Path = Path("/")) -> Target | None:
    """Return what a backend can compute on here, None when there is nothing.

    Args:
        backend: row of the table.
        environ: of this process; what chooses drivers and devices in it is passed on.
        root: where `/dev`, `/proc` and `/sys` are looked for.
    """
    assert backend.kind != "cpu"
    kept = {name: environ[name] for name in _CHOOSING[backend.kind] if name in environ}
    if backend.kind == "vulkan":
        return vulkan_target(vulkan_devices({"PATH": environ.get("PATH", "")} | kept), backend.library, kept)
    if not any((root / node).exists() for node in _NODES[backend.kind]):
        return None
    driver = _kernel_driver(root / _VERSIONS[backend.kind])
    # Its name is the engine's to tell; that there is a device, and by which driver, is the system's.
    known = Accelerator(name=backend.title, is_software=False, driver=driver)
    return Target(kind=backend.kind, library=backend.library, variables=kept, accelerators=(known,))


def vulkan_target(
    devices: tuple[VulkanDevice, ...], library: str, variables: Mapping[str, str]
) -> Target | None:
    """Choose among Vulkan devices: real ones as the engine does, else the first that is software."""
    real = tuple(item for item in devices if item.kind in _REAL_TYPES)
    if real:
        found = tuple(item.accelerator for item in real)
        return Target(kind="vulkan", library=library, variables=variables, accelerators=found)
    if not devices:
        return None
    # The engine skips all others unless it is told their number.
    chosen = {**variables, VISIBLE: "0"}
    return Target(kind="vulkan", library=library, variables=chosen, accelerators=(devices[0].accelerator,))


def vulkan_devices(environment: Mapping[str, str]) -> tuple[VulkanDevice, ...]:
    """Return the Vulkan devices of this machine; none without a loader, or when a driver crashes."""
    try:
        done = process.run([sys.executable, "-I", "-S", _QUERY], env=environment, timeout_s=_QUERY_TIMEOUT_S)
    except (subprocess.TimeoutExpired, MissingError):
        return ()
    if not done.is_ok:
        return ()
    try:
        rows = parse_strict(done.stdout, "the list of Vulkan devices")
    except ConfigError:
        return ()
    return tuple(VulkanDevice(name=row["name"], kind=row["type"], driver=row["driver"]) for row in rows)


def mapped_drivers(pid: int) -> tuple[MappedFile, ...]:
    """Return the libraries of drivers that a process has mapped, seen through the process's own root."""
    root = Path("/proc") / str(pid) / "root"
    found = []
    for item in procfs.mapped_files(pid):
        path = root / item.path.relative_to("/")
        if _DRIVER_LIBRARY.fullmatch(item.path.name) and _is_there(path, item.inode):
            found.append(MappedFile(path=str(item.path), inode=item.inode, sha256=sha256_file(path)))
    return tuple(sorted(found, key=lambda file: file.path))


def _is_there(path: Path, inode: int) -> bool:
    try:
        return path.stat().st_ino == inode
    except OSError:
        return False


def _kernel_driver(path: Path) -> str | None:
    """Read `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  …`, or a bare version."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
    match = _NVIDIA_VERSION.search(text)
    return (match[1] if match else text.split("\n", 1)[0])[:200] or None
