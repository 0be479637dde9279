"""Which GPUs an engine sees, and which of its libraries it has mapped: an explicit `--gpu` is a demand."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from opencoti import procfs
from opencoti.errors import MissingError
from opencoti.launch.options import Gpu

_LIST_TIMEOUT_S: Final = 120.0
_DEVICE: Final = re.compile(r"^\s+([A-Za-z]+\d+): ", re.MULTILINE)
_DEVICE_PREFIXES: Final[dict[str, tuple[str, ...]]] = {
    "nvidia": ("CUDA",),
    "amd": ("ROCm", "HIP"),
    "vulkan": ("Vulkan",),
    "apple": ("MTL", "Metal"),
}
_LIBRARY_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "nvidia": ("cuda",),
    "amd": ("hip", "rocm"),
    "vulkan": ("vulkan",),
    "apple": ("metal",),
}
_LIBRARY: Final = re.compile(r"(?:lib)?ggml(?:-([A-Za-z0-9_-]+))?\.(?:so|dylib)(?:\.[0-9.]+)?")


def require_devices(binary: Path, gpu: Gpu, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the engine's names of the devices of this kind; starts it once to ask.

    Raises:
        MissingError: `gpu-not-usable`, it sees none.
    """
    seen = _list_devices(binary, env)
    wanted = tuple(name for name in seen if name.startswith(_DEVICE_PREFIXES[gpu]))
    if not wanted:
        raise MissingError(
            "gpu-not-usable",
            f"--gpu {gpu} is asked for, and the engine sees no such device",
            why=f"it sees {', '.join(seen)}" if seen else "it sees no GPU at all",
            hint="`python -m opencoti.doctor` shows drivers and libraries; --gpu auto also takes the CPU",
        )
    return wanted


def _list_devices(binary: Path, env: Mapping[str, str]) -> list[str]:
    try:
        done = subprocess.run(
            [str(binary), "--list-devices"],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_LIST_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        # Why it does not run is found out, and told better, by the launch itself.
        return []
    return _DEVICE.findall(done.stdout.decode("utf-8", "replace"))


def mapped_libraries(pid: int) -> tuple[str, ...]:
    """Return the paths of the engine's own libraries as the kernel has them mapped."""
    paths = (str(item.path) for item in procfs.mapped_files(pid) if _LIBRARY.fullmatch(item.path.name))
    return tuple(sorted(paths))


def require_mapped(libraries: tuple[str, ...], gpu: Gpu) -> None:
    """Check that the library of a demanded backend is mapped.

    An engine with no backend library at all has its backends inside; it then refuses a device that it lacks.

    Raises:
        MissingError: `gpu-not-used`.
    """
    kinds = [match[1] for path in libraries if (match := _LIBRARY.fullmatch(Path(path).name)) and match[1]]
    backends = [kind for kind in kinds if not kind.startswith("base")]
    if backends and not any(kind.startswith(_LIBRARY_NAMES[gpu]) for kind in backends):
        raise MissingError(
            "gpu-not-used",
            f"--gpu {gpu} is asked for, and the engine does not use it",
            why=f"mapped are: {', '.join(libraries)}",
            hint="`python -m opencoti.doctor` shows drivers and libraries; --gpu auto also takes the CPU",
        )
