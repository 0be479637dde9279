"""Versions of drivers and C libraries as numbers that compare."""

from __future__ import annotations


def parse_version(text: str) -> tuple[int, ...]:
    """Return a version as numbers that compare: `2.28` is before `2.100`, and `2` is `2.0`."""
    numbers = [int(part) for part in text.split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
