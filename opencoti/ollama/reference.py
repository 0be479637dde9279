"""The name of a model as Ollama writes it: `[host/][namespace/]model[:tag]`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from opencoti.errors import UsageError

DEFAULT_HOST: Final = "registry.ollama.ai"
DEFAULT_NAMESPACE: Final = "library"
DEFAULT_TAG: Final = "latest"
# The first character keeps `..`, hidden files and options out; each part becomes a part of a path.
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,249}(:\d{1,5})?")


@dataclass(frozen=True, kw_only=True, order=True)
class Reference:
    """A model in a store, in full."""

    host: str
    namespace: str
    model: str
    tag: str

    def __str__(self) -> str:
        """The short form, as `ollama list` prints it."""
        name = f"{self.model}:{self.tag}"
        if self.host != DEFAULT_HOST:
            return f"{self.host}/{self.namespace}/{name}"
        return name if self.namespace == DEFAULT_NAMESPACE else f"{self.namespace}/{name}"

    @property
    def full(self) -> str:
        """The form with every part in it."""
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"

    @property
    def folded(self) -> str:
        """The full form for comparing: Ollama does not tell upper from lower case."""
        return self.full.casefold()

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read a name that a user gave. Raises `UsageError` (`ollama-name-malformed`)."""
        bare = text.strip().removeprefix("https://").removeprefix("http://")
        path, tag = _split_tag(bare)
        parts = path.split("/")
        defaults = [DEFAULT_HOST, DEFAULT_NAMESPACE]
        if not 1 <= len(parts) <= 3:
            raise _malformed(text)
        host, namespace, model = [*defaults[: 3 - len(parts)], *parts]
        return cls.checked(host, namespace, model, tag, origin=text)

    @classmethod
    def checked(cls, host: str, namespace: str, model: str, tag: str, *, origin: str) -> Reference:
        """Put parts together that came from outside. Raises `UsageError` (`ollama-name-malformed`)."""
        if not _HOST.fullmatch(host) or not all(_PART.fullmatch(part) for part in (namespace, model, tag)):
            raise _malformed(origin)
        return cls(host=host, namespace=namespace, model=model, tag=tag)


def _split_tag(text: str) -> tuple[str, str]:
    """Part `model:tag`; the colon of a port stands before a slash."""
    before, separator, after = text.rpartition(":")
    if not separator or "/" in after:
        return text, DEFAULT_TAG
    return before, after


def _malformed(text: str) -> UsageError:
    return UsageError(
        "ollama-name-malformed",
        f"{text[:120]!r} is no name of a model",
        why="expected [host/][namespace/]model[:tag], of letters, digits, dots, - and _",
        hint="`python -m opencoti.ollama list` prints the names of all models",
    )
