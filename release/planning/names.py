"""File names of a release that no other module owns."""

from __future__ import annotations

from typing import Final

SBOM_SUFFIX: Final = ".cdx.json"
PROVENANCE_SUFFIX: Final = ".intoto.jsonl"
TRUST_FOLDER: Final = "opencoti/trust"
ROOT_PATTERNS: Final = ("root-*.json", "root-*.json.minisig")


def provenance_name(tag: str) -> str:
    """Return the name of the provenance of a release."""
    return tag + PROVENANCE_SUFFIX
