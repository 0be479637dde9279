"""Whether requests and answers have the shapes that GitHub itself describes (`shapes.json`)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

_FILE = Path(__file__).with_name("shapes.json")
# The description lists `uploaded` and `open`; its own text says that a failed upload leaves `starter`.
_UNDESCRIBED_STATES = {"starter"}


@dataclass(frozen=True, kw_only=True)
class Match:
    """An operation that a request means, with the values in its path."""

    operation: dict[str, Any]
    values: dict[str, str]

    @property
    def id(self) -> str:
        return str(self.operation["id"])


@dataclass
class Shapes:
    """The description, and every breach of it that was seen."""

    document: dict[str, Any] = field(default_factory=lambda: json.loads(_FILE.read_bytes()))
    breaches: list[str] = field(default_factory=list)

    def match(self, method: str, path: str) -> Match | None:
        """Return the operation of a request; longer templates first, so that words win over values."""
        found = []
        for operation in self.document["operations"]:
            pattern = re.sub(r"\{ref\}", "(?P<ref>.+)", operation["path"])
            pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", pattern)
            match = re.fullmatch(pattern, path)
            if operation["method"] == method and match is not None:
                found.append(Match(operation=operation, values=match.groupdict()))
        return min(found, key=lambda item: len(item.values), default=None)

    def check_request(
        self, match: Match, query: dict[str, str], kind: str, body: dict[str, Any] | None
    ) -> None:
        """Note what is wrong with a request. `body` is None for an upload."""
        self._check_parameters(match, query)
        content = match.operation["body"]
        if not content:
            if body:
                self._note(match, "it has a body")
        elif kind not in content:
            self._note(match, f"body of type {kind}, described is {', '.join(content)}")
        elif kind == "application/json":
            for name in (body or {}).keys() - content[kind]["properties"].keys():
                self._note(match, f"property {name} is not described")
            self._validate(match, content[kind], body)

    def _check_parameters(self, match: Match, query: dict[str, str]) -> None:
        described = match.operation["parameters"]
        for name in query.keys() - {item["name"] for item in described if item["in"] == "query"}:
            self._note(match, f"query parameter {name} is not described")
        for item in described:
            name, values = item["name"], query if item["in"] == "query" else match.values
            if item["required"] and name not in values:
                self._note(match, f"parameter {name} is missing")
            if item["schema"].get("type") == "integer" and not values.get(name, "0").isdigit():
                self._note(match, f"parameter {name} is no number")

    def check_answer(self, match: Match, status: int, data: Any) -> None:
        """Note what is wrong with an answer of the fake."""
        if str(status) not in match.operation["answers"]:
            self._note(match, f"answer {status} is not described")
            return
        schema = match.operation["answers"][str(status)].get("application/json")
        if schema is not None:
            self._validate(match, schema, _without_undescribed(data))

    def _validate(self, match: Match, schema: dict[str, Any], value: Any) -> None:
        validator = Draft202012Validator({**schema, "schemas": self.document["schemas"]})
        for error in validator.iter_errors(value):
            where = "/".join(str(part) for part in error.absolute_path)
            self._note(match, f"{where}: {error.message[:200]}")

    def _note(self, match: Match, text: str) -> None:
        self.breaches.append(f"{match.id}: {text}")


def _without_undescribed(data: Any) -> Any:
    if isinstance(data, list):
        return [_without_undescribed(item) for item in data]
    if not isinstance(data, dict):
        return data
    changed = {key: _without_undescribed(value) for key, value in data.items()}
    if changed.get("state") in _UNDESCRIBED_STATES:
        changed["state"] = "open"
    return changed
