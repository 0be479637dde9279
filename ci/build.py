"""From a pin to built backends: vendor, apply, and run the stages that are missing or stale."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ci.context import Context
from ci.engines import EngineName, select_engine
from ci.locks import exclusive_lock
from ci.patches.apply import AppliedTree, apply
from ci.patches.worktree import snapshot
from ci.paths import Layout
from ci.pins import SourcePin
from ci.stages import elf
from ci.stages.model import Stage
from ci.stages.runner import StageResult, run_stage
from opencoti.errors import MissingError, UsageError, storage_error
from opencoti.hashing import sha256_file

LANE: Final = "elf"


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """How to build; the words of `python -m ci build`.

    Attributes:
        arch: architecture to build for, None for that of this machine.
        archs: GPUs to build for, None for all of the table.
        has_flash_attention: False leaves these kernels out of a GPU backend, for a quick trial.
        series_until: number of the last patch to apply, empty for the whole series: what benches compare
            with. Source, build folder and products of such a build lie apart.
    """

    engine: EngineName
    toolchain: str
    jobs: int
    use_cache: bool = True
    arch: str | None = None
    archs: tuple[str, ...] | None = None
    has_flash_attention: bool = True
    series_until: str = ""

    @property
    def suffix(self) -> str:
        """What names the folders of a build that has not the whole series."""
        return f"-until-{self.series_until}" if self.series_until else ""


@dataclass(frozen=True, kw_only=True)
class BackendBuild:
    """One built backend, with everything that its bytes came from."""

    backend: str
    arch: str
    source: AppliedTree
    version_string: str
    result: StageResult
    folder: Path


def host_arch() -> str:
    """Return the architecture of this machine as file names spell it.

    Raises:
        MissingError: the elf lane has no recipe for it.
    """
    arch = {"amd64": "x86_64"}.get(os.uname().machine.lower(), os.uname().machine)
    if arch not in elf.CPU_VARIANTS:
        raise MissingError(
            "arch-unsupported",
            f"there is no build recipe for {arch} hosts",
            hint=f"build on one of: {', '.join(elf.CPU_VARIANTS)}",
        )
    return arch


def target_arch(options: BuildOptions) -> str:
    """Return the architecture to build for.

    Raises:
        MissingError: `arch-unsupported`.
        UsageError: `system-toolchain-foreign`, only the pinned compilers know other machines than this one.
    """
    arch = options.arch or host_arch()
    if options.toolchain == "system" and arch != host_arch():
        raise UsageError(
            "system-toolchain-foreign",
            f"--toolchain system cannot build for {arch}",
            why=f"the compilers of this machine are for {host_arch()}",
            hint="leave the option out: the pinned compilers build for every architecture",
        )
    return arch


def backend_folder(layout: Layout, backend: str, version: str, *, arch: str) -> Path:
    """Return where the products of a backend go; those for other machines than this one lie apart."""
    suffix = "" if arch == host_arch() else f"-{arch}"
    return layout.dist / "backends" / backend / f"{version}{suffix}"


def version_string(context: Context, pin: SourcePin) -> str:
    """Return `opencoti-<ver>-<tag>`, the name of the next cut."""
    from ci.package.tag import read_tag

    return f"opencoti-{pin.version}-{read_tag(context.layout.opencoti_tag)}"


def prepare_source(context: Context, *, until: str = "") -> AppliedTree:
    """Vendor the pinned source and apply the series; both do nothing when nothing changed."""
    return apply(context.layout, context.console, lane=LANE, until=until)


def build_cpu(context: Context, options: BuildOptions) -> BackendBuild:
    """Build the server and all CPU variants from the pinned, patched source.

    Raises:
        OpencotiError: any of its kinds, see the commands `vendor` and `apply` and the engines.
    """
    arch = target_arch(options)
    source = prepare_source(context, until=options.series_until)
    name = version_string(context, source.pin)
    result = run_stage(
        _stage(source, name, arch, options),
        select_engine(options.engine, context.layout, context.console),
        layout=context.layout,
        source=source.folder,
        console=context.console,
        jobs=options.jobs,
        use_cache=options.use_cache,
    )
    version = f"{source.pin.version}{options.suffix}"
    folder = publish(result, backend_folder(context.layout, "cpu", version, arch=arch))
    return BackendBuild(
        backend="cpu", arch=arch, source=source, version_string=name, result=result, folder=folder
    )


def make(context: Context, options: BuildOptions) -> StageResult:
    """Compile the working tree as it is, edits included; only what they touch is compiled again."""
    state = snapshot(context.layout, lane=LANE)
    return run_stage(
        _stage(state, version_string(context, state.pin) + "-dev", target_arch(options), options),
        select_engine(options.engine, context.layout, context.console),
        layout=context.layout,
        source=state.folder,
        console=context.console,
        jobs=options.jobs,
    )


def _stage(source: AppliedTree, name: str, arch: str, options: BuildOptions) -> Stage:
    identity = elf.EngineIdentity(
        version_string=name, patch_set=source.patch_set_hash, upstream_commit=source.pin.commit
    )
    stage = elf.cpu_stage(
        arch=arch,
        toolchain=options.toolchain,
        source_tree=source.tree,
        identity=identity,
        has_plain_paths=(source.folder / elf.PLAIN_PATHS).is_file(),
    )
    # Not the folder of the whole series: the two would make each other compile everything anew.
    return replace(stage, folder_name=f"{stage.name}{options.suffix}") if options.suffix else stage


def publish(result: StageResult, folder: Path) -> Path:
    """Copy the outputs of a stage to `folder`, replacing only files that differ; drop files not in it.

    Raises:
        StorageError: the disk is full, or something in the folder is in the way.
    """
    wanted = {Path(name).name: (result.folder / name, digest) for name, digest in result.files.items()}
    with exclusive_lock(folder.with_name(f".{folder.name}.lock"), f"folder {folder}", wait=True):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for stale in set(_names(folder)) - set(wanted):
                (folder / stale).unlink()
            for name, (origin, digest) in wanted.items():
                _place(origin, digest, folder / name)
        except OSError as exc:
            raise storage_error(exc, f"cannot copy the products of stage {result.stage} to {folder}") from exc
    return folder


def _place(origin: Path, digest: str, target: Path) -> None:
    if target.is_file() and target.stat().st_size == origin.stat().st_size and sha256_file(target) == digest:
        return
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.copy2(origin, temporary)
    temporary.replace(target)


def _names(folder: Path) -> Sequence[str]:
    return [path.name for path in folder.iterdir() if path.is_file()]
