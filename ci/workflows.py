"""The generated parts of `.github/workflows/`: what depends on the table of backends.

A workflow is written by hand, but for regions between `# generated: NAME` and `# end`. What stands there is
made anew from `containers/toolchains.toml`, with the indentation of the first mark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ci.toolchains.table import Backend, Table, load_table
from opencoti.errors import ConfigError, storage_error

FOLDER: Final = ".github/workflows"
_REGION: Final = re.compile(
    r"^(?P<indent> *)# generated: (?P<name>[a-z-]+)\n(?P<body>.*?)^(?P=indent)# end\n",
    re.MULTILINE | re.DOTALL,
)
# Names of runners: hosted ones by architecture, and how the service calls an architecture.
_HOSTED: Final = {"x86_64": "ubuntu-24.04", "aarch64": "ubuntu-24.04-arm"}
_RUNNER_ARCH: Final = {"x86_64": "x64", "aarch64": "arm64"}
_DOWNLOAD: Final = "actions/download-artifact@3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c # v8.0.1"
_UPLOAD: Final = "actions/upload-artifact@043fb46d1a93c77aae656e7c1c64a875d1fc6a0a # v7.0.1"
_PYTHON: Final = ".nox/pipeline/bin/python"
# What every backend of a release is put through on a device: kinds of evidence, and commands.
DEVICE_TESTS: Final = ("smoke", "bench")


@dataclass(frozen=True, kw_only=True)
class ReleasedSet:
    """An artifact of a whole release; an artifact holds at most one generation of CUDA."""

    arch: str
    flavor: str | None
    backends: tuple[str, ...]


def released_sets(table: Table) -> tuple[ReleasedSet, ...]:
    """Return the artifacts that a release of everything has, by architecture, the main one first."""
    return tuple(item for arch in _archs(table) for item in _sets_for(table, arch))


def render(text: str, table: Table, origin: str) -> str:
    """Return a workflow with its generated regions made anew.

    Raises:
        ConfigError: `workflow-region-unknown`.
    """
    makers = _regions(table)

    def replace(match: re.Match[str]) -> str:
        name, indent = match["name"], match["indent"]
        if name not in makers:
            raise ConfigError(
                "workflow-region-unknown",
                f"{origin} has a generated part {name!r} that nothing makes",
                hint=f"known: {', '.join(makers)}",
            )
        body = "".join(f"{indent}{line}\n" if line else "\n" for line in makers[name])
        return f"{indent}# generated: {name}\n{body}{indent}# end\n"

    return _REGION.sub(replace, text)


def stale_workflows(root: Path) -> dict[Path, str]:
    """Return the workflows of a checkout that are not as the table wants them, with what they should be.

    Raises:
        ConfigError: `table-malformed`, `workflow-region-unknown`.
        StorageError: a file cannot be read.
    """
    table = load_table(root / "containers" / "toolchains.toml")
    stale = {}
    for path in sorted((root / FOLDER).glob("*.yml")):
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as exc:
            raise storage_error(exc, f"cannot read {path}") from exc
        fresh = render(text, table, path.name)
        if fresh != text:
            stale[path] = fresh
    return stale


def _regions(table: Table) -> Mapping[str, tuple[str, ...]]:
    return {
        "backends": tuple(_backend_rows(table)),
        "toolchains": tuple(f"- {name}" for name in dict.fromkeys(b.toolchain for b in table.backends)),
        "cpu-tests": tuple(_test_lines("cpu")),
        "processors": tuple(f"- {{arch: {arch}, runner: {_HOSTED[arch]}}}" for arch in _archs(table)),
        "devices": tuple(_device_jobs(table)),
        "waivers": tuple(line for backend in table.gpu for line in _waiver_input(backend)),
        "waiver-variables": tuple(
            f"{_waiver(backend).upper()}: ${{{{ inputs.{_waiver(backend)} }}}}" for backend in table.gpu
        ),
        "plan": tuple(_plan_lines(table)),
        "package": (
            *(_take_over_line(backend, arch) for backend in table.backends for arch in backend.hosts),
            *(_package_line(item) for item in released_sets(table)),
        ),
        "artifacts": tuple(line for arch in _archs(table) for line in _artifact_upload(arch)),
    }


def _archs(table: Table) -> tuple[str, ...]:
    return tuple(dict.fromkeys(arch for backend in table.backends for arch in backend.hosts))


def _sets_for(table: Table, arch: str) -> Iterator[ReleasedSet]:
    here = [backend for backend in table.backends if arch in backend.hosts]
    cuda = [backend.name for backend in here if backend.kind == "cuda"]
    for number, generation in enumerate(cuda or [""]):
        names = tuple(b.name for b in here if b.kind != "cuda" or b.name == generation)
        yield ReleasedSet(arch=arch, flavor=generation if number else None, backends=names)


def _backend_rows(table: Table) -> Iterator[str]:
    for backend in table.backends:
        for arch in backend.hosts:
            yield f"- {{backend: {backend.name}, arch: {arch}, toolchain: {backend.toolchain}}}"


def _waiver(backend: Backend) -> str:
    return f"waive_{backend.name}"


def _waiver_input(backend: Backend) -> tuple[str, ...]:
    text = f"Why {backend.title} is not tested on a device; stands in the public index. Empty: it is tested"
    return (
        f"{_waiver(backend)}:",
        f"  description: {json.dumps(text)}",
        "  required: false",
        "  type: string",
        '  default: ""',
    )


def _plan_lines(table: Table) -> Iterator[str]:
    sets = released_sets(table)
    flavors = dict.fromkeys(item.flavor for item in sets if item.flavor)
    yield f'{_PYTHON} -m release plan --tag "$TAG" --repo "$GITHUB_REPOSITORY" --engine docker \\'
    words = [f"--backends {','.join(sets[0].backends)}", *(f"--flavor {name}" for name in flavors)]
    words += [f"--arch {arch}" for arch in _archs(table)]
    yield f"  {' '.join(words)} \\"
    for backend in table.gpu:
        name = _waiver(backend).upper()
        waived = " ".join(f'--waive "{kind}:{backend.name}=${name}"' for kind in DEVICE_TESTS)
        yield f"  ${{{name}:+{waived}}} \\"
    yield "  --json > dist/plan.json"


def _take_over_line(backend: Backend, arch: str) -> str:
    """Return what takes over the stage that another job built; it compiles nothing."""
    return f"{_PYTHON} -m ci build {backend.name} --arch {arch} --engine none"


def _package_line(item: ReleasedSet) -> str:
    flavor = f" --flavor {item.flavor}" if item.flavor else ""
    backends = ",".join(item.backends)
    return f"{_PYTHON} -m ci package --backends {backends}{flavor} --arch {item.arch} --engine none"


def _artifact_upload(arch: str) -> tuple[str, ...]:
    return (
        f"- name: hand over what is for {arch}",
        f"  uses: {_UPLOAD}",
        "  with:",
        f"    name: artifacts-{arch}",
        f"    path: ${{{{ needs.resolve.outputs.source }}}}/dist/llamafile/*-{arch}*",
        "    if-no-files-found: error",
        "    compression-level: 0",
        "    retention-days: 7",
    )


def _test_lines(backend: str) -> Iterator[str]:
    yield from (f"{_PYTHON} -m ci job {kind} dist/llamafile --backend {backend}" for kind in DEVICE_TESTS)


def _device_jobs(table: Table) -> Iterator[str]:
    jobs = [_device_job(backend, arch) for backend in table.gpu for arch in backend.hosts]
    for number, lines in enumerate(jobs):
        yield from ("",) if number else ()
        yield from lines


def _device_job(backend: Backend, arch: str) -> Iterable[str]:
    """Return the job of one label. It works in the runner's temporary folder, which the runner empties."""
    home = "${{ runner.temp }}/${{ inputs.source }}"
    return (
        f"{backend.name}-{arch}:",
        f"  name: {backend.title} on {arch}",
        f"  if: ${{{{ github.ref_protected && !contains(fromJSON(inputs.waived), '{backend.name}') }}}}",
        f"  runs-on: [self-hosted, linux, {_RUNNER_ARCH[arch]}, opencoti-{backend.name}]",
        "  timeout-minutes: 60",
        "  permissions: {}",
        "  env:",
        "    DIGESTS: ${{ inputs.digests }}",
        "  steps:",
        "    - name: get the frozen source",
        f"      uses: {_DOWNLOAD}",
        "      with:",
        "        artifact-ids: ${{ inputs.artifact }}",
        "        path: ${{ runner.temp }}",
        "    - name: unpack it",
        "      working-directory: ${{ runner.temp }}",
        "      run: python3 -m tarfile --filter data -e source.tar.gz .",
        "    - name: get the artifacts",
        f"      uses: {_DOWNLOAD}",
        "      with:",
        f"        name: artifacts-{arch}",
        f"        path: {home}/dist/llamafile",
        "    - name: test",
        f"      working-directory: {home}",
        "      env:",
        "        OPENCOTI_BUILD_CACHE: ${{ runner.temp }}/work",
        "      run: |",
        "        ./noxw -s pipeline",
        f"        {_PYTHON} -m ci vendor",
        f'        {_PYTHON} -m ci job accept dist/llamafile --digests "$DIGESTS"',
        *(f"        {line}" for line in _test_lines(backend.name)),
        "    - name: hand over the evidence",
        "      if: ${{ !cancelled() }}",
        f"      uses: {_UPLOAD}",
        "      with:",
        f"        name: evidence-{backend.name}-{arch}",
        f"        path: {home}/dist/evidence/",
        "        if-no-files-found: ignore",
        "        retention-days: 7",
    )
