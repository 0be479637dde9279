"""The environment of an engine: the caller's, without what would change the engine unseen. Pure.

Held back: variables that are command line options of the engine, that make a loader take other libraries, or
that switch its server into another mode. `pass_env` lets single ones through, `env` sets them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MARK_VARIABLE: Final = "OPENCOTI_LAUNCH_MARK"
EXTRACT_VARIABLE: Final = "OPENCOTI_EXTRACT_DIR"
_HELD_PREFIXES: Final = (
    "LLAMA_",
    "LLAMAFILE_",
    "LLAMACPP_",
    "LLGUIDANCE_",
    "GGML_",
    "AIP_",
    "OPENCOTI_SIGNING",
)
# LD_LIBRARY_PATH stays: some systems find the GPU driver by it, and the artifact's loader puts its own
# folder in front.
_HELD: Final = frozenset(
    {"LD_PRELOAD", "LD_AUDIT", "LD_DEBUG", "LD_DEBUG_OUTPUT", "LD_PROFILE", "DYLD_INSERT_LIBRARIES"}
)


def engine_environment(
    environ: Mapping[str, str],
    *,
    mark: str,
    home: str | None,
    fallback: str,
    pass_env: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the environment for the engine.

    Args:
        environ: the caller's environment.
        mark: unguessable text that marks every process of this launch.
        home: home folder of this user as the system knows it, used where HOME is not set.
        fallback: folder for the engine's files where no home folder is known at all.
        pass_env: names, or prefixes with `*`, to let through.
        env: variables to set, whatever the caller has.
    """
    result = {
        name: value for name, value in environ.items() if not is_held_back(name) or _is_asked(name, pass_env)
    }
    if not result.get("HOME"):
        if home:
            result["HOME"] = home
        else:
            result.setdefault(EXTRACT_VARIABLE, fallback)
    return result | dict(env or {}) | {MARK_VARIABLE: mark}


def is_held_back(name: str) -> bool:
    """Tell whether a variable of the caller is kept from the engine."""
    return name in _HELD or name.upper().startswith(_HELD_PREFIXES)


def _is_asked(name: str, pass_env: tuple[str, ...]) -> bool:
    return any(name.startswith(item[:-1]) if item.endswith("*") else name == item for item in pass_env)
