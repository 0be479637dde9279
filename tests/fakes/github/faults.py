"""What can go wrong with one call, and who decides when: a script, or dice with a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Port = Literal["api", "upload", "download"]
Kind = Literal[
    "none",
    "500",  # nothing was done
    "502-done",  # done, and the answer says otherwise
    "reset",  # the connection dies before anything was done
    "reset-done",  # done, and then the connection dies instead of an answer
    "cut",  # done, and the answer ends in the middle
    "secondary-403",
    "secondary-429",
    "secondary-silent",  # 403 that names no time
    "primary",  # the limit of the hour, with its reset
    "stall",  # no answer, the connection stays open
    "html",  # a page of some proxy, status 200
    # uploads only
    "middle",  # dies half-way, a placeholder stays
    "middle-clean",  # dies half-way, nothing stays
    "starter",  # everything was sent, 502, a placeholder stays
    "late",  # everything was sent, 502; a placeholder that becomes whole by itself
    "short",  # the stored asset is a part of the file, and counts as uploaded
    "slow",  # the body is read a little, then no more
]

API: tuple[Kind, ...] = (
    "500", "502-done", "reset", "reset-done", "cut", "secondary-403", "secondary-429", "secondary-silent",
    "primary", "html",
)  # fmt: skip
UPLOAD: tuple[Kind, ...] = (
    "500", "502-done", "reset", "reset-done", "cut", "secondary-403", "middle", "middle-clean", "starter",
    "late", "short",
)  # fmt: skip
DOWNLOAD: tuple[Kind, ...] = ("500", "reset", "cut")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call that is about to be answered: its number from 1, and what it asks for."""

    number: int
    port: Port
    operation: str


Decide = Callable[[Call], Kind]


def no_faults(call: Call) -> Kind:
    return "none"


@dataclass
class Script:
    """Faults for the calls of operations, in order; `{"repos/create-release": ["502-done"]}`."""

    by_operation: dict[str, list[Kind]] = field(default_factory=dict)

    def __call__(self, call: Call) -> Kind:
        left = self.by_operation.get(call.operation)
        return left.pop(0) if left else "none"


@dataclass
class Dice:
    """Faults at random. `outage` is a range of calls that all fail."""

    seed: int
    rate: float = 0.1
    outage: range = range(0)
    thrown: int = 0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def __call__(self, call: Call) -> Kind:
        if call.number in self.outage:
            return "500"
        kinds = {"api": API, "upload": UPLOAD, "download": DOWNLOAD}[call.port]
        if self._random.random() >= self.rate:
            return "none"
        self.thrown += 1
        return self._random.choice(kinds)
