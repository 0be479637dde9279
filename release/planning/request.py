"""What the user wants released: the words of `plan`, checked. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, get_args

from ci.package.backends import KNOWN, parse_backends
from opencoti.errors import UsageError
from opencoti.evidence import Evidence
from opencoti.index import Waiver
from opencoti.trust.checks import PRODUCT
from release.planning.limits import GITHUB
from release.planning.model import PlannedLimits

KINDS: Final[tuple[str, ...]] = get_args(Evidence.model_fields["kind"].annotation)
DEFAULT_KINDS: Final = ("smoke", "bench")
DEFAULT_DAYS: Final = 365
_MAX_REASON: Final = 1000
_CUDA: Final = ("cuda12", "cuda13")
_WAIVER: Final = re.compile(rf"(?:(?:{'|'.join(KINDS)}|backend):[a-z0-9][a-z0-9._-]*)")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One wanted release.

    Attributes:
        tag: tag of the release, None for that of the next packaged cut.
        backends: of the main artifact, None for what is packaged already.
        flavors: further artifacts, each with another CUDA generation.
        archs: host architectures, None for what is packaged, else that of this machine.
        kinds: what every backend must have been tested for.
        now: the time of the release.
    """

    repo: str
    lane: Literal["ape", "elf"]
    now: datetime
    tag: str | None = None
    sequence: int | None = None
    days: int = DEFAULT_DAYS
    backends: tuple[str, ...] | None = None
    flavors: tuple[str, ...] = ()
    archs: tuple[str, ...] | None = None
    kinds: tuple[str, ...] = DEFAULT_KINDS
    waivers: tuple[Waiver, ...] = ()
    engine: str = "auto"
    target: str = "github"
    limits: PlannedLimits = field(default=GITHUB)
    product: str = PRODUCT


def parse_waivers(words: Sequence[str]) -> tuple[Waiver, ...]:
    """Read `smoke:cuda12=REASON` of each `--waive`.

    Raises:
        UsageError: `waiver-malformed`.
    """
    waivers: dict[str, Waiver] = {}
    for word in words:
        name, _, reason = word.partition("=")
        is_known = _WAIVER.fullmatch(name) and name.split(":")[1] in KNOWN
        if not is_known or not is_reason(reason.strip()) or name in waivers:
            raise UsageError(
                "waiver-malformed",
                f"cannot read the waiver {word[:80]!r}",
                hint=f"it has the form KIND:BACKEND=REASON, once each; KIND is one of {', '.join(KINDS)}, "
                f"backend; BACKEND is one of {', '.join(KNOWN)}; REASON is one line of at most {_MAX_REASON} "
                "printable characters",
            )
        waivers[name] = Waiver(name=name, reason=reason.strip())
    return tuple(waivers[name] for name in sorted(waivers))


def is_reason(text: str) -> bool:
    """Tell whether a reason can be published: one line, without anything that a reader would not see.

    Control characters move the cursor of a terminal, and others reverse what stands beside them.
    """
    return 0 < len(text) <= _MAX_REASON and text.isprintable() and text == text.strip()


def parse_kinds(text: str) -> tuple[str, ...]:
    """Read a list such as `smoke,bench`. Raises `UsageError` (`evidence-kind-unknown`)."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in KINDS:
            raise UsageError(
                "evidence-kind-unknown",
                f"there is no evidence of kind {name[:60]!r}",
                hint=f"kinds are {', '.join(KINDS)}",
            )
    return names


def flavored(backends: Sequence[str], flavor: str) -> tuple[str, ...]:
    """Return the backends of a second artifact: the same, with another CUDA generation.

    Raises:
        UsageError: `flavor-unknown`.
    """
    if flavor not in _CUDA or flavor in backends:
        raise UsageError(
            "flavor-unknown",
            f"an artifact with {', '.join(backends)} cannot have the flavor {flavor[:60]!r}",
            hint=f"a flavor is the other one of {', '.join(_CUDA)}",
        )
    return parse_backends(",".join([*(name for name in backends if name not in _CUDA), flavor]))
