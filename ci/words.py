"""Words shared by several commands of one nox call.

Nox hands the words after `--` to every session of a call. A session passes them on behind
`--shared-words`; a command then takes the options it knows, leaves those that other commands know, and
refuses what nobody knows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from opencoti.errors import UsageError

MARK = "--shared-words"


def own_words(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[str]:
    """Return `argv` without the shared words that belong to other commands.

    Raises:
        UsageError: `unknown-word`, no command of `parser` knows an option.
    """
    if MARK not in argv:
        return list(argv)
    at = argv.index(MARK)
    fixed, shared = list(argv[:at]), list(argv[at + 1 :])
    commands = _commands(parser)
    mine = commands.get(fixed[0]) if fixed else None
    if mine is None or "-h" in shared or "--help" in shared:
        return fixed + shared
    return fixed + _select(shared, mine, list(commands.values()))


def _select(
    shared: list[str], mine: argparse.ArgumentParser, everyone: list[argparse.ArgumentParser]
) -> list[str]:
    known = {
        option: action
        for parser in everyone
        for action in parser._actions
        for option in action.option_strings
    }
    own = {option for action in mine._actions for option in action.option_strings}
    takes_positionals = any(not action.option_strings and action.nargs != 0 for action in mine._actions)
    selected: list[str] = []
    for word in _split(shared, known):
        option = word[0].partition("=")[0]
        if not word[0].startswith("-"):
            selected += word if takes_positionals else []
        elif option not in known:
            raise UsageError(
                "unknown-word", f"no command knows the option {option}", hint=_nearest(option, known)
            )
        elif option in own:
            selected += word
    return selected


def _split(shared: list[str], known: dict[str, argparse.Action]) -> Iterator[list[str]]:
    """Yield options together with their values, and positional words alone."""
    at = 0
    while at < len(shared):
        word = shared[at]
        action = known.get(word)
        taken = 1
        if action is not None and action.nargs != 0:
            many = action.nargs in ("*", "+", argparse.REMAINDER)
            while (
                at + taken < len(shared) and not shared[at + taken].startswith("--") and (many or taken == 1)
            ):
                taken += 1
        yield shared[at : at + taken]
        at += taken


def _nearest(option: str, known: dict[str, argparse.Action]) -> str:
    import difflib

    close = difflib.get_close_matches(option, known, n=1)
    return f"did you mean {close[0]}?" if close else "see `python -m ci --help`"


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}
