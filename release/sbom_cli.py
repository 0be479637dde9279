"""The command `sbom`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ci.context import Context


def register(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the parser."""
    parser = subparsers.add_parser(
        "sbom", parents=[common], help="write the bill of materials (CycloneDX JSON) of an artifact"
    )
    parser.add_argument("manifest", type=Path, metavar="MANIFEST", help="<artifact>.MANIFEST.json")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="file to write (default: ARTIFACT.cdx.json beside MANIFEST)"
    )
    parser.set_defaults(command=_sbom)


def _sbom(args: argparse.Namespace, context: Context) -> int:
    from ci.package.inputs import open_input
    from opencoti.files import write_atomic
    from opencoti.hashing import sha256_bytes
    from opencoti.manifest import load_manifest
    from release.sbom import render_sbom

    with open_input(args.manifest) as source:
        manifest = load_manifest(source.file.read(), str(args.manifest))
    data = render_sbom(manifest)
    out = args.out or args.manifest.with_name(f"{manifest.name}.cdx.json")
    write_atomic(out, data)
    context.console.result(str(out), {"sbom": str(out), "sha256": sha256_bytes(data)})
    return 0
