"""What `package` would do in this checkout, as it is now: looks at files, builds and writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ci.build import LANE, backend_folder, host_arch, version_string
from ci.context import Context
from ci.package.backends import choose_backends
from ci.package.command import (
    UPSTREAM_LICENCES,
    PackageOptions,
    check_request,
    embedder_arguments,
    loader_path,
    read_args,
)
from ci.package.content import ARGS_NAME, model_member
from ci.package.gpu import read_gpu
from ci.package.naming import artifact_name, embedder_name
from ci.package.plan import (
    STALE_NOTE,
    PackagePlan,
    PlannedArtifact,
    PlannedMember,
    file_size,
    plan_args,
    plan_artifact,
    plan_file,
    plan_member,
)
from ci.package.tag import read_tag
from ci.pins import SourcePin
from ci.sources.lanes import Lane, find_lane
from ci.stages import elf


def plan_package(context: Context, options: PackageOptions) -> PackagePlan:
    """Return what `package_set` with these options would embed.

    Raises:
        OpencotiError: what can be seen to be wrong with the options or the checkout before building.
    """
    check_request(options)
    planner = _Planner(context, options)
    choice = planner.choice
    artifacts = [planner.engine()]
    if options.model is not None:
        artifacts.append(planner.embedder())
    return PackagePlan(
        version_string=planner.version_string,
        is_cpu_only=choice.is_cpu_only,
        artifacts=tuple(artifacts),
        skipped=choice.skipped,
        notes=(STALE_NOTE,),
    )


class _Planner:
    """Facts of this checkout that every artifact of one plan shares."""

    def __init__(self, context: Context, options: PackageOptions) -> None:
        self._context = context
        self._options = options
        self._arch = options.arch or host_arch()
        self._lane: Lane = find_lane(context.layout, LANE)
        pin = SourcePin.load(self._lane.pin)
        self.version_string = version_string(context, pin)
        self._built = backend_folder(context.layout, "cpu", pin.version, arch=self._arch)
        self._out = options.out or context.layout.dist / "llamafile"
        # What fits the source is known when it has been applied, which a plan does not do.
        self._gpu = read_gpu(context, pin.version, arch=self._arch, tree=None)
        self.choice = choose_backends(
            options.backends,
            built=["cpu", *self._gpu.records],
            is_cpu_only=options.is_cpu_only,
            reasons=self._gpu.reasons,
            flavor=options.flavor,
        )

    def engine(self) -> PlannedArtifact:
        """Plan the bare engine."""
        name = artifact_name(version_string=self.version_string, arch=self._arch, flavor=self._options.flavor)
        return self._artifact(name, [], None if self._options.model else read_args(self._options))

    def embedder(self) -> PlannedArtifact:
        """Plan the artifact with the model."""
        tag = read_tag(self._context.layout.opencoti_tag)
        name = embedder_name(
            version_string=self.version_string, tag=tag, arch=self._arch, flavor=self._options.flavor
        )
        models = [plan_member(model_member(path), str(path)) for path in self._options.models]
        server = self._built / elf.SERVER
        if self._options.args_file is None and file_size(server) is None:
            # The options are read off the engine, which is not there yet.
            models.append(PlannedMember(name=ARGS_NAME, mode=0o644, size=None, origin="generated"))
            return self._artifact(name, models, None)
        return self._artifact(name, models, embedder_arguments(server, self._options))

    def _artifact(self, name: str, extra: list[PlannedMember], args: bytes | None) -> PlannedArtifact:
        members = [*self._shared(), *extra]
        if args is not None:
            origin = str(self._options.args_file or "generated")
            members.append(plan_args(args, origin, members))
        return plan_artifact(
            self._out / name,
            members,
            lane="elf",
            loader_size=file_size(loader_path(self._context, self._arch)),
            version_string=self.version_string,
            entry=elf.SERVER,
            args=args,
        )

    def _shared(self) -> Iterator[PlannedMember]:
        for name in elf.product_names(self._arch):
            yield self._file(name, self._built / name, 0o755)
        for path in self._gpu.libraries(self.choice.gpu):
            yield self._file(path.name, path, 0o755)
        if self._options.is_bundled:
            yield from self._gpu.planned_bundle(self.choice.gpu)
        for name, inside in UPSTREAM_LICENCES.items():
            yield self._file(name, self._lane.tree / inside, 0o644)
        yield self._file("LICENSE.opencoti", self._context.layout.root / "LICENSE", 0o644)

    def _file(self, name: str, path: Path, mode: Literal[0o644, 0o755]) -> PlannedMember:
        return plan_file(self._context.layout.root, name, path, mode)
