"""Prompts of a known size: words that are one token each in the vocabulary of the models of the benches.

Nothing in them changes by itself: no clock, no random name, no path (case B57). Two texts of different
numbers differ from their first word on, so none of them is a prefix of another.
"""

from __future__ import annotations

from typing import Any, Final

_WORDS: Final = (" red", " blue", " green", " black", " white", " gold", " grey")
Message = dict[str, Any]


def text(title: str, number: int, tokens: int) -> str:
    """Return a text of about so many tokens that starts with its title and number."""
    step = number % 5 + 2
    count = len(_WORDS)
    words = (_WORDS[(at * step + at // count + number) % count] for at in range(max(0, tokens - 4)))
    return f"{title} {number}." + "".join(words)


def first_messages(number: int, *, shared: int, own: int, shared_number: int = 0) -> list[Message]:
    """Return the first messages of a session: a system text that all share, then one of its own."""
    return [
        {"role": "system", "content": text("Rules", shared_number, shared)},
        {"role": "user", "content": text("Task", number, own)},
    ]


def next_message(turn: int) -> Message:
    """Return what the user says in a later turn, about 20 tokens."""
    return {"role": "user", "content": text("Question", turn, 20)}
