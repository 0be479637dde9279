"""Tokens of a device beside those of the CPU."""

from __future__ import annotations

import pytest

from ci.smoke.comparison import LIMIT, Step, Trace, compare
from opencoti.errors import VerificationError


def step(token: int, **logprobs: float) -> Step:
    """Make a step; `t7=-1.0` is the logarithm for token 7."""
    return Step(token=token, logprobs={int(name[1:]): value for name, value in logprobs.items()})


CPU = Trace(
    prompt=(1, 2),
    steps=(step(7, t7=-3.0, t8=-3.1), step(9, t9=-1.0, t8=-4.0)),
)


def test_equal_tokens_give_the_largest_difference() -> None:
    found = compare(CPU, [step(7, t7=-3.05, t8=-3.1), step(9, t9=-1.02, t8=-4.0)])
    assert (found.tokens, found.equal, found.divergences) == (2, 2, ())
    assert found.max_difference == pytest.approx(0.05)


def test_two_tokens_that_are_nearly_equal_may_change_places_and_the_rest_is_still_compared() -> None:
    found = compare(CPU, [step(8, t8=-3.05, t7=-3.07), step(9, t9=-1.1, t8=-4.0)])
    assert (found.tokens, found.equal) == (2, 1)
    assert [item.position for item in found.divergences] == [0]
    assert found.divergences[0].margin == pytest.approx(0.1)
    assert found.max_difference == pytest.approx(0.1)


@pytest.mark.parametrize(
    "second",
    [
        # Another token, which was far less probable to the CPU.
        step(8, t8=-1.0, t9=-1.1),
        # Another one, which the CPU did not even think of.
        step(5, t5=-1.0, t9=-1.0),
        # The same one, with another probability.
        step(9, t9=-1.0 - 2 * LIMIT, t8=-4.0),
        # Another one, and the CPU's is not among its candidates.
        step(8, t8=-1.0),
    ],
)
def test_what_rounding_does_not_explain_is_an_error(second: Step) -> None:
    with pytest.raises(VerificationError) as caught:
        compare(CPU, [step(7, t7=-3.0, t8=-3.1), second])
    assert caught.value.error_id == "smoke-tokens-differ"
    assert "token 1" in caught.value.why
