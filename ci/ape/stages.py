"""The stages of the ape lane: upstream's `make` with cosmocc, and upstream's scripts for the GPU libraries.

Upstream builds inside its source tree. The tree of a stage is read only, so the first step brings a copy into
the build folder. Pure description: nothing here runs or reads anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ci.stages.model import Stage, Step
from ci.toolchains.host import COSMOCC
from ci.toolchains.table import Backend, Kind

HOST: Final = "llamafile"
_HOST_TARGET: Final = "o//llamafile/llamafile"
HOST_OUTPUT: Final = "tree/o/llamafile/llamafile"
# Each word names a run, not a product: a full build and an incremental one share their build folder.
_FRESH: Final = "--fresh"
_RECACHE: Final = "CCACHE_RECACHE=1"


@dataclass(frozen=True, kw_only=True)
class Script:
    """One of upstream's scripts.

    Attributes:
        name: in the folder `llamafile` of the tree.
        library: the name that the engine looks for, the same for both generations of CUDA.
        variables: what tells it where its compiler is.
    """

    name: str
    library: str
    variables: Mapping[str, str]


SCRIPTS: Final[Mapping[Kind, Script]] = {
    "cuda": Script(name="cuda.sh", library="ggml-cuda.so", variables={"CUDA_PATH": "{tools}/.."}),
    "hip": Script(name="rocm.sh", library="ggml-rocm.so", variables={"ROCM_PATH": "{tools}/.."}),
    "vulkan": Script(
        name="vulkan.sh",
        library="ggml-vulkan.so",
        variables={"CC": "{tools}/gcc", "CXX": "{tools}/g++", "GLSLC": "{tools}/glslc"},
    ),
}


def host_stage(*, arch: str, source_tree: str, ggml_commit: str, is_full: bool) -> Stage:
    """Describe the build of the engine itself.

    Args:
        arch: architecture of the name; the file runs on both.
        source_tree: git tree id of the patched source.
        ggml_commit: what the engine says of the library in it; upstream would ask git, which knows another
            commit in a copy of the tree.
        is_full: start from a new copy of the tree and compile everything, the compiler cache being written
            but not read; False compiles what changed since the last run.
    """
    full_copy = (_FRESH,) if is_full else ()
    full_make = (_RECACHE,) if is_full else ()
    return Stage(
        name=f"ape-{arch}",
        toolchain=COSMOCC,
        steps=(
            Step(title="copy the tree", argv=("{tools}/mirror", *full_copy, "{src}", "{out}/tree")),
            Step(
                title="make",
                argv=(
                    "/usr/bin/make",
                    "-C",
                    "{out}/tree",
                    "-j{jobs}",
                    "COSMOCC={tools}/../cosmocc",
                    "CC={tools}/fatcc",
                    "CXX={tools}/fatc++",
                    f"GGML_COMMIT={ggml_commit}",
                    *full_make,
                    _HOST_TARGET,
                ),
            ),
            Step(title="look for both halves of each object", argv=("{tools}/twins", "{out}/tree/o")),
        ),
        env={
            # The compiler cache goes by the list of headers that the compiler writes: see `fatcc`.
            "CCACHE_DEPEND": "1",
            # Every toolchain has a `cc` and an `ar` for the elf lane's compiler; ours are called by path.
            "PATH": "/usr/bin:/bin",
            # A pool of compilers, if there is one, is a named pipe, which make before 4.4 takes for an error.
            "MAKEFLAGS": "",
        },
        source_tree=source_tree,
        inputs={},
        outputs=(HOST_OUTPUT,),
        labels=(_FRESH, _RECACHE),
    )


def script_stage(
    backend: Backend, *, arch: str, source_tree: str, ggml_commit: str, takes_output: bool = True
) -> Stage:
    """Describe the build of a GPU library by upstream's script.

    Its home folder is a new one in the build folder: there the script has its objects, which it takes for
    up to date by their time alone, and there its default output would go, where the engine looks for one.

    Args:
        backend: row of the table.
        arch: architecture of the library.
        source_tree: git tree id of the patched source.
        ggml_commit: what the library says of its source.
        takes_output: the script knows `--output`; the first ones of 0.10 do not.
    """
    script = SCRIPTS[backend.kind]
    output = script_output(backend, takes_output=takes_output)
    words = ("--output", f"{{out}}/{output}") if takes_output else ()
    return Stage(
        name=f"ape-{backend.name}-{arch}",
        toolchain=script_toolchain(backend),
        steps=(
            Step(
                title="remove what was built before",
                argv=("/bin/rm", "-rf", "{out}/home", f"{{out}}/{script.library}"),
            ),
            Step(title="make a home folder", argv=("/bin/mkdir", "-p", "{out}/home")),
            Step(
                title=script.name,
                argv=(
                    "/bin/bash",
                    f"{{src}}/llamafile/{script.name}",
                    "-j{jobs}",
                    "--clean",
                    *words,
                ),
            ),
        ),
        env={**script.variables, "HOME": "{out}/home", "GGML_COMMIT": ggml_commit},
        source_tree=source_tree,
        inputs={},
        outputs=(output,),
    )


def script_output(backend: Backend, *, takes_output: bool) -> str:
    """Return where a script puts its library, below the build folder."""
    library = SCRIPTS[backend.kind].library
    return library if takes_output else f"home/{library}"


def script_toolchain(backend: Backend) -> str:
    """Return the name under which the host engine asks for the toolchain of a backend's script."""
    return f"ape-{backend.name}"
