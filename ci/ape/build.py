"""Building the engine of the ape lane: upstream's patches → ours → `make` with cosmocc."""

from __future__ import annotations

from typing import Final

from ci.ape.stages import host_stage
from ci.build import BackendBuild, BuildOptions, backend_folder, host_arch, publish
from ci.context import Context
from ci.engines import select_engine
from ci.engines.model import Engine
from ci.package.tag import read_tag
from ci.patches.apply import AppliedTree, apply
from ci.patches.conventions import core_problems
from ci.patches.series import read_series
from ci.patches.worktree import snapshot
from ci.paths import Layout
from ci.sources.lanes import find_lane
from ci.sources.submodule import nested_commit
from ci.stages.runner import StageResult, run_stage
from opencoti.errors import (
    ConfigError,
    UsageError,
)

LANE: Final = "ape"
_GGML: Final = "llama.cpp"


def build_host(context: Context, options: BuildOptions, *, engine: Engine | None = None) -> BackendBuild:
    """Build the engine from the pinned, patched source, from a new copy of it.

    Raises:
        UsageError: an option that this lane does not have.
        ConfigError: `core-source-places`, `ape-path-space`.
        OpencotiError: what `apply` and the engines raise.
    """
    check_options(context.layout, options)
    source = prepare(context)
    result = run_stage(
        host_stage(
            arch=host_arch(), source_tree=source.tree, ggml_commit=ggml_commit(context, source), is_full=True
        ),
        engine or select_engine(options.engine, context.layout, context.console),
        layout=context.layout,
        source=source.folder,
        console=context.console,
        jobs=options.jobs,
        use_cache=options.use_cache,
    )
    folder = publish(result, backend_folder(context.layout, "cpu", source.pin.version, arch=host_arch()))
    return BackendBuild(
        backend="cpu",
        arch=host_arch(),
        source=source,
        version_string=version_string(context, source),
        result=result,
        folder=folder,
    )


def make(context: Context, options: BuildOptions, *, engine: Engine | None = None) -> StageResult:
    """Compile the working tree as it is, edits included; only what they touch is compiled again."""
    check_options(context.layout, options)
    state = snapshot(context.layout, lane=LANE)
    return run_stage(
        host_stage(
            arch=host_arch(), source_tree=state.tree, ggml_commit=ggml_commit(context, state), is_full=False
        ),
        engine or select_engine(options.engine, context.layout, context.console),
        layout=context.layout,
        source=state.folder,
        console=context.console,
        jobs=options.jobs,
    )


def load_version(layout: Layout) -> str:
    """Return the version of the pinned llamafile."""
    from ci.pins import SourcePin

    return SourcePin.load(find_lane(layout, LANE).pin).version


def version_string(context: Context, source: AppliedTree) -> str:
    """Return `opencoti-<ver>-<tag>`, the name of the next cut."""
    return f"opencoti-{source.pin.version}-{read_tag(context.layout.opencoti_tag)}"


def check_options(layout: Layout, options: BuildOptions) -> None:
    """Refuse options that mean nothing in this lane, and a place that cosmocc cannot work in.

    Raises:
        UsageError: `ape-option`.
        ConfigError: `ape-path-space`.
    """
    refused = {
        f"--arch {options.arch}": (
            options.arch not in (None, host_arch()),
            "the engine runs on both, and its GPU libraries are compiled by this machine's tools",
        ),
        f"--toolchain {options.toolchain}": (options.toolchain == "system", "cosmocc compiles it"),
        "--archs": (options.archs is not None, "upstream's scripts have their own lists"),
        "--no-fa": (not options.has_flash_attention, "upstream's scripts have their own lists"),
    }
    for word, (is_given, why) in refused.items():
        if is_given:
            raise UsageError(
                "ape-option", f"lane ape has no {word}", why=why, hint="leave it out, or use --lane elf"
            )
    if any(letter.isspace() for letter in str(layout.root) + str(layout.cache)):
        raise ConfigError(
            "ape-path-space",
            f"lane ape cannot be built in {layout.root}",
            why=f"cosmocc takes no path with a space in it (the cache is {layout.cache})",
            hint="move the checkout, and OPENCOTI_BUILD_CACHE, to paths without spaces",
        )


def prepare(context: Context) -> AppliedTree:
    """Apply the series; a new source of ggml's core must be in every list. Raises like `build_host`."""
    series = read_series(find_lane(context.layout, LANE).series)
    if problems := core_problems(series):
        raise ConfigError(
            "core-source-places",
            "a new source of ggml's core is not in every list that it must be in",
            why=problems[0],
            hint="GPU libraries would have symbols that nothing provides: see the README of the series",
        )
    return apply(context.layout, context.console, lane=LANE)


def ggml_commit(context: Context, source: AppliedTree) -> str:
    """Return what an engine and its libraries say of the library that they hold."""
    return (nested_commit(context.layout, source.pin, _GGML) or source.pin.commit)[:7]
