"""The `.args` of an artifact with a model, made from what the engine at hand really offers.

The options are those that the runtime gives an embedding server (`opencoti.embedder`). Whether an engine
offers one is read from its bytes: option names are strings in it. The lanes' servers differ, and some
options exist only with a patch.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ci.package.content import MODEL_PREFIX, USER_ARGS
from ci.package.inputs import open_input
from ci.package.naming import Lane
from opencoti.embedder.arguments import embedder_table
from opencoti.errors import BuildError

# What such an engine logs: the patch that can do it is known by this text (see the features of the series).
_IN_PLACE_TEXT: Final = b"opencoti: model in place: "


def embedder_args(engine: Path, *, lane: Lane, model: str, mmproj: str | None = None) -> bytes:
    """Return the `.args` of an embedding server.

    Args:
        engine: the executable that will read them.
        lane: whose server it is.
        model: member name of the model.
        mmproj: member name of its multimodal projector.

    Raises:
        BuildError: `args-not-offered`, the engine lacks an option that belongs to its lane.
        UsageError: `member-unreadable`.
    """
    files = [("-m", f"{MODEL_PREFIX}{model}")]
    files += [("--mmproj", f"{MODEL_PREFIX}{mmproj}")] if mmproj else []
    wanted = [option for option in embedder_table() if lane in option.lanes]
    known = offered_options(engine, [option.words[0] for option in wanted])
    lacking = [o.words[0] for o in wanted if o.words[0] not in known and not o.needs_patch]
    if lacking:
        raise BuildError(
            "args-not-offered",
            f"cannot make .args for {engine}",
            why=f"the engine does not know {', '.join(lacking)}",
            hint="give the arguments with --with-args; or the upstream options changed: look at --help",
        )
    options = [option.words for option in wanted if option.words[0] in known]
    lines = [word for words in (*files, *options) for word in words]
    return "".join(f"{line}\n" for line in (*lines, USER_ARGS)).encode()


def reads_models_in_place(engine: Path) -> bool:
    """Whether the engine can load a model that is a member of the artifact, without a copy of it on disk."""
    with open_input(engine) as source:
        if source.size == 0:
            return False
        with mmap.mmap(source.handle, 0, access=mmap.ACCESS_READ) as data:
            return data.find(_IN_PLACE_TEXT) >= 0


def offered_options(engine: Path, names: Sequence[str]) -> frozenset[str]:
    """Return those of `names` (`--name`) that end a string of the executable."""
    with open_input(engine) as source:
        if source.size == 0:
            return frozenset()
        with mmap.mmap(source.handle, 0, access=mmap.ACCESS_READ) as data:
            return frozenset(name for name in names if data.find(name.encode() + b"\0") >= 0)
