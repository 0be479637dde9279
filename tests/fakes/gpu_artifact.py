"""An artifact with one more library: a packaged one taken apart and put together again.

Stands for what `package` makes when a GPU backend was built; all else in it is that of the packaged one.
"""

from __future__ import annotations

import os
from pathlib import Path

from ci.artifacts import newest_artifact
from ci.dso.elf import inspect_elf
from ci.package.artifact import PackageInputs, assemble
from ci.paths import Layout
from ci.toolchains.table import Backend, load_table
from opencoti.console import Console
from opencoti.errors import OpencotiError
from opencoti.hashing import sha256_file
from opencoti.manifest import MANIFEST_SUFFIX, Dso, Manifest, load_manifest
from tests.conftest import require


def vulkan_library(layout: Layout) -> Path:
    """Return `OPENCOTI_TEST_VULKAN`, else what `build vulkan` left in dist/backends or in build/stages."""
    configured = os.environ.get("OPENCOTI_TEST_VULKAN")
    if configured:
        return Path(configured)
    name = load_table(layout.table).backend("vulkan").library
    places = [
        *(layout.dist / "backends" / "vulkan").glob(f"*/{name}"),
        *(layout.build / "stages").glob(f"*/vulkan-*/bin/{name}"),
    ]
    require(bool(places), "no Vulkan library: run ./noxw -s build_vulkan")
    return max(places, key=lambda path: path.stat().st_mtime)


def vulkan_artifact(layout: Layout, out: Path) -> Path:
    """Write the newest artifact of this checkout with the Vulkan library; return its path."""
    try:
        packaged = newest_artifact(layout)
    except OpencotiError as error:
        require(False, f"no artifact: run ./noxw -s quickstart ({error})")
        raise
    return with_backend(packaged, vulkan_library(layout), load_table(layout.table).backend("vulkan"), out)


def with_backend(packaged: Path, library: Path, backend: Backend, out: Path) -> Path:
    """Write an artifact like `packaged` that also holds the library of a backend; return its path."""
    manifest = load_manifest(packaged.with_name(packaged.name + MANIFEST_SUFFIX).read_bytes())
    parts = out / "parts"
    _take_apart(packaged, manifest, parts)
    own = parts / backend.library
    own.write_bytes(library.read_bytes())
    own.chmod(0o755)
    libraries = [parts / item.name for item in manifest.members if ".so" in item.name]
    licences = {item.name: parts / item.name for item in manifest.members if item.name.startswith("LICENSE")}
    assert manifest.host_binary is not None
    inputs = PackageInputs(
        loader=parts / "loader",
        entry=parts / manifest.host_binary.name,
        libraries=(*(path for path in libraries if path != own), own),
        licences=licences,
        args=None,
        version_string=manifest.version_string,
        tag=manifest.opencoti_tag,
        arch=manifest.arch,
        git_commit=manifest.git_commit,
        git_dirty=manifest.git_dirty,
        sources=manifest.sources,
        patches=manifest.patches,
        patch_set_hash=manifest.patch_set_hash,
        toolchains=manifest.toolchains,
        host_binary=manifest.host_binary,
        cpu_variants=manifest.cpu_variants,
        dsos=(*(dso for dso in manifest.dsos if dso.name != own.name), _dso(own, backend)),
        skipped_backends=(),
        is_cpu_only=False,
    )
    return assemble(inputs, out, Console(quiet=True)).artifact


def _take_apart(packaged: Path, manifest: Manifest, parts: Path) -> None:
    parts.mkdir(parents=True)
    data = packaged.read_bytes()
    assert manifest.loader is not None
    (parts / "loader").write_bytes(data[: manifest.loader.size])
    for item in manifest.members:
        if "/" not in item.name and not item.name.startswith("."):
            path = parts / item.name
            path.write_bytes(data[item.offset : item.offset + item.size])
            path.chmod(0o755 if item.mode == "0755" else 0o644)


def _dso(path: Path, backend: Backend) -> Dso:
    facts = inspect_elf(path)
    return Dso(
        name=path.name,
        backend=backend.name,
        sha256=sha256_file(path),
        archs=facts.gpu_targets or backend.features,
        needed=facts.needed,
        glibc_floor=facts.glibc_floor,
        libstdcxx_floor=facts.libstdcxx_floor,
        min_driver=backend.min_driver,
    )
