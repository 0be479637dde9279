"""Makes `shapes.json`: what GitHub's own description says of the few operations that a publisher calls.

Called as `make_shapes.py ARCHIVE`, the npm package that `package-lock.json` beside this file pins, as
`npm pack @octokit/openapi@VERSION` fetches it. The whole description has 13 MB; names, types and enumerations
are kept.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SHAPES = HERE / "shapes.json"
PACKAGE = "@octokit/openapi"
DOCUMENT = "generated/api.github.com.json"

_RELEASES = "/repos/{owner}/{repo}/releases"
_GIT = "/repos/{owner}/{repo}/git"
OPERATIONS = (
    ("get", _RELEASES),
    ("post", _RELEASES),
    ("get", _RELEASES + "/{release_id}"),
    ("patch", _RELEASES + "/{release_id}"),
    ("delete", _RELEASES + "/{release_id}"),
    ("get", _RELEASES + "/{release_id}/assets"),
    ("post", _RELEASES + "/{release_id}/assets"),
    ("get", _RELEASES + "/assets/{asset_id}"),
    ("delete", _RELEASES + "/assets/{asset_id}"),
    ("get", _GIT + "/ref/{ref}"),
    ("get", _GIT + "/tags/{tag_sha}"),
    ("get", _GIT + "/commits/{commit_sha}"),
)
_KEPT = {
    "type", "format", "enum", "required", "properties", "items", "$ref", "anyOf", "oneOf", "allOf",
    "additionalProperties", "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength",
}  # fmt: skip


def make_shapes(description: dict[str, Any], *, version: str, integrity: str) -> dict[str, Any]:
    """Return the extract of a description."""
    maker = _Maker(description)
    operations = [maker.operation(method, path) for method, path in OPERATIONS]
    return {
        "source": {"package": PACKAGE, "version": version, "integrity": integrity, "document": DOCUMENT},
        "operations": operations,
        "schemas": dict(sorted(maker.schemas.items())),
    }


def locked() -> dict[str, str]:
    """Return version and integrity of the pinned package."""
    lock = json.loads((HERE / "package-lock.json").read_bytes())
    found: dict[str, str] = lock["packages"][f"node_modules/{PACKAGE}"]
    return found


def shapes_of(archive: Path) -> bytes:
    """Return the content of `shapes.json`, made from the pinned package; any other one is refused."""
    pin, data = locked(), archive.read_bytes()
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
    if integrity != pin["integrity"]:
        raise SystemExit(f"{archive} is not {PACKAGE} {pin['version']}: its integrity is {integrity}")
    with tarfile.open(fileobj=io.BytesIO(data)) as package:
        document = package.extractfile(f"package/{DOCUMENT}")
        assert document is not None
        description = json.loads(document.read())
    shapes = make_shapes(description, version=pin["version"], integrity=integrity)
    return (json.dumps(shapes, indent=1) + "\n").encode()


class _Maker:
    """Copies what is kept; collects the schemas that are referred to."""

    def __init__(self, description: dict[str, Any]) -> None:
        self._description = description
        self.schemas: dict[str, Any] = {}

    def operation(self, method: str, path: str) -> dict[str, Any]:
        found = self._description["paths"][path][method]
        parameters = [self._resolved(item) for item in found["parameters"]]
        return {
            "id": found["operationId"],
            "method": method.upper(),
            "path": path,
            "parameters": [
                {
                    "name": item["name"],
                    "in": item["in"],
                    "required": item.get("required", False),
                    "schema": self.schema(item["schema"]),
                }
                for item in parameters
            ],
            "body": self._content(found.get("requestBody", {})),
            "answers": {
                status: self._content(self._resolved(answer)) for status, answer in found["responses"].items()
            },
        }

    def schema(self, value: Any) -> Any:
        """Return a JSON schema: OpenAPI 3.0 writes `nullable` where that has the type null."""
        if "$ref" in value:
            name = value["$ref"].rpartition("/")[2]
            if name not in self.schemas:
                self.schemas[name] = None  # a schema may refer to itself
                self.schemas[name] = self.schema(self._description["components"]["schemas"][name])
            return {"$ref": f"#/schemas/{name}"}
        kept = {key: self._part(key, part) for key, part in value.items() if key in _KEPT}
        if value.get("nullable"):
            kept = {"anyOf": [kept, {"type": "null"}]}
        return kept

    def _part(self, key: str, part: Any) -> Any:
        if key == "properties":
            return {name: self.schema(item) for name, item in part.items()}
        if key in ("anyOf", "oneOf", "allOf"):
            return [self.schema(item) for item in part]
        return self.schema(part) if isinstance(part, dict) else part

    def _content(self, holder: dict[str, Any]) -> dict[str, Any]:
        content = holder.get("content", {})
        return {kind: self.schema(item["schema"]) for kind, item in content.items() if "schema" in item}

    def _resolved(self, value: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in value:
            found: Any = self._description
            for key in value["$ref"].removeprefix("#/").split("/"):
                found = found[key]
            value = found
        return value


if __name__ == "__main__":
    SHAPES.write_bytes(shapes_of(Path(sys.argv[1])))
