"""A composite artifact from the engine at hand: its own members, and a model. Nothing is compiled."""

from __future__ import annotations

import zipfile
from pathlib import Path

from ci.package.arguments import embedder_args
from ci.package.artifact import PackageInputs, assemble
from opencoti.console import Console
from opencoti.manifest import MANIFEST_SUFFIX, load_manifest
from opencoti.pins import ArtifactPin


def make_composite(engine: Path, model: Path, folder: Path, *, pooling: str | None = None) -> Path:
    """Write `opencoti-embedder-….llamafile`; `pooling` replaces the one of the generated `.args`."""
    manifest = load_manifest(engine.with_name(engine.name + MANIFEST_SUFFIX).read_bytes())
    assert manifest.loader is not None
    assert manifest.host_binary is not None
    parts = folder / "parts"
    with zipfile.ZipFile(engine) as archive:
        archive.extractall(parts)
    loader = parts / "loader"
    loader.write_bytes(engine.read_bytes()[: manifest.loader.size])
    entry = parts / manifest.host_binary.name
    args = embedder_args(entry, lane="elf", model=model.name)
    inputs = PackageInputs(
        loader=loader,
        entry=entry,
        libraries=tuple(path for path in sorted(parts.iterdir()) if ".so" in path.name),
        licences={},
        product="embedder",
        models=(model,),
        args=args if pooling is None else args.replace(b"--pooling\nlast", f"--pooling\n{pooling}".encode()),
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
        dsos=manifest.dsos,
        is_cpu_only=manifest.cpu_only,
    )
    return assemble(inputs, folder, Console(quiet=True)).artifact


def pin_for(artifact: Path, folder: Path, *, sha256: str) -> Path:
    """Write a pin of an embedder that is not in any release."""
    path = folder / "embedder.pin"
    path.write_text(f"file:/nowhere c1 {artifact.name} {sha256}\n")
    assert ArtifactPin.load(path).asset == artifact.name
    return path
