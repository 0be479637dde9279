"""The software bill of materials of an artifact, CycloneDX 1.6 JSON, made from its manifest alone.

The same manifest gives the same bytes: no clock, no random serial number. What a manifest does not say
(licences of single files, suppliers) is not made up here.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

from cyclonedx.model import AttachedText, HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import (
    Commit,
    Component,
    ComponentType,
    Diff,
    Patch,
    PatchClassification,
    Pedigree,
)
from cyclonedx.output.json import JsonV1Dot6

from opencoti.manifest import Dso, Manifest, Member, Source

# Serial numbers are UUIDs of this name space and the artifact's SHA-256.
_NAMESPACE = uuid.UUID("6f1f0f3e-5f4b-5b6e-9c3a-0c5d7d1f2a90")
_PREFIX = "opencoti:"


def render_sbom(manifest: Manifest) -> bytes:
    """Return the document, UTF-8 JSON with sorted lists and a final newline."""
    document = json.loads(JsonV1Dot6(make_bom(manifest)).output_as_string())
    # The library writes the time of the run; a manifest has none, and the schema does not ask for one.
    document["metadata"].pop("timestamp", None)
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


def make_bom(manifest: Manifest) -> Bom:
    """Return the components of an artifact: its files and the sources that they were built from."""
    root = Component(
        type=ComponentType.APPLICATION,
        bom_ref=manifest.name,
        name=manifest.name,
        version=manifest.version_string,
        hashes=[_sha256(manifest.sha256)],
        properties=list(_facts(manifest)),
    )
    bom = Bom(serial_number=uuid.uuid5(_NAMESPACE, manifest.sha256), metadata=BomMetaData(component=root))
    sources = [_source(source, manifest) for source in manifest.sources]
    dsos = {dso.name: dso for dso in manifest.dsos}
    members = [_member(member, dsos.get(member.name)) for member in manifest.members]
    for component in (*sources, *members):
        bom.components.add(component)
    bom.register_dependency(root, [*sources, *members])
    return bom


def _facts(manifest: Manifest) -> Iterator[Property]:
    yield _property("lane", manifest.lane)
    yield _property("os", manifest.os)
    yield _property("arch", manifest.arch)
    yield _property("gitCommit", manifest.git_commit + (" (with changes)" if manifest.git_dirty else ""))
    yield _property("patchSetHash", manifest.patch_set_hash)
    if manifest.loader is not None:
        yield _property("loader:sha256", manifest.loader.sha256)
    for tool in manifest.toolchains:
        yield _property(f"toolchain:{tool.name}", tool.image_digest or tool.id)


def _source(source: Source, manifest: Manifest) -> Component:
    patches = [patch for patch in manifest.patches if patch.series == source.name]
    return Component(
        type=ComponentType.LIBRARY,
        bom_ref=f"source:{source.name}",
        name=source.name,
        version=source.tag,
        pedigree=Pedigree(
            commits=[Commit(uid=source.commit)],
            patches=[
                Patch(
                    type=PatchClassification.UNOFFICIAL,
                    diff=Diff(text=AttachedText(content=f"{p.name}: {p.title} (sha256 {p.sha256})")),
                )
                for p in patches
            ],
        ),
        properties=[
            _property("origin", source.origin),
            _property("tree", source.tree),
            _property("patchedTree", source.patched_tree),
        ],
    )


def _member(member: Member, dso: Dso | None) -> Component:
    return Component(
        type=ComponentType.FILE,
        bom_ref=f"member:{member.name}",
        name=member.name,
        hashes=[_sha256(member.sha256)],
        properties=[_property("size", str(member.size)), *(_measured(dso) if dso else ())],
    )


def _measured(dso: Dso) -> Iterator[Property]:
    yield _property("backend", dso.backend)
    for name, values in (("archs", dso.archs), ("needed", dso.needed)):
        if values:
            yield _property(name, ", ".join(values))
    for name, value in (("glibcFloor", dso.glibc_floor), ("minDriver", dso.min_driver)):
        if value is not None:
            yield _property(name, value)


def _sha256(digest: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=digest)


def _property(name: str, value: str) -> Property:
    return Property(name=_PREFIX + name, value=value)
