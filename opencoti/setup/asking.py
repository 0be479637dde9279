"""Questions to the user: in a terminal with rich, or answered by the first option where nobody is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Protocol, TextIO, TypeVar

from opencoti.errors import UsageError

if TYPE_CHECKING:
    from rich.text import Text

A = TypeVar("A")


@dataclass(frozen=True, kw_only=True)
class Option:
    """One possible answer: a word for programs, and a line for people."""

    key: str
    text: str


class Asker(Protocol):
    """Someone who answers. `is_there` is false where every question would be an error."""

    is_there: bool

    def choose(self, question: str, options: Sequence[Option]) -> Option:
        """Return one of the options; the first one is proposed."""

    def confirm(self, question: str, *, default: bool) -> bool:
        """Return yes or no; `default` is proposed."""

    def ask_text(self, question: str) -> str:
        """Return a text."""


class FirstOption:
    """Takes what is proposed, and asks nobody."""

    is_there = True

    def choose(self, question: str, options: Sequence[Option]) -> Option:
        """Return the first option."""
        return options[0]

    def confirm(self, question: str, *, default: bool) -> bool:
        """Return what is proposed."""
        return default

    def ask_text(self, question: str) -> str:
        """Return an empty text."""
        return ""


class NoTerminal(FirstOption):
    """Stands where questions would be asked and nobody can answer."""

    is_there = False


class Terminal:
    """Asks on standard error, so that standard output carries the result only.

    Args:
        output: where questions go.
        answers: where answers come from, standard input if None.

    Every method raises `UsageError` (`setup-needs-answers`) where the answers end.
    """

    is_there = True

    def __init__(self, output: IO[str], answers: TextIO | None = None) -> None:
        from rich.console import Console

        self._console = Console(file=output)
        self._answers = answers

    def choose(self, question: str, options: Sequence[Option]) -> Option:
        """List the options, and ask for a number."""
        from rich.prompt import IntPrompt

        for at, option in enumerate(options, 1):
            self._console.print(self._plain(f"  {at}. {option.text}"))
        numbers = [str(at) for at in range(1, len(options) + 1)]
        prompt = IntPrompt(self._plain(question), console=self._console, choices=numbers, show_choices=False)
        return options[self._answer(lambda: prompt(default=1, stream=self._answers)) - 1]

    def confirm(self, question: str, *, default: bool) -> bool:
        """Ask for yes or no."""
        from rich.prompt import Confirm

        prompt = Confirm(self._plain(question), console=self._console)
        return self._answer(lambda: prompt(default=default, stream=self._answers))

    def ask_text(self, question: str) -> str:
        """Ask for a text."""
        from rich.prompt import Prompt

        prompt = Prompt(self._plain(question), console=self._console)
        return self._answer(lambda: prompt(stream=self._answers))

    def _plain(self, text: str) -> Text:
        """Return a text in which nothing is markup: names come from outside."""
        from rich.text import Text

        return Text(text)

    def _answer(self, ask: Callable[[], A]) -> A:
        try:
            return ask()
        except EOFError as exc:
            raise needs_answers("the answers ended before the questions") from exc


def needs_answers(what: str) -> UsageError:
    """Say that a question found no answer, and how to do without."""
    return UsageError(
        "setup-needs-answers",
        what,
        hint="--yes takes what is proposed; --model, --ollama and --quant say what you want",
    )
