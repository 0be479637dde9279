"""The generated part of a release text, made from its index, manifests and evidence. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from opencoti.evidence import Evidence
from opencoti.index import BackendRequirement, ReleasedArtifact, ReleaseIndex
from opencoti.manifest import Manifest, Patch, Source
from opencoti.trust.comment import INDEX_NAME
from opencoti.trust.keys import TrustedKeys
from release.planning.names import provenance_name


@dataclass(frozen=True, kw_only=True)
class Before:
    """The release before this one."""

    index: ReleaseIndex
    manifests: tuple[Manifest, ...]


def make_notes(
    index: ReleaseIndex,
    manifests: Sequence[Manifest],
    *,
    evidence: Sequence[Evidence] = (),
    before: Before | None = None,
    keys: TrustedKeys | None = None,
) -> str:
    """Return Markdown. The same release gives the same text.

    Args:
        index: the release.
        manifests: those of its artifacts.
        evidence: its evidence, for the devices.
        before: what it is compared with.
        keys: the keys that clients have, for the instructions.
    """
    sections = [
        _head(index),
        _upstream(manifests, before),
        _files(index, before),
        _measured(index, manifests, evidence),
        _speed(index, evidence),
        _waivers(index),
        _patches(manifests, before),
        _verification(index, keys),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _head(index: ReleaseIndex) -> str:
    return (
        f"**{_text(index.version_string)}**, lane {index.lane}, release number {index.sequence} of "
        f"{_text(index.repo)}, fresh until {index.expires[:10]}."
    )


def _upstream(manifests: Sequence[Manifest], before: Before | None) -> str:
    old = {source.name: source for source in _sources(before.manifests if before else ())}
    lines = [_source_line(source, old.get(source.name)) for source in _sources(manifests)]
    return "## Upstream\n\n" + "\n".join(lines)


def _source_line(source: Source, old: Source | None) -> str:
    now = f"{_text(source.tag)} (`{source.commit}`)"
    if old is None:
        return f"- {_text(source.name)}: {now}"
    if old.commit == source.commit:
        return f"- {_text(source.name)}: {now}, as before"
    span = f"`{old.commit[:12]}..{source.commit[:12]}`"
    return f"- {_text(source.name)}: from {_text(old.tag)} (`{old.commit}`) to {now}: {span}"


def _files(index: ReleaseIndex, before: Before | None) -> str:
    old = {_kind(artifact): artifact for artifact in (before.index.artifacts if before else ())}
    rows = [
        f"| `{artifact.name}` | {_text(artifact.requires.os)} {_text(artifact.requires.arch)}"
        f"{_glibc(artifact)} | {artifact.size} | {_change(artifact, old.get(_kind(artifact)))} |"
        for artifact in index.artifacts
    ]
    parts = [
        f"\n`{artifact.name}` comes in {len(artifact.parts)} parts, which `python -m opencoti.fetch` puts "
        f"together; by hand: `cat {artifact.name}.part* > {artifact.name}`."
        for artifact in index.artifacts
        if artifact.parts
    ]
    head = "## Files\n\n| file | for | bytes | against the release before |\n|---|---|---|---|\n"
    return head + "\n".join([*rows, *parts])


def _kind(artifact: ReleasedArtifact) -> tuple[str, str, str, str]:
    """Return what an artifact is, whatever its version: its name begins with the product."""
    product = "-".join(artifact.name.split("-")[:2])
    return product, artifact.requires.os, artifact.requires.arch, artifact.flavor or ""


def _glibc(artifact: ReleasedArtifact) -> str:
    return f", glibc {artifact.requires.glibc}" if artifact.requires.glibc else ""


def _change(artifact: ReleasedArtifact, old: ReleasedArtifact | None) -> str:
    if old is None:
        return "new"
    difference = artifact.size - old.size
    percent = f" ({100 * difference / old.size:+.1f} %)" if old.size else ""
    return f"{difference:+d}{percent}" if difference else "same size"


def _measured(index: ReleaseIndex, manifests: Sequence[Manifest], evidence: Sequence[Evidence]) -> str:
    by_name = {manifest.name: manifest for manifest in manifests}
    rows = [
        f"| `{artifact.name}` | {backend.backend} | {_archs(backend, by_name.get(artifact.name))} "
        f"| {backend.min_driver or ''} | {_tested(artifact, backend.backend, evidence, index)} |"
        for artifact in index.artifacts
        for backend in artifact.requires.backends
    ]
    head = "## Backends, as measured in the files\n\n| file | backend | archs | min driver | tested on |\n"
    return head + "|---|---|---|---|---|\n" + "\n".join(rows)


def _archs(backend: BackendRequirement, manifest: Manifest | None) -> str:
    if backend.backend == "cpu" and manifest is not None and manifest.cpu_variants:
        return _text(", ".join(manifest.cpu_variants))
    return _text(", ".join(backend.archs))


def _tested(
    artifact: ReleasedArtifact, backend: str, evidence: Iterable[Evidence], index: ReleaseIndex
) -> str:
    found: dict[str, list[str]] = {}
    for item in evidence:
        if item.artifact.sha256 == artifact.sha256 and item.backend == backend and item.passed:
            found.setdefault(_device(item), []).append(item.kind)
    if found:
        return "; ".join(f"{device} ({', '.join(kinds)})" for device, kinds in found.items())
    listed = [item.kind for item in index.evidence
              if item.artifact_sha256 == artifact.sha256 and item.backend == backend]  # fmt: skip
    return ", ".join(listed) or "**not tested**"


def _device(item: Evidence) -> str:
    """Name what computed: the accelerators, else the processor; and say so where neither is real."""
    names = [_named(item.name, item.driver, is_played=item.is_software) for item in item.device.accelerators]
    emulator = item.device.emulator
    cpu = _named(item.device.cpu_model, item.device.driver) + (
        f", under {_text(emulator)}" if emulator else ""
    )
    return " and ".join(names) or cpu


def _named(name: str, driver: str | None, *, is_played: bool = False) -> str:
    words = f", driver {_text(driver)}" if driver else ""
    return _text(name) + words + (", in software" if is_played else "")


def _speed(index: ReleaseIndex, evidence: Sequence[Evidence]) -> str:
    """Return the figures of the benches; nothing where there are none."""
    rows = [
        f"| `{artifact.name}` | {item.backend} | {_device(item)} | {item.measured.prompt_per_second:.0f} "
        f"| {item.measured.completion_per_second:.1f} |"
        for artifact in index.artifacts
        for item in evidence
        if item.measured is not None and item.artifact.sha256 == artifact.sha256
    ]
    if not rows:
        return ""
    head = (
        "## Speed, tokens per second\n\nMedians with the tiny model of the tests: to compare devices and "
        "releases with, not what a model in use reaches.\n\n"
        "| file | backend | device | prompt | completion |\n|---|---|---|---|---|\n"
    )
    return head + "\n".join(rows)


def _waivers(index: ReleaseIndex) -> str:
    if not index.waivers:
        return ""
    rows = [f"- `{_text(waiver.name)}`: {_text(waiver.reason)}" for waiver in index.waivers]
    return "## Released without proof\n\n" + "\n".join(rows)


def _patches(manifests: Sequence[Manifest], before: Before | None) -> str:
    patches = _unique_patches(manifests)
    if not patches:
        return "## Patches\n\nNone: the source is upstream's."
    old = {patch.name: patch.sha256 for patch in _unique_patches(before.manifests if before else ())}
    rows = [f"{number}. {_text(patch.title)} (`{patch.name}`){_news(patch, old, is_first=before is None)}"
            for number, patch in enumerate(patches, 1)]  # fmt: skip
    gone = sorted(old.keys() - {patch.name for patch in patches})
    rows += [f"\nNo longer in it: {', '.join(f'`{name}`' for name in gone)}."] if gone else []
    return "## Patches\n\n" + "\n".join(rows)


def _news(patch: Patch, old: dict[str, str], *, is_first: bool) -> str:
    if is_first or old.get(patch.name) == patch.sha256:
        return ""
    return " **changed**" if patch.name in old else " **new**"


def _sources(manifests: Iterable[Manifest]) -> Iterator[Source]:
    seen = {source.name: source for manifest in manifests for source in manifest.sources}
    yield from (seen[name] for name in sorted(seen))


def _unique_patches(manifests: Iterable[Manifest]) -> list[Patch]:
    found = {(patch.series, patch.name): patch for manifest in manifests for patch in manifest.patches}
    return [found[key] for key in sorted(found)]


def _verification(index: ReleaseIndex, keys: TrustedKeys | None) -> str:
    usable = [key.public.text for key in keys.keys if not key.is_retired] if keys else []
    key = usable[0] if len(usable) == 1 else "RW…"
    listed = f"\nSigning keys: {', '.join(f'`{text}`' for text in usable)}.\n" if usable else ""
    return (
        "## Verify\n\n"
        "```sh\n"
        f"python -m opencoti.fetch get --repo {index.repo} --tag {index.tag}   # checks everything below\n"
        f"minisign -V -P {key} -m {INDEX_NAME}\n"
        f"minisign -V -P {key} -m SHA256SUMS && sha256sum -c --ignore-missing SHA256SUMS\n"
        "```\n" + listed + "\n"
        f"`{provenance_name(index.tag)}` says from which sources and how the files were built, signed with "
        "the same key (DSSE). `docs/how-to/verify-a-release.md` shows how to check that with common tools."
    )


def _text(text: str) -> str:
    """Return text that came from elsewhere as Markdown that is only text."""
    plain = html.escape(" ".join(text.split()), quote=False)
    return "".join("\\" + char if char in "\\`*_[]|@#" else char for char in plain)
