"""The small part of GitHub's expression language that our workflows use. Anything else is an error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

Contexts = Mapping[str, Any]
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<op>&&|\|\||==|!=|!|\(|\)|,)|'(?P<text>[^']*)'|(?P<name>[A-Za-z_][A-Za-z0-9_.-]*))"
)
_EXPRESSION: Final = re.compile(r"\$\{\{((?:(?!\}\}).)*)\}\}", re.DOTALL)


def render(value: Any, contexts: Contexts) -> Any:
    """Replace every expression in a value of a workflow, also within lists and maps."""
    if isinstance(value, Mapping):
        return {key: render(item, contexts) for key, item in value.items()}
    if isinstance(value, list):
        return [render(item, contexts) for item in value]
    if not isinstance(value, str):
        return value
    whole = _EXPRESSION.fullmatch(value.strip())
    if whole:
        return evaluate(whole[1], contexts)
    return _EXPRESSION.sub(lambda match: _as_text(evaluate(match[1], contexts)), value)


def evaluate(expression: str, contexts: Contexts) -> Any:
    """Return the value of an expression."""
    parser = _Parser(expression, contexts)
    value = parser.either()
    assert parser.at == len(parser.tokens), f"left over in {expression!r}: {parser.tokens[parser.at :]}"
    return value


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


class _Parser:
    def __init__(self, expression: str, contexts: Contexts) -> None:
        self.contexts = contexts
        self.tokens: list[tuple[str, str]] = []
        self.at = 0
        place = 0
        text = expression.rstrip()
        while place < len(text):
            match = _TOKEN.match(text, place)
            assert match, f"cannot read {expression!r}"
            assert match.lastgroup
            self.tokens.append((match.lastgroup, match[match.lastgroup]))
            place = match.end()

    def take(self, *operators: str) -> str:
        if self.at < len(self.tokens):
            kind, text = self.tokens[self.at]
            if kind == "op" and text in operators:
                self.at += 1
                return text
        return ""

    def either(self) -> Any:
        value = self.both()
        while self.take("||"):
            other = self.both()
            value = value or other
        return value

    def both(self) -> Any:
        value = self.same()
        while self.take("&&"):
            other = self.same()
            value = value and other
        return value

    def same(self) -> Any:
        value = self.one()
        while operator := self.take("==", "!="):
            other = self.one()
            value = (value == other) is (operator == "==")
        return value

    def one(self) -> Any:
        if self.take("!"):
            return not self.one()
        if self.take("("):
            value = self.either()
            assert self.take(")")
            return value
        kind, text = self.tokens[self.at]
        self.at += 1
        if kind == "text":
            return text
        return self.call(text) if self.take("(") else self.look_up(text)

    def call(self, name: str) -> Any:
        arguments = []
        while not self.take(")"):
            arguments.append(self.either())
            self.take(",")
        functions: dict[str, Callable[..., Any]] = {
            "fromJSON": json.loads,
            "contains": lambda where, what: what in where,
            "failure": lambda: self.contexts["status"] == "failure",
            "cancelled": lambda: self.contexts["status"] == "cancelled",
        }
        return functions[name](*arguments)

    def look_up(self, name: str) -> Any:
        value: Any = self.contexts
        for part in name.split("."):
            # An output that no step made is empty; a context that does not exist is a mistake.
            assert value is not self.contexts or part in value, f"no context {part}"
            value = value.get(part) if isinstance(value, Mapping) else None
        return value
