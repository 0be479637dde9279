"""`python -m ci.package.schema`: write `docs/reference/manifest.schema.json` from the model."""

from __future__ import annotations

from ci.paths import Layout
from opencoti.files import write_atomic
from opencoti.manifest import json_schema


def main() -> None:
    """Write the file into this checkout."""
    write_atomic(Layout.find().root / "docs" / "reference" / "manifest.schema.json", json_schema())


if __name__ == "__main__":
    main()
