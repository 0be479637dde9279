"""What a launch is asked for, checked before anything is started. Pure but for looking at the model file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, get_args

from opencoti.errors import UsageError

Purpose = Literal["chat", "embedding"]
Gpu = Literal["auto", "disable", "nvidia", "amd", "vulkan", "apple"]

LOOPBACK_HOSTS: Final = ("127.0.0.1", "::1", "localhost")
_GPU_WORDS: Final[dict[str, Gpu]] = {
    "auto": "auto",
    **dict.fromkeys(("disable", "disabled", "off", "none", "cpu"), "disable"),
    **dict.fromkeys(("nvidia", "cublas", "cuda"), "nvidia"),
    **dict.fromkeys(("amd", "rocm", "rocblas", "hip"), "amd"),
    **dict.fromkeys(("vulkan", "vk"), "vulkan"),
    **dict.fromkeys(("apple", "metal"), "apple"),
}
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST: Final = re.compile(r"[0-9A-Za-z.:_-]{1,255}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")
# Words that the launcher decides itself. Given among the engine's own arguments they would win, unseen.
_OURS: Final = {
    "--host": "--host",
    "--port": "--port",
    **dict.fromkeys(("-m", "--model", "-mu", "--model-url", "-hf", "-hfr", "--hf-repo"), "--model"),
    **dict.fromkeys(("-a", "--alias"), "--alias"),
    "--gpu": "--gpu",
    **dict.fromkeys(("-dev", "--device"), "--gpu"),
    **dict.fromkeys(("--embedding", "--embeddings"), "--embedding"),
    "--slot-save-path": "--isolated",
    # A password in an argument list is readable by everybody on the machine.
    **dict.fromkeys(("--api-key", "--api-key-file"), "--api-key-file"),
}
_BASE_TIMEOUT_S: Final = 60.0
_BYTES_PER_S: Final = 25_000_000  # a slow network disk


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """How an engine is shared by programs that do not know each other (`opencoti.tier`).

    Attributes:
        fingerprint: what the engine was started with; kept in its notes, for the others to compare.
        users_lock: each user holds a shared lock on this file for as long as it uses the engine.
        idle_s: once detached, the engine ends when nobody has used it for so long; None: never.
    """

    fingerprint: str
    users_lock: Path
    idle_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """One wanted engine.

    Attributes:
        model: GGUF file; None where the artifact holds its own.
        binary: the engine, instead of the one that is found (`opencoti.launch.binary`).
        name: name of the launch, for `status`, `stop` and `logs`; a random one if empty.
        alias: what the engine calls its model; the file name if empty.
        host: address to listen on.
        port: 0 lets the kernel choose.
        allow_remote: other machines may connect.
        gpu: where to compute. Every value but `auto` is a demand: the launch fails where it cannot be met.
        purpose: chat and completion, or embeddings.
        parallel: conversations at once (slots); None leaves it to the engine.
        is_isolated: nothing is shared between conversations: no common prompt cache, and slots can be erased.
        api_key_file: file with the password that clients must send, in its first line.
        arguments: more arguments for the engine, as they are.
        pass_env: variables of the caller that would be held back; `PREFIX*` stands for all of a kind.
        env: variables to set.
        timeout_s: how long it may take to be ready; None: 60 s and 1 s per 25 MB of model.
        max_log_bytes: cap of the log.
        allow_fetch: download the pinned artifact where it is not here yet.
        pin: pin file instead of the shipped one.
        sharing: for `opencoti.tier` only: others use this engine too.
    """

    model: Path | None = None
    binary: Path | None = None
    name: str = ""
    alias: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    allow_remote: bool = False
    gpu: str = "auto"
    purpose: Purpose = "chat"
    parallel: int | None = None
    is_isolated: bool = False
    api_key_file: Path | None = None
    arguments: tuple[str, ...] = ()
    pass_env: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    max_log_bytes: int = 16 << 20
    allow_fetch: bool = False
    pin: Path | None = None
    sharing: Sharing | None = None

    def require_valid(self) -> None:
        """Check everything that can be checked without starting anything.

        Raises:
            UsageError: `bad-launch-option`, `remote-not-allowed`, `gpu-unknown`, `model-not-found`,
                `engine-argument-reserved`.
        """
        parse_gpu(self.gpu)
        self._require_address()
        self._require_arguments()
        self._require_texts()
        if self.name and not _NAME.fullmatch(self.name):
            raise _bad("name", self.name, "letters, digits, . _ and -, at most 64")
        if self.purpose not in get_args(Purpose):
            raise _bad("purpose", self.purpose, "chat or embedding")
        if self.timeout_s is not None and not 0 < self.timeout_s <= 86_400:
            raise _bad("timeout", str(self.timeout_s), "seconds, up to a day")
        if self.parallel is not None and not 1 <= self.parallel <= 256:
            raise _bad("parallel", str(self.parallel), "a number from 1 to 256")
        if self.max_log_bytes < 4096:
            raise _bad("max-log-bytes", str(self.max_log_bytes), "at least 4096")
        if self.model is not None and not self.model.is_file():
            raise UsageError(
                "model-not-found",
                f"there is no model file {self.model}",
                why="it is a folder" if self.model.is_dir() else "",
                hint="name a GGUF file with --model",
            )

    def _require_address(self) -> None:
        if not _HOST.fullmatch(self.host) or self.host.endswith(".sock"):
            raise _bad("host", self.host, "one IP address or host name")
        if not 0 <= self.port <= 65535:
            raise _bad("port", str(self.port), "a number from 0 to 65535")
        if self.host not in LOOPBACK_HOSTS and not self.allow_remote:
            raise UsageError(
                "remote-not-allowed",
                f"host {self.host} lets other machines use this engine",
                why="it has no password unless you give it one",
                hint="add --allow-remote if that is meant, and --api-key-file for a password",
            )

    def _require_arguments(self) -> None:
        for word in self.arguments:
            if "\0" in word:
                raise _bad("engine argument", word, "no NUL")
            option = _OURS.get(word.partition("=")[0])
            if option is not None:
                raise UsageError(
                    "engine-argument-reserved",
                    f"{word} cannot be passed through to the engine",
                    why="the launcher decides it, and proves it afterwards",
                    hint=f"use {option} of the launcher",
                )
        for name in self.pass_env:
            if not _VARIABLE.fullmatch(name):
                raise _bad("pass-env", name, "the name of a variable, or a prefix and *")

    def _require_texts(self) -> None:
        """Check what becomes text in the notes, in the engine's answers and in its environment."""
        for option, value in (("model", self.model), ("alias", self.alias)):
            if not _is_text(str(value or "")):
                raise _bad(option, str(value), "text in UTF-8 without NUL: rename the file, or link to it")
        for name, value in self.env.items():
            if not name or "=" in name or not _is_text(name) or not _is_text(value):
                raise _bad("env", name, "a name without `=`, and text in UTF-8 without NUL")

    @property
    def ready_timeout_s(self) -> float:
        """How long the engine may take to be ready, in seconds."""
        if self.timeout_s is not None:
            return self.timeout_s
        return _BASE_TIMEOUT_S + (model_bytes(self.model) if self.model else 0) / _BYTES_PER_S


def parse_gpu(word: str) -> Gpu:
    """Return the value that a word for `--gpu` stands for; also `cuda`, `rocm` and the like are known.

    Raises:
        UsageError: `gpu-unknown`.
    """
    known = _GPU_WORDS.get(word.strip().lower())
    if known is None:
        import difflib

        near = difflib.get_close_matches(word.lower(), _GPU_WORDS, n=1)
        raise UsageError(
            "gpu-unknown",
            f"--gpu {word[:40]!r} is unknown",
            why=f"did you mean {near[0]!r}?" if near else "",
            hint=f"known are: {', '.join(get_args(Gpu))}",
        )
    return known


def model_bytes(model: Path) -> int:
    """Return the size of a model, all parts of a split one together."""
    found = re.fullmatch(r"(.+-)(\d{5})(-of-\d{5}\.gguf)", model.name)
    parts = [model]
    if found:
        parts = [
            path
            for path in model.parent.iterdir()
            if path.name.startswith(found[1]) and path.name.endswith(found[3])
        ]
    try:
        return sum(path.stat().st_size for path in parts)
    except OSError:
        return 0


def _is_text(text: str) -> bool:
    """Tell whether a text can be written down; names of files may hold any bytes."""
    return "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


def _bad(option: str, value: str, expected: str) -> UsageError:
    return UsageError(
        "bad-launch-option", f"--{option} {value[:80]!r} is not usable", why=f"expected {expected}"
    )
