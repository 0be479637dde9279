"""The command `provenance`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from ci.context import Context
from opencoti.errors import UsageError
from release.sign_cli import add_signing_options, signing_key


def register(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the parser."""
    parser = subparsers.add_parser(
        "provenance",
        parents=[common],
        help="sign a statement of where the files of a staged release come from, or check one",
    )
    parser.add_argument("folder", type=Path, nargs="?", metavar="DIR", help="the staged release")
    parser.add_argument("--verify", action="store_true", help="check the statement instead")
    parser.add_argument(
        "--public-key-pem", metavar="KEY", help="print a .pub file or its RW line as PEM, for openssl, cosign"
    )
    parser.add_argument("--pubkey", metavar="KEY", help="with --verify: this key instead of the root")
    parser.add_argument(
        "--allow-development", action="store_true", help="with --pubkey: take a one-time key too"
    )
    add_signing_options(parser)
    parser.set_defaults(command=_provenance)


def _provenance(args: argparse.Namespace, context: Context) -> int:
    from release.provenance.make import write_provenance

    if args.public_key_pem is not None:
        return _print_pem(args, context)
    if args.folder is None:
        raise UsageError("bad-usage", "no folder is named", hint="name the folder of a staged release")
    if args.verify:
        return _verify(args, context)
    key, keys = signing_key(args, context)
    done = write_provenance(args.folder, key=key, keys=keys, environ=os.environ)
    context.console.info(f"public key {key.public.text}")
    context.console.result(
        str(done.path),
        {"provenance": str(done.path), "subjects": done.subject_count, "publicKey": key.public.text},
    )
    return 0


def _verify(args: argparse.Namespace, context: Context) -> int:
    from release.planning.cli import keys_of
    from release.provenance.make import verify_provenance

    done = verify_provenance(args.folder, keys=keys_of(args))
    text = f"{done.path}: signed, and {done.subject_count} files are as it says"
    context.console.result(text, {"provenance": str(done.path), "subjects": done.subject_count})
    return 0


def _print_pem(args: argparse.Namespace, context: Context) -> int:
    from release.keysource import read_public_key
    from release.provenance.make import public_key_pem

    pem = public_key_pem(read_public_key(args.public_key_pem))
    context.console.result(pem.strip(), {"pem": pem})
    return 0
