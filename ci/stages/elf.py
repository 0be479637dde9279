"""The stages of the elf lane: how the patched llama.cpp tree is configured and compiled.

Pure description: nothing here runs or reads anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ci.stages.model import Stage, Step

# ggml's CPU variants per architecture, as upstream's GGML_CPU_ALL_VARIANTS makes them
# (ggml/src/CMakeLists.txt). Listed, so that a variant that silently vanishes fails the stage.
CPU_VARIANTS: Final[dict[str, tuple[str, ...]]] = {
    "x86_64": (
        "alderlake",
        "cannonlake",
        "cascadelake",
        "cooperlake",
        "haswell",
        "icelake",
        "ivybridge",
        "piledriver",
        "sandybridge",
        "sapphirerapids",
        "skylakex",
        "sse42",
        "x64",
        "zen4",
    ),
    # Named after the version of the architecture that had the features first.
    "aarch64": (
        "armv8.0_1",
        "armv8.2_1",
        "armv8.2_2",
        "armv8.2_3",
        "armv8.6_1",
        "armv8.6_2",
        "armv9.2_1",
        "armv9.2_2",
    ),
}

# What a stage for another target than the wrappers' own tells them, and tells CMake.
_TARGETS: Final[dict[str, str]] = {"aarch64": "aarch64-linux-gnu.2.28"}

SERVER: Final = "llama-server"
# The names that the dynamic linker asks for (SONAME), so no symbolic link is needed beside the server.
CORE_LIBRARIES: Final = ("libggml.so.0", "libggml-base.so.0")

# Added by patch 0007: without it, headers are named otherwise in a build with a compiler cache than without.
PLAIN_PATHS: Final = "cmake/opencoti/plain-paths.cmake"

# No path, time or name of the machine may reach a product. The compiler wrappers of the toolchain map paths;
# debug information would hold more of them.
_COMPILE_FLAGS: Final = "-g0"

_FEATURES: Final = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_BACKEND_DL=ON",
    "-DGGML_CPU_ALL_VARIANTS=ON",
    "-DGGML_NATIVE=OFF",
    "-DGGML_OPENMP=OFF",
    "-DGGML_CCACHE=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    # ON downloads a web page at build time, whatever LLAMA_BUILD_UI says.
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    # ON starts ffprobe and ffmpeg from PATH when a request holds a video.
    "-DMTMD_VIDEO=OFF",
)

# Upstream asks git for the commit while it configures; inside a container that is empty or refused
# (case B09). The pinned values are passed instead and git is not looked for.
_NO_GIT: Final = (
    "-DCMAKE_DISABLE_FIND_PACKAGE_Git=ON",
    "-DGIT_EXECUTABLE=OFF",
    "-DGIT_EXE=OFF",
)


@dataclass(frozen=True, kw_only=True)
class EngineIdentity:
    """What the engine says about itself in `--version` and `GET /props`."""

    version_string: str
    patch_set: str
    upstream_commit: str

    def definitions(self) -> tuple[str, ...]:
        """The CMake definitions that patch 0001 reads."""
        return (
            f"-DOPENCOTI_VERSION_STRING={self.version_string}",
            f"-DOPENCOTI_PATCH_SET={self.patch_set}",
            f"-DOPENCOTI_UPSTREAM_COMMIT={self.upstream_commit}",
            f"-DLLAMA_BUILD_COMMIT={self.upstream_commit[:7]}",
            "-DLLAMA_BUILD_NUMBER=0",
        )


def cpu_stage(
    *,
    arch: str,
    toolchain: str,
    source_tree: str,
    identity: EngineIdentity,
    has_plain_paths: bool = True,
) -> Stage:
    """Describe the build of the server, ggml and every CPU variant.

    Args:
        arch: key of `CPU_VARIANTS`.
        toolchain: name of the toolchain that compiles.
        source_tree: git tree id of the patched source.
        identity: passed in at configure time.
        has_plain_paths: the tree has `PLAIN_PATHS`; a first part of the series may end before it.
    """
    return Stage(
        name=f"cpu-{arch}",
        toolchain=toolchain,
        steps=(
            Step(title="configure", argv=_configure(arch, identity, has_plain_paths)),
            Step(
                title="compile",
                argv=("{tools}/ninja", "-C", "{out}", "-j", "{jobs}", *build_targets(arch)),
            ),
        ),
        env=target_environment(arch),
        source_tree=source_tree,
        inputs={},
        outputs=tuple(f"bin/{name}" for name in product_names(arch)),
        # Another patch set or version recompiles one object (patch 0001), not everything.
        labels=identity.definitions(),
    )


def target_environment(arch: str) -> dict[str, str]:
    """Return what tells the compiler wrappers to build for `arch`; nothing for the one they assume."""
    return {"OPENCOTI_TARGET": _TARGETS[arch]} if arch in _TARGETS else {}


def target_definitions(arch: str) -> tuple[str, ...]:
    """Return what tells CMake that it builds for `arch`; nothing where it finds that out by itself."""
    if arch not in _TARGETS:
        return ()
    return ("-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={arch}")


def product_names(arch: str) -> tuple[str, ...]:
    """File names of everything the CPU stage produces, sorted."""
    return tuple(sorted((SERVER, *CORE_LIBRARIES, *variant_names(arch))))


def variant_names(arch: str) -> tuple[str, ...]:
    """File names of the CPU variants."""
    return tuple(f"libggml-cpu-{variant}.so" for variant in CPU_VARIANTS[arch])


def build_targets(arch: str) -> tuple[str, ...]:
    """Ninja targets: the server, and each variant by name since nothing links to it."""
    return (SERVER, *(f"ggml-cpu-{variant}" for variant in CPU_VARIANTS[arch]))


def _configure(arch: str, identity: EngineIdentity, has_plain_paths: bool) -> tuple[str, ...]:
    return (
        "{tools}/cmake",
        "-G",
        "Ninja",
        "-S",
        "{src}",
        "-B",
        "{out}",
        *target_definitions(arch),
        "-DCMAKE_MAKE_PROGRAM={tools}/ninja",
        "-DCMAKE_C_COMPILER={tools}/cc",
        "-DCMAKE_CXX_COMPILER={tools}/c++",
        "-DCMAKE_AR={tools}/ar",
        "-DCMAKE_RANLIB={tools}/ranlib",
        f"-DCMAKE_C_FLAGS={_COMPILE_FLAGS}",
        f"-DCMAKE_CXX_FLAGS={_COMPILE_FLAGS}",
        "-DCMAKE_EXE_LINKER_FLAGS=-s -pie",
        "-DCMAKE_SHARED_LINKER_FLAGS=-s",
        "-DCMAKE_MODULE_LINKER_FLAGS=-s",
        "-DCMAKE_POSITION_INDEPENDENT_CODE=ON",
        "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
        "-DCMAKE_INSTALL_RPATH=$ORIGIN",
        *((f"-DCMAKE_PROJECT_INCLUDE={{src}}/{PLAIN_PATHS}",) if has_plain_paths else ()),
        "-DCMAKE_PROJECT_ggml_INCLUDE={src}/cmake/opencoti/ggml-shared.cmake",
        *_FEATURES,
        *_NO_GIT,
        *identity.definitions(),
    )
