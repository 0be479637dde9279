"""How the jobs of a release hand on work: facts, bytes by hash, evidence from machines that nobody trusts.

The workflows hold no logic of their own; what they would need a shell script for is here. Files come from
other jobs as artifacts of the same run; what they must be comes by another way, the outputs of jobs.
"""

from __future__ import annotations

import re
import stat
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from ci.context import Context
from opencoti.errors import ConfigError, OpencotiError, VerificationError, storage_error
from opencoti.evidence import Evidence, load_evidence
from opencoti.files import require_safe_name, write_atomic
from opencoti.hashing import is_sha256, sha256_file
from opencoti.jsonio import parse_strict
from opencoti.manifest import MANIFEST_SUFFIX, Manifest, load_manifest
from opencoti.pins import is_tag

if TYPE_CHECKING:
    from ci.smoke.command import Proof

TestKind = Literal["smoke", "bench"]
_ARTIFACT_SUFFIX: Final = ".llamafile"
_TOP_FOLDER: Final = re.compile(r"opencoti-[0-9a-f]{12}")
_SENDER: Final = re.compile(r"evidence-(?P<backend>[a-z0-9][a-z0-9.]*)-(?P<arch>[a-z0-9_]+)")
_BUNDLE_TYPE: Final = "application/vnd.dev.sigstore.bundle"
_MAX_EVIDENCE_BYTES: Final = 1 << 20
_MAX_PLAN_BYTES: Final = 32 << 20
_MAX_BUNDLE_BYTES: Final = 16 << 20


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """What the first job tells the others.

    Attributes:
        source: folder in the source tarball.
        waived: backends that are not tested on a device.
    """

    tag: str
    source: str
    waived: tuple[str, ...]


def resolve(plan: Path, tarball: Path) -> Resolved:
    """Return what the plan and the source tarball say; both must be of one commit.

    Raises:
        ConfigError: `job-plan-unfit`, `job-source-unfit`, `json-malformed`.
        StorageError: a file cannot be read.
    """
    document = parse_strict(_read(plan, _MAX_PLAN_BYTES), str(plan))
    try:
        tag, commit = str(document["tag"]), str(document["source"]["commit"])
        waivers = [str(waiver["name"]) for waiver in document["waivers"]]
    except (KeyError, TypeError) as exc:
        raise ConfigError(
            "job-plan-unfit", f"{plan} is no plan", why=f"it has no {exc}", hint="write it with `plan --json`"
        ) from exc
    if not is_tag(tag):
        raise ConfigError("job-plan-unfit", f"{plan} is no plan", why=f"its tag is {tag[:80]!r}")
    folder = _top_folder(tarball)
    if not commit.startswith(folder.removeprefix("opencoti-")):
        raise _unfit_source(tarball, f"it holds {folder}, and the plan is of commit {commit[:12]}")
    waived = tuple(name.removeprefix("smoke:") for name in waivers if name.startswith("smoke:"))
    return Resolved(tag=tag, source=folder, waived=waived)


def verified_digests(context: Context, folder: Path) -> dict[str, str]:
    """Verify every artifact of a folder against its manifest, all of it; return the hash of every file.

    Raises:
        VerificationError: `artifact-differs`; `job-file-foreign`.
        ConfigError: `job-nothing-packaged`; a manifest is malformed.
        StorageError: a file cannot be read.
    """
    from ci.verify.command import default_manifest, differs, verify_artifact

    artifacts = [path for path in _files(folder) if path.name.endswith(_ARTIFACT_SUFFIX)]
    if not artifacts:
        raise ConfigError(
            "job-nothing-packaged", f"there is no artifact in {folder}", hint="run `python -m ci package`"
        )
    known = {path.name for path in artifacts}
    for path in _files(folder):
        if not any(path.name == name or path.name.startswith(f"{name}.") for name in known):
            raise _foreign(path, "it belongs to no artifact")
    for path in artifacts:
        report = verify_artifact(path, default_manifest(path), context.console, full=True)
        if not report.is_ok:
            raise differs(report)
    return {path.name: _hash(path) for path in _files(folder)}


def accept(folder: Path, digests: Mapping[str, str], *, is_whole: bool) -> tuple[Path, ...]:
    """Compare a folder with the hashes that came by another way, and make artifacts executable.

    Artifacts of a workflow run lose their modes. Returns the files.

    Args:
        folder: what was downloaded.
        digests: SHA-256 of every file by its name.
        is_whole: every listed file must be there.

    Raises:
        VerificationError: `job-file-foreign`, `job-bytes-differ`, `job-files-missing`.
        StorageError: a file cannot be read.
    """
    found = _files(folder)
    for path in found:
        if path.name not in digests:
            raise _foreign(path, "nobody listed it")
        if (digest := _hash(path)) != digests[path.name]:
            raise VerificationError(
                "job-bytes-differ",
                f"{path} is not what was packaged",
                why=f"expected sha256 {digests[path.name]}, found {digest}",
                hint="run the jobs of this run again, all of them",
            )
    missing = sorted(digests.keys() - {path.name for path in found})
    if is_whole and missing:
        raise VerificationError(
            "job-files-missing",
            f"{folder} lacks {len(missing)} of {len(digests)} files",
            why=f"{missing[0]} is not there",
            hint="run the jobs of this run again, all of them",
        )
    for path in found:
        if path.name.endswith(_ARTIFACT_SUFFIX):
            path.chmod(0o755)
    return tuple(found)


def run_tests(context: Context, folder: Path, kind: TestKind, backend: str) -> tuple[Path, ...]:
    """Test every artifact of a folder that has a backend, on a device; return the evidence of each.

    All are tested before the first failure is raised. What plays a device in software does not count here.

    Raises:
        ConfigError: `job-nothing-to-test`.
        OpencotiError: as `ci.smoke.command.prove`, `ci.smoke.gpu_command.prove_gpu` and
            `ci.smoke.bench_command.measure`.
    """
    mine = [path for path in _files(folder) if _has_backend(path, backend)]
    if not mine:
        raise ConfigError(
            "job-nothing-to-test",
            f"no artifact in {folder} has backend {backend}",
            hint="look at what was packaged",
        )
    proofs, failures = [], []
    for manifest in mine:
        artifact = manifest.with_name(manifest.name.removesuffix(MANIFEST_SUFFIX))
        try:
            proofs.append(_test(context, artifact, kind, backend).path)
        except OpencotiError as error:
            context.console.error(error)
            failures.append(error)
    if failures:
        raise failures[0]
    return tuple(proofs)


def _test(context: Context, artifact: Path, kind: TestKind, backend: str) -> Proof:
    from ci.smoke.bench_command import measure
    from ci.smoke.command import prove
    from ci.smoke.gpu_command import GpuOptions, prove_gpu

    options = GpuOptions(engine="host")
    if kind == "bench":
        return measure(context, artifact, backend, options)
    return prove(context, artifact) if backend == "cpu" else prove_gpu(context, artifact, backend, options)


def collect_evidence(origin: Path, target: Path, digests: Mapping[str, str]) -> tuple[Path, ...]:
    """Take over what the machines say that tested; each may speak for its own backend only.

    Args:
        origin: one folder per machine, named as the artifact of the workflow: `evidence-BACKEND-ARCH`.
        target: where it goes.
        digests: SHA-256 of every packaged file by its name.

    Raises:
        VerificationError: `job-evidence-refused`.
        ConfigError: `evidence-malformed` and its kind.
        StorageError: a file cannot be read or written.
    """
    taken = []
    for folder in sorted(origin.iterdir()) if origin.is_dir() else ():
        sender = _SENDER.fullmatch(folder.name)
        if sender is None or not folder.is_dir():
            raise _refused(folder, "no job has this name")
        for path in _files(folder):
            data = _read(path, _MAX_EVIDENCE_BYTES)
            evidence = load_evidence(data, str(path))
            _check_evidence(path, evidence, backend=sender["backend"], arch=sender["arch"], digests=digests)
            write_atomic(target / path.name, data)
            taken.append(target / path.name)
    return tuple(taken)


def place_bundle(bundle: Path, folder: Path) -> Path:
    """Put the attestation that the CI service made beside the files that it speaks of; return its path.

    Raises:
        ConfigError: `job-bundle-unfit`, `json-malformed`.
        StorageError: a file cannot be read or written.
    """
    data = _read(bundle, _MAX_BUNDLE_BYTES)
    document = parse_strict(data, str(bundle))
    kind = document.get("mediaType") if isinstance(document, dict) else None
    if not isinstance(kind, str) or not kind.startswith(_BUNDLE_TYPE):
        raise ConfigError(
            "job-bundle-unfit",
            f"{bundle} is no attestation",
            why=f"its media type is {str(kind)[:80]!r}",
            hint="look at the step that attests",
        )
    path = folder / f"{folder.resolve().name}.sigstore.json"
    write_atomic(path, data)
    return path


def parse_digests(text: str) -> dict[str, str]:
    """Read `{"name": "sha256", …}`. Raises `ConfigError` (`job-digests-malformed`, `json-malformed`)."""
    document: Any = parse_strict(text.encode("utf-8"), "--digests")
    is_map = isinstance(document, dict) and document and all(
        isinstance(value, str) and is_sha256(value) for value in document.values()
    )  # fmt: skip
    if not is_map:
        raise ConfigError(
            "job-digests-malformed",
            "--digests holds no hashes by name",
            hint="it is what `python -m ci job digests` told",
        )
    return {require_safe_name(name, "--digests"): value for name, value in document.items()}


def _check_evidence(
    path: Path, evidence: Evidence, *, backend: str, arch: str, digests: Mapping[str, str]
) -> None:
    tested = evidence.artifact
    name = require_safe_name(tested.name, str(path))
    if path.name != f"{name}.{evidence.kind}-{evidence.backend}.json":
        raise _refused(path, f"it is of {name} and {evidence.backend}, by what it says")
    if evidence.backend != backend:
        raise _refused(path, f"a machine for {backend} speaks for {evidence.backend}")
    if f"-{arch}" not in name:
        raise _refused(path, f"a machine of {arch} speaks for {name}")
    if digests.get(name) != tested.sha256:
        raise _refused(path, f"it tested sha256 {tested.sha256}, which nobody packaged as {name}")


def _has_backend(path: Path, backend: str) -> bool:
    if not path.name.endswith(MANIFEST_SUFFIX):
        return False
    manifest: Manifest = load_manifest(_read(path, _MAX_PLAN_BYTES), str(path))
    return backend == "cpu" or any(dso.backend == backend for dso in manifest.dsos)


def _top_folder(tarball: Path) -> str:
    try:
        with tarfile.open(tarball, "r:gz") as tar:
            first = tar.next()
    except (tarfile.TarError, EOFError) as exc:
        raise _unfit_source(tarball, str(exc)) from exc
    except OSError as exc:
        raise storage_error(exc, f"cannot read {tarball}") from exc
    folder = first.name.split("/")[0] if first else ""
    if not _TOP_FOLDER.fullmatch(folder):
        raise _unfit_source(tarball, f"its first folder is {folder[:80]!r}")
    return folder


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder by name; a link or a folder in it is refused.

    Hidden ones, such as locks, are left out: they do not travel between jobs either.
    """
    return sorted(_checked_files(folder))


def _checked_files(folder: Path) -> Iterator[Path]:
    try:
        for path in folder.iterdir():
            if path.name.startswith("."):
                continue
            if not stat.S_ISREG(path.lstat().st_mode):
                raise _foreign(path, "it is no plain file")
            yield path
    except OSError as exc:
        raise storage_error(exc, f"cannot read {folder}") from exc


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(max_bytes + 1)
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc


def _hash(path: Path) -> str:
    try:
        return sha256_file(path)
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc


def _unfit_source(tarball: Path, why: str) -> ConfigError:
    return ConfigError(
        "job-source-unfit",
        f"{tarball} is no frozen source of this plan",
        why=why,
        hint="make both from one checkout: `release freeze` and `release plan`",
    )


def _foreign(path: Path, why: str) -> VerificationError:
    return VerificationError(
        "job-file-foreign", f"{path} does not belong here", why=why, hint="find out which job put it there"
    )


def _refused(path: Path, why: str) -> VerificationError:
    return VerificationError(
        "job-evidence-refused",
        f"{path} proves nothing",
        why=why,
        hint="find out what happened on that machine before anything it said is believed",
    )
