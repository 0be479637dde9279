"""The shader compiler and the Vulkan headers of this machine: found, and what the compiler knows. Read-only.

Without this CMake would configure, and hundreds of shader jobs would then call a program of the name
`...-NOTFOUND` (case B16).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.toolchains.machine import Machine, Version, dotted, parse_version
from ci.toolchains.table import Backend
from opencoti.errors import MissingError

VARIABLE: Final = "OPENCOTI_VULKAN_SDK"
# Folders below an include folder → the header in it that ggml needs.
_HEADERS: Final = {
    "vulkan": "vulkan.hpp",
    "vk_video": "vulkan_video_codecs_common.h",
    "spirv": "unified1/spirv.hpp",
}
# Declared by the headers from 1.3.272 or so on; ggml-vulkan does not compile without it.
_NEEDED_DECLARATION: Final = "VkLayerSettingEXT"
_PACKAGES: Final = "apt-get install glslc libvulkan-dev spirv-headers"


@dataclass(frozen=True, kw_only=True)
class VulkanToolkit:
    """A shader compiler and headers.

    Attributes:
        version: of shaderc, which glslc is a part of.
        headers: of the Vulkan headers, three numbers.
        folders: name below the include folder → where it lies.
    """

    glslc: Path
    version: Version
    headers: Version
    folders: Mapping[str, Path]

    @property
    def label(self) -> str:
        """Its versions, without a place of this machine."""
        return f"glslc {dotted(self.version)}, Vulkan headers {dotted(self.headers)}"

    def __str__(self) -> str:
        return f"{self.label} ({self.glslc}, {self.folders['vulkan']})"


def read_vulkan(machine: Machine) -> VulkanToolkit:
    """Find glslc in the SDK that the variable names, else on PATH, and the headers that belong to it.

    Raises:
        MissingError: `glslc-missing`, `glslc-version-unreadable`, `vulkan-headers-missing`,
            `vulkan-headers-old`.
    """
    named = machine.named(VARIABLE)
    glslc = _in_sdk(Path(named)) if named else machine.which("glslc")
    if glslc is None:
        where = f"{named}, which {VARIABLE} names" if named else "PATH"
        raise MissingError(
            "glslc-missing",
            f"the shader compiler glslc is not in {where}",
            hint=f"{_PACKAGES}, or set {VARIABLE} to a Vulkan SDK; "
            "with --engine docker the image `vulkan` has it",
        )
    # The sibling folder, not that of what a link leads to: distributions link programs across folders.
    includes = [glslc.parent.parent / "include", *([] if named else machine.include_folders)]
    folders = {name: _folder_of(name, header, includes) for name, header in _HEADERS.items()}
    found = {name: folder for name, folder in folders.items() if folder is not None}
    missing = [f"{name}/{header}" for name, header in _HEADERS.items() if name not in found]
    if missing:
        raise MissingError(
            "vulkan-headers-missing",
            f"{', '.join(missing)} not found in {', '.join(map(str, includes))}",
            hint=f"{_PACKAGES}, or set {VARIABLE} to a Vulkan SDK; "
            "with --engine docker the image `vulkan` has them",
        )
    core = _text(found["vulkan"] / "vulkan_core.h")
    headers = _headers_version(core)
    if _NEEDED_DECLARATION not in core:
        raise MissingError(
            "vulkan-headers-old",
            f"the Vulkan headers in {found['vulkan']} are too old ({dotted(headers)})",
            why=f"they lack {_NEEDED_DECLARATION}, which ggml-vulkan uses",
            hint=f"set {VARIABLE} to a newer Vulkan SDK; with --engine docker the image `vulkan` has them",
        )
    return VulkanToolkit(
        glslc=glslc.resolve(), version=_glslc_version(glslc, machine), headers=headers, folders=found
    )


def measure_features(
    glslc: Path, backend: Backend, probes: Mapping[str, Path], machine: Machine
) -> tuple[str, ...]:
    """Compile the probes that images are proved with; return the features of the table that work, sorted.

    `probes` has, by name of a feature, the shader that needs it.

    Raises:
        MissingError: `glslc-unfit`, the shader that every build needs does not compile.
    """
    with tempfile.TemporaryDirectory(prefix="opencoti-probe-") as name:
        works = {
            feature: _compiles(glslc, probes[feature], Path(name, f"{number}.spv"), machine)
            for number, feature in enumerate((backend.probe, *backend.features, *backend.absent_features))
            if feature in probes
        }
    if not works.pop(backend.probe, False):
        raise MissingError(
            "glslc-unfit",
            f"{glslc} cannot compile a shader with 16-bit storage",
            hint=f"{_PACKAGES}, or set {VARIABLE} to a newer Vulkan SDK, or use --engine docker",
        )
    return tuple(sorted(feature for feature, is_known in works.items() if is_known))


def _in_sdk(sdk: Path) -> Path | None:
    """`VULKAN_SDK` of the vendor's scripts is the folder below the one that the archive has."""
    known = (sdk / "bin" / "glslc", sdk / "x86_64" / "bin" / "glslc")
    return next((path for path in known if path.is_file()), None)


def _folder_of(name: str, header: str, includes: list[Path]) -> Path | None:
    return next((folder / name for folder in includes if (folder / name / header).is_file()), None)


def _glslc_version(glslc: Path, machine: Machine) -> Version:
    text = machine.ask([glslc, "--version"])
    match = re.search(r"^shaderc v?(\d+\.\d+(?:\.\d+)?)", text, re.MULTILINE)
    if match is None:
        raise MissingError(
            "glslc-version-unreadable",
            f"{glslc} does not say of which version it is",
            why=f"it printed {text.strip()[:200]!r}",
            hint=f"{_PACKAGES}, or set {VARIABLE} to a Vulkan SDK",
        )
    return parse_version(match[1])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _headers_version(core: str) -> Version:
    complete = re.search(r"VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION\(\d+, (\d+), (\d+),", core)
    patch = re.search(r"define VK_HEADER_VERSION (\d+)", core)
    parts = (*(complete.groups() if complete else ()), *(patch.groups() if patch else ()))
    return tuple(int(part) for part in parts)


def _compiles(glslc: Path, shader: Path, output: Path, machine: Machine) -> bool:
    machine.ask([glslc, "-fshader-stage=compute", "--target-env=vulkan1.3", "-o", output, shader])
    return output.is_file()
