"""What this checkout has already: packaged artifacts, evidence, recipes of images. Reads files only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ci.toolchains.recipe import DEBIAN_ARCHS, Recipe
from opencoti.errors import ConfigError, storage_error
from opencoti.evidence import Evidence, load_evidence
from opencoti.hashing import sha256_bytes
from opencoti.manifest import CHUNKS_SUFFIX, MANIFEST_SUFFIX, Manifest, load_manifest

_MAX_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class LocalArtifact:
    """A packaged artifact, as its manifest describes it. Whether its bytes are right is not checked here.

    `size` is None where the file itself is gone.
    """

    folder: Path
    manifest: Manifest
    manifest_bytes: bytes
    size: int | None

    @property
    def path(self) -> Path:
        """The artifact."""
        return self.folder / self.manifest.name

    @property
    def manifest_name(self) -> str:
        """File name of its manifest."""
        return self.manifest.name + MANIFEST_SUFFIX

    @property
    def chunks_path(self) -> Path:
        """Its chunk table."""
        return self.folder / (self.manifest.name + CHUNKS_SUFFIX)

    @property
    def backends(self) -> tuple[str, ...]:
        """What it computes on, the CPU first."""
        return backends_of(self.manifest)


@dataclass(frozen=True, kw_only=True)
class LocalEvidence:
    """One evidence file."""

    path: Path
    evidence: Evidence
    data: bytes

    @property
    def name(self) -> str:
        """What it proves, such as `smoke:cpu`."""
        return f"{self.evidence.kind}:{self.evidence.backend}"

    @property
    def sha256(self) -> str:
        """SHA-256 of the file."""
        return sha256_bytes(self.data)


def backends_of(manifest: Manifest) -> tuple[str, ...]:
    """Return the backends of an artifact, the CPU first, which every engine has."""
    return ("cpu", *sorted({dso.backend for dso in manifest.dsos} - {"cpu"}))


def find_artifacts(folder: Path) -> tuple[LocalArtifact, ...]:
    """Return the artifacts of a folder by the name of their manifests.

    Raises:
        ConfigError: as `load_manifest`; `manifest-name-differs`.
        StorageError: the folder or a manifest cannot be read.
    """
    found = []
    for path in _files(folder, f"*{MANIFEST_SUFFIX}"):
        data = _read(path)
        manifest = load_manifest(data, str(path))
        if path.name != manifest.name + MANIFEST_SUFFIX:
            raise ConfigError(
                "manifest-name-differs",
                f"{path} is the manifest of {manifest.name}",
                why="a manifest lies beside its artifact, under its name",
                hint="remove it, or give it its name back",
            )
        found.append(
            LocalArtifact(
                folder=folder,
                manifest=manifest,
                manifest_bytes=data,
                size=_size(folder / manifest.name),
            )
        )
    return tuple(found)


def find_evidence(folder: Path) -> tuple[LocalEvidence, ...]:
    """Return the evidence files of a folder, by name.

    Raises:
        ConfigError: as `load_evidence`.
        StorageError: the folder or a file cannot be read.
    """
    return tuple(read_evidence(path) for path in _files(folder, "*.json"))


def read_evidence(path: Path) -> LocalEvidence:
    """Return one evidence file. Raises as `find_evidence`."""
    data = _read(path)
    return LocalEvidence(path=path, evidence=load_evidence(data, str(path)), data=data)


def find_recipes(folder: Path, archs: tuple[str, ...]) -> tuple[Recipe, ...]:
    """Return the toolchains of the checkout for these host architectures.

    Raises:
        ConfigError: as `Recipe.load`.
    """
    names = sorted(path.parent.name for path in folder.glob("*/recipe.toml"))
    found = (_recipe(folder / name, arch) for name in names for arch in archs if arch in DEBIAN_ARCHS)
    return tuple(recipe for recipe in found if recipe is not None)


def _recipe(folder: Path, arch: str) -> Recipe | None:
    """Return a toolchain, or None where it does not exist for hosts of this architecture."""
    try:
        return Recipe.load(folder, arch, needs_lock=False)
    except ConfigError as error:
        if error.error_id == "toolchain-arch-unsupported":
            return None
        raise


def recipe_hash(recipe: Recipe) -> str:
    """Return the hash that names the image of a recipe. Raises `StorageError`."""
    try:
        return recipe.image_id
    except OSError as exc:
        raise storage_error(exc, f"cannot read the recipe {recipe.folder}") from exc


def _files(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(path for path in folder.glob(pattern) if not path.name.startswith("."))
    except OSError as exc:
        raise storage_error(exc, f"cannot read {folder}") from exc


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_BYTES)
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc
