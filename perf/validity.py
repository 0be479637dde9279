"""When a figure counts. Pure: what a server said goes in, reasons why it must not be reported come out.

Each rule is a trap in which a bench looks good and measures something else: tokens taken from a cache and
counted as computed, a run that quietly fell back to the processor, an answer that ended early, clocks that
contradict each other, a prompt whose beginning changed by itself (case B57).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_CACHED_SHARE: Final = 0.01
_TEMPLATE_TOKENS: Final = 16  # what every prompt begins with: the template, and the title of the text
_SEAM_TOKENS: Final = 4
_CLOCK_SLACK: Final = 1.02
_CLOCK_SLACK_S: Final = 0.005


@dataclass(frozen=True, kw_only=True)
class Counted:
    """One answer in numbers: the server's own counts and clocks, and our clock around it.

    Attributes:
        total_n: tokens of the prompt.
        cache_n: those that were there already.
        prompt_n: those that were computed.
        predicted_n: tokens of the answer; `asked_n` of them were asked for.
        wall_s: from sending the request to the last byte of the answer.
        cpu_s: processor time of the server since the answer before.
    """

    total_n: int
    cache_n: int
    prompt_n: int
    prompt_s: float
    predicted_n: int
    predicted_s: float
    asked_n: int
    wall_s: float
    cpu_s: float = 0.0

    @property
    def first_token_s(self) -> float:
        """How long the first token took, all that comes before it included."""
        return self.wall_s - self.predicted_s

    @property
    def prefill_rate(self) -> float:
        """Tokens computed per second; those from the cache are not among them."""
        return self.prompt_n / self.prompt_s if self.prompt_s > 0 else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens made per second, the first left out: its time is the prompt's."""
        return (self.predicted_n - 1) / self.predicted_s if self.predicted_s > 0 else 0.0

    @property
    def overhead_s(self) -> float:
        """What is neither prefill nor decoding: JSON, template, tokenising, copies of caches, waiting."""
        return max(0.0, self.wall_s - self.prompt_s - self.predicted_s)


def answer_problems(counted: Counted) -> Iterator[str]:
    """Yield why the counts of an answer cannot be trusted."""
    if counted.prompt_n + counted.cache_n != counted.total_n:
        yield (
            f"the counts contradict each other: {counted.prompt_n} computed and {counted.cache_n} cached are "
            f"not the {counted.total_n} of the prompt"
        )
    if counted.predicted_n != counted.asked_n:
        yield f"the answer has {counted.predicted_n} tokens, {counted.asked_n} were asked for"
    spent_s = counted.prompt_s + counted.predicted_s
    if spent_s > counted.wall_s * _CLOCK_SLACK + _CLOCK_SLACK_S:
        yield f"the server says it took {spent_s:.3f} s of a request that took {counted.wall_s:.3f} s"


def prefill_problems(counted: Counted) -> Iterator[str]:
    """Yield why a rate of prefill would be wrong."""
    if counted.cache_n > max(_TEMPLATE_TOKENS, counted.total_n * _CACHED_SHARE):
        yield (
            f"{counted.cache_n} of {counted.total_n} tokens came from a cache: a rate over the whole prompt "
            "would count what was not computed"
        )


def depth_problems(counted: Counted, *, new_n: int) -> Iterator[str]:
    """Yield why a rate at depth would be wrong: more was computed than the text that was appended.

    Args:
        counted: the answer.
        new_n: tokens of that text, as sent.
    """
    if counted.prompt_n > new_n + 2 * _TEMPLATE_TOKENS:
        yield (
            f"{counted.prompt_n} tokens were computed where {new_n} were appended: a rate over them would be "
            "one of another depth"
        )


def reuse_problems(counted: Counted, *, sent_n: int) -> Iterator[str]:
    """Yield why a turn's reuse is impossible: more was taken over than was ever sent.

    Args:
        counted: the answer.
        sent_n: the most tokens that this prompt can share with anything that the server has seen.
    """
    if counted.cache_n > sent_n + _SEAM_TOKENS:
        yield f"{counted.cache_n} tokens are said to be reused, and at most {sent_n} were sent before"


def prefix_break(before: str, after: str) -> int | None:
    """Return where a later prompt stops being a continuation of an earlier one, None if it is one."""
    if after.startswith(before):
        return None
    return next(
        (at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
        min(len(before), len(after)),
    )


def prefix_problem(position: int | None) -> str:
    """Say that a prefix is not stable, empty if it is (case B57)."""
    return "" if position is None else f"prefix not stable: the prompts differ from character {position} on"


def same_text_problem(stock: str, patched: str) -> str:
    """Say that two sides answered differently although nothing was left to chance; empty if they did not."""
    position = prefix_break(stock, patched)
    if position is None and len(stock) == len(patched):
        return ""
    place = len(stock) if position is None else position
    return f"the answers differ at temperature 0, first at character {place}"
