"""What may be embedded: the form of `.args`, and models that are what their name says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ci.package.inputs import open_input
from ci.package.zipwriter import NewMember
from opencoti.errors import ConfigError
from opencoti.files import is_safe_name

ARGS_NAME = ".args"
USER_ARGS = "..."
MODEL_PREFIX = "/zip/"
_GGUF_MAGIC = b"GGUF"
_MAX_ARGS_BYTES = 1 << 16
_MODEL_OPTIONS = ("-m", "--model")


def check_args(data: bytes, origin: str) -> bytes:
    """Return `.args` as given if every program that reads it sees the same arguments.

    Raises:
        ConfigError: `args-malformed`: NUL or carriage return, an empty line, more than one `...`, no newline
            at the end.
    """
    if len(data) > _MAX_ARGS_BYTES:
        raise _malformed(origin, f"it has more than {_MAX_ARGS_BYTES} bytes")
    if b"\0" in data or b"\r" in data:
        raise _malformed(origin, "it holds a NUL or a carriage return (was it saved on Windows?)")
    if not data.endswith(b"\n"):
        raise _malformed(origin, "its last line does not end in a newline")
    try:
        lines = data.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as exc:
        raise _malformed(origin, f"byte {exc.start} is not UTF-8") from exc
    if "" in lines:
        raise _malformed(origin, f"line {lines.index('') + 1} is empty; it would be an empty argument")
    if lines.count(USER_ARGS) > 1:
        raise _malformed(origin, f"`{USER_ARGS}` stands more than once")
    return data


def check_models(members: Sequence[NewMember], names: Sequence[str], args: bytes | None) -> None:
    """Check embedded models.

    Args:
        members: the new members.
        names: every name of the finished archive, new ones included.
        args: the `.args` of the finished archive, None if it has none.

    Raises:
        ConfigError: `model-not-gguf`; `models-ambiguous`, two models and no `-m` that chooses (case B23).
    """
    for member in members:
        if member.name.lower().endswith(".gguf"):
            _check_gguf(member)
    models = sorted(name for name in names if name.lower().endswith(".gguf"))
    words = args.decode("utf-8", "replace").split("\n") if args else []
    chosen = any(word in _MODEL_OPTIONS or word.startswith("--model=") for word in words)
    if len(models) > 1 and not chosen:
        raise ConfigError(
            "models-ambiguous",
            f"the archive would hold {len(models)} models: {', '.join(models)}",
            why=f"the engine cannot know which one to load, since {ARGS_NAME} has no `-m`",
            hint=f"add `-m` and `/zip/{models[0]}` to {ARGS_NAME}, or embed one model only",
        )


def model_member(path: Path) -> NewMember:
    """Return the member for a model file; it keeps its name.

    Raises:
        ConfigError: `model-name-refused`, `model-not-gguf`.
        UsageError: `member-unreadable`.
    """
    if not is_safe_name(path.name) or path.name.startswith("."):
        raise ConfigError(
            "model-name-refused",
            f"cannot embed {path}",
            why="a member's name holds letters, digits and . _ + - only and does not begin with a dot",
            hint="give the model through a link with such a name: its name is kept in the artifact",
        )
    member = NewMember(name=path.name, mode=0o644, path=path)
    _check_gguf(member)
    return member


def check_references(args: bytes, names: Sequence[str]) -> None:
    """Check that every `/zip/…` of `.args` is a member.

    Raises:
        ConfigError: `args-member-missing`; the loader would stop at it.
    """
    lines = args.decode("utf-8", "replace").split("\n")
    missing = [
        line for line in lines if line.startswith(MODEL_PREFIX) and line[len(MODEL_PREFIX) :] not in names
    ]
    if missing:
        raise ConfigError(
            "args-member-missing",
            f"{ARGS_NAME} names {missing[0]}",
            why="the artifact has no such member",
            hint="embed the file (--with-model, --mmproj), or mend the line",
        )


def _check_gguf(member: NewMember) -> None:
    magic = member.data[:4] if member.path is None else _start_of(member.path)
    if magic != _GGUF_MAGIC:
        raise ConfigError(
            "model-not-gguf",
            f"{member.path or member.name} is no GGUF model",
            why=f"it starts with {magic!r}, not {_GGUF_MAGIC!r}",
            hint="give a GGUF file; a Git LFS pointer or a broken download starts otherwise",
        )


def _start_of(path: Path) -> bytes:
    with open_input(path) as source:
        return source.file.read(len(_GGUF_MAGIC))


def _malformed(origin: str, why: str) -> ConfigError:
    return ConfigError(
        "args-malformed",
        f"cannot embed {origin} as {ARGS_NAME}",
        why=why,
        hint=f"one argument a line, `{USER_ARGS}` where the user's own go, no quoting",
    )
