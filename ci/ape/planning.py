"""What `package --lane ape` would do in this checkout, as it is now: builds and writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ci.ape.build import LANE
from ci.ape.package import LICENCES, check_ape_request, find_libraries
from ci.ape.stages import HOST
from ci.build import backend_folder, host_arch
from ci.context import Context
from ci.package.command import PackageOptions, embedder_arguments, read_args
from ci.package.content import ARGS_NAME, model_member
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
from ci.sources.lanes import find_lane


def plan_package(context: Context, options: PackageOptions) -> PackagePlan:
    """Return what `ci.ape.package.package_set` with these options would embed. Raises as it does."""
    check_ape_request(options)
    planner = _Planner(context, options)
    artifacts = [planner.engine()]
    if options.model is not None:
        artifacts.append(planner.embedder())
    return PackagePlan(
        version_string=planner.version_string,
        is_cpu_only=planner.choice.is_cpu_only,
        artifacts=tuple(artifacts),
        skipped=planner.choice.skipped,
        notes=(STALE_NOTE,),
    )


class _Planner:
    """Facts of this checkout that every artifact of one plan shares."""

    def __init__(self, context: Context, options: PackageOptions) -> None:
        self._context = context
        self._options = options
        self._lane = find_lane(context.layout, LANE)
        version = SourcePin.load(self._lane.pin).version
        self._tag = read_tag(context.layout.opencoti_tag)
        self.version_string = f"opencoti-{version}-{self._tag}"
        self._host = backend_folder(context.layout, "cpu", version, arch=host_arch()) / HOST
        self._out = options.out or context.layout.dist / "llamafile"
        # What fits the source is known when it has been applied, which a plan does not do.
        self._libraries = find_libraries(context, version, tree=None)
        self.choice = self._libraries.choose(options)

    def engine(self) -> PlannedArtifact:
        """Plan the bare engine."""
        name = artifact_name(
            version_string=self.version_string, arch=host_arch(), lane="ape", flavor=self._options.flavor
        )
        return self._artifact(name, [], None if self._options.model else read_args(self._options))

    def embedder(self) -> PlannedArtifact:
        """Plan the artifact with the model."""
        name = embedder_name(
            version_string=self.version_string,
            tag=self._tag,
            arch=host_arch(),
            lane="ape",
            flavor=self._options.flavor,
        )
        models = [plan_member(model_member(path), str(path)) for path in self._options.models]
        if self._options.args_file is None and file_size(self._host) is None:
            # The options are read off the engine, which is not there yet.
            models.append(PlannedMember(name=ARGS_NAME, mode=0o644, size=None, origin="generated"))
            return self._artifact(name, models, None)
        return self._artifact(name, models, embedder_arguments(self._host, self._options, lane="ape"))

    def _artifact(self, name: str, extra: list[PlannedMember], args: bytes | None) -> PlannedArtifact:
        members = [*self._shared(), *extra]
        if args is not None:
            origin = str(self._options.args_file or "generated")
            members.append(plan_args(args, origin, members))
        return plan_artifact(
            self._out / name,
            members,
            lane="ape",
            loader_size=file_size(self._host),
            version_string=self.version_string,
            entry=HOST,
            args=args,
        )

    def _shared(self) -> Iterator[PlannedMember]:
        for path in self._libraries.paths(self.choice.gpu):
            yield self._file(path.name, path, 0o755)
        for number, (name, inside) in enumerate(LICENCES.items()):
            path = self._lane.tree / inside
            if number == 0 or path.is_file():
                yield self._file(name, path, 0o644)
        yield self._file("LICENSE.opencoti", self._context.layout.root / "LICENSE", 0o644)

    def _file(self, name: str, path: Path, mode: Literal[0o644, 0o755]) -> PlannedMember:
        return plan_file(self._context.layout.root, name, path, mode)
