"""Greedy tokens of a device beside the CPU's: equal, or a difference that rounding explains.

The CPU completes a prompt. The device is then asked for each token after the very tokens that the CPU chose
before it, so one difference does not hide the rest; when all are equal, so is the completion. The weights of
the test model are noise: two tokens are sometimes nearly as probable as each other, and kernels that round
differently may order them differently. A kernel that computes something else moves probabilities by far more
than `LIMIT`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ci.smoke.loopback import Loopback
from opencoti.errors import VerificationError
from opencoti.evidence import Comparison, Divergence

# Of natural logarithms. Measured between the CPU and llvmpipe: see docs/how-to/smoke-a-gpu-backend.md.
LIMIT: Final = 0.25
TOKENS: Final = 16
_CANDIDATES: Final = 20
_PROMPT: Final = "Say something about the sea."
_REQUEST: Final[dict[str, Any]] = {
    "temperature": 0,
    "seed": 1,
    "ignore_eos": True,
    "return_tokens": True,
    "n_probs": _CANDIDATES,
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One token that was chosen, and the logarithm of the probability of it and of others, by token."""

    token: int
    logprobs: Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The tokens of the prompt, and what was chosen after them."""

    prompt: tuple[int, ...]
    steps: tuple[Step, ...]


def ask_trace(client: Loopback, *, timeout_s: float) -> Trace:
    """Ask for one greedy completion with its probabilities.

    Raises:
        VerificationError: `smoke-bad-trace`, `smoke-request-failed`.
    """
    given = client.post("/tokenize", {"content": _PROMPT, "add_special": True}, timeout_s=timeout_s)
    prompt = given.get("tokens") if isinstance(given, dict) else None
    if not isinstance(prompt, list) or not prompt or not all(isinstance(token, int) for token in prompt):
        raise _bad_trace("the prompt was not taken apart into tokens")
    steps = _complete(client, prompt, count=TOKENS, timeout_s=timeout_s)
    return Trace(prompt=tuple(prompt), steps=steps)


def follow_trace(client: Loopback, trace: Trace, *, timeout_s: float) -> tuple[Step, ...]:
    """Ask for the next token after each part of a completion. Raises like `ask_trace`."""
    chosen = [step.token for step in trace.steps]
    return tuple(
        step
        for count in range(len(chosen))
        for step in _complete(client, [*trace.prompt, *chosen[:count]], count=1, timeout_s=timeout_s)
    )


def _complete(client: Loopback, prompt: list[int], *, count: int, timeout_s: float) -> tuple[Step, ...]:
    document = client.post(
        "/completion", {**_REQUEST, "prompt": prompt, "n_predict": count}, timeout_s=timeout_s
    )
    given = document.get("completion_probabilities") if isinstance(document, dict) else None
    steps = [_step(item) for item in given] if isinstance(given, list) else []
    known = tuple(step for step in steps if step is not None)
    if len(known) != count or [step.token for step in known] != document.get("tokens"):
        raise _bad_trace(f"{len(known)} of {count} tokens are described")
    return known


def _bad_trace(why: str) -> VerificationError:
    return VerificationError(
        "smoke-bad-trace", "the completion does not say how probable its tokens are", why=why
    )


def _step(item: Any) -> Step | None:
    """Read `{"id": 8730, "logprob": -3.1, "top_logprobs": [{"id": …, "logprob": …}, …]}`."""
    if not isinstance(item, dict):
        return None
    rows = [item, *(row for row in item.get("top_logprobs") or () if isinstance(row, dict))]
    logprobs = {row["id"]: float(row["logprob"]) for row in rows if _is_row(row)}
    return Step(token=item["id"], logprobs=logprobs) if _is_row(item) else None


def _is_row(row: dict[str, Any]) -> bool:
    number = row.get("logprob")
    return isinstance(row.get("id"), int) and isinstance(number, (int, float)) and math.isfinite(number)


def compare(cpu: Trace, device: Sequence[Step], *, limit: float = LIMIT) -> Comparison:
    """Compare what was chosen after the same tokens.

    Args:
        cpu: a completion.
        device: what another device chose at each place of it.
        limit: how far apart logarithms of probabilities may be.

    Raises:
        VerificationError: `smoke-tokens-differ`.
    """
    divergences: list[Divergence] = []
    worst = 0.0
    for position, (own, other) in enumerate(zip(cpu.steps, device, strict=True)):
        worst = max(worst, abs(own.logprobs[own.token] - other.logprobs.get(own.token, -math.inf)))
        margin = _margin(own, other)
        if max(worst, margin) > limit:
            raise _differ(
                f"token {position} is {other.token}, {own.token} to the CPU", max(worst, margin), limit
            )
        if own.token != other.token:
            divergences.append(Divergence(position=position, margin=round(margin, 6)))
    return Comparison(
        tokens=len(cpu.steps),
        equal=len(cpu.steps) - len(divergences),
        max_difference=round(worst, 6),
        limit=limit,
        divergences=tuple(divergences),
    )


def _margin(own: Step, other: Step) -> float:
    """How much less probable the other's choice is to the CPU, and the CPU's to the other."""
    return max(
        own.logprobs[own.token] - own.logprobs.get(other.token, -math.inf),
        other.logprobs[other.token] - other.logprobs.get(own.token, -math.inf),
    )


def _differ(what: str, difference: float, limit: float) -> VerificationError:
    return VerificationError(
        "smoke-tokens-differ",
        "the device computes something else than the CPU",
        why=f"{what}, and the logarithms of the probabilities are {difference:.3f} apart; "
        f"rounding explains {limit}",
        hint="a kernel of the backend or of the driver is wrong for this device",
    )
