"""The statement: which files, from which sources, by which build (in-toto v1, SLSA provenance v1). Pure.

Everything in it comes from the index, the plan and the manifests of the release, and from what the CI service
says about its own run. Nothing is guessed: a local build says that it is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from opencoti.errors import VerificationError
from opencoti.index import ReleaseIndex
from opencoti.jsonio import parse_strict, render_json
from opencoti.manifest import Manifest, Source
from release.planning.model import Plan

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://slsa.dev/provenance/v1"
_MAX_BYTES: Final = 16 << 20


@dataclass(frozen=True, kw_only=True)
class Builder:
    """Who ran the build: an address that names it, and that of the run where there is one."""

    builder_id: str
    invocation_id: str | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], repo: str) -> Builder:
        """Return the workflow of GitHub Actions that runs now, else a build by hand."""
        server = environ.get("GITHUB_SERVER_URL", "https://github.com").rstrip("/")
        workflow, run = environ.get("GITHUB_WORKFLOW_REF"), environ.get("GITHUB_RUN_ID")
        if environ.get("GITHUB_ACTIONS") != "true" or not workflow or not run:
            return cls(builder_id=f"{server}/{repo}/local-build")
        attempt = environ.get("GITHUB_RUN_ATTEMPT", "1")
        home = f"{server}/{environ.get('GITHUB_REPOSITORY', repo)}"
        return cls(
            builder_id=f"{server}/{workflow}",
            invocation_id=f"{home}/actions/runs/{run}/attempts/{attempt}",
        )


def make_statement(
    index: ReleaseIndex,
    plan: Plan,
    manifests: Sequence[Manifest],
    *,
    subjects: Mapping[str, str],
    builder: Builder,
) -> bytes:
    """Return the statement.

    Args:
        index: the release.
        plan: the plan that it was staged by.
        manifests: those of its artifacts.
        subjects: SHA-256 of every file that it speaks of, by name.
        builder: who built.
    """
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": subjects[name]}} for name in sorted(subjects)],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": _definition(index, plan, manifests),
            "runDetails": _details(plan, builder),
        },
    }
    return render_json(statement)


def read_subjects(payload: bytes, what: str) -> dict[str, str]:
    """Return the files (name, SHA-256) of a verified statement.

    Raises:
        VerificationError: `statement-malformed`.
        ConfigError: `json-malformed`.
    """
    document = parse_strict(payload, what, max_bytes=_MAX_BYTES)
    try:
        if (document["_type"], document["predicateType"]) != (STATEMENT_TYPE, PREDICATE_TYPE):
            raise ValueError(f"it is {document['_type']} with {document['predicateType']}")
        return {str(item["name"]): str(item["digest"]["sha256"]) for item in document["subject"]}
    except (KeyError, TypeError, ValueError) as exc:
        raise VerificationError(
            "statement-malformed",
            f"{what} is no provenance of ours",
            why=str(exc),
            hint="get it from the publisher again",
        ) from exc


def _definition(index: ReleaseIndex, plan: Plan, manifests: Sequence[Manifest]) -> dict[str, Any]:
    home = f"https://github.com/{index.repo}"
    return {
        "buildType": f"{home}/release/v1",
        "externalParameters": {
            "source": f"git+{home}@{plan.source.commit}",
            "tag": index.tag,
            "lane": index.lane,
            "versionString": index.version_string,
            "artifacts": [
                {"name": item.name, "arch": item.arch, "flavor": item.flavor, "backends": list(item.backends)}
                for item in plan.artifacts
            ],
        },
        "internalParameters": {
            "planSha256": index.plan_sha256,
            "phases": [{"name": phase.name, "argv": list(phase.argv)} for phase in plan.phases],
        },
        "resolvedDependencies": [
            {"name": "opencoti", "uri": f"git+{home}", "digest": {"gitCommit": plan.source.commit}},
            *_sources(manifests),
            *_toolchains(manifests),
        ],
    }


def _sources(manifests: Iterable[Manifest]) -> Iterator[dict[str, Any]]:
    sources = {source.name: (source, manifest) for manifest in manifests for source in manifest.sources}
    for name in sorted(sources):
        source, manifest = sources[name]
        yield {
            "name": source.name,
            "uri": _uri(source),
            "digest": {"gitCommit": source.commit, "gitTree": source.tree},
            "annotations": {
                "origin": source.origin,
                "patchSetSha256": manifest.patch_set_hash,
                "patchedTree": source.patched_tree,
            },
        }


def _uri(source: Source) -> str:
    """Return the origin as an address: a git one as it is, a source distribution as a package URL."""
    kind, _, rest = source.origin.partition(":")
    if kind == "sdist":
        project, _, version = rest.split("#")[0].partition("==")
        return f"pkg:pypi/{project.lower()}@{version}"
    return f"git+{source.origin.split()[0]}"


def _toolchains(manifests: Iterable[Manifest]) -> Iterator[dict[str, Any]]:
    tools = {(tool.name, tool.engine, tool.id): tool for item in manifests for tool in item.toolchains}
    for key in sorted(tools):
        tool = tools[key]
        entry: dict[str, Any] = {
            "name": f"toolchain {tool.name}",
            "annotations": {"engine": tool.engine, "recipe": tool.id},
        }
        algorithm, _, digest = (tool.image_digest or "").partition(":")
        yield entry | ({"digest": {algorithm: digest}} if digest else {"digest": {"recipe": tool.id}})


def _details(plan: Plan, builder: Builder) -> dict[str, Any]:
    metadata: dict[str, Any] = {"startedOn": plan.created}
    if builder.invocation_id is not None:
        metadata["invocationId"] = builder.invocation_id
    return {"builder": {"id": builder.builder_id}, "metadata": metadata}
