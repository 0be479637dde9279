"""The commands `root new|add-key|retire|sign|check`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ci.context import Context
from opencoti.errors import UsageError, storage_error


def register(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the parsers."""
    parser = subparsers.add_parser("root", help="make, change, sign and check the trust root")
    verbs = parser.add_subparsers(metavar="VERB", required=True, dest="verb")
    for name, (run, text) in _VERBS.items():
        verb = verbs.add_parser(name, parents=[common], help=text)
        verb.add_argument(
            "--dir", type=Path, metavar="DIR", help="folder of the roots (default: opencoti/trust)"
        )
        if name in ("new", "add-key", "retire"):
            verb.add_argument("--threshold", type=int, metavar="N", help="root keys that must sign")
        if name in ("new", "add-key"):
            verb.add_argument(
                "--root-key", action="append", default=[], metavar="KEY", help="public root key"
            )
            verb.add_argument(
                "--signing-key", action="append", default=[], metavar="KEY", help="public signing key"
            )
        _add_own_options(name, verb)
        verb.set_defaults(command=run)


def _add_own_options(name: str, verb: argparse.ArgumentParser) -> None:
    if name == "new":
        verb.add_argument("--product", default="opencoti", help="product (default opencoti)")
    elif name == "retire":
        verb.add_argument("key_id", metavar="KEYID", help="16 hex digits, as `root check` prints them")
        verb.add_argument(
            "--last-sequence", type=int, metavar="N", help="last release that counts; 0 for a stolen key"
        )
    elif name == "sign":
        verb.add_argument("--key", type=Path, metavar="FILE", help="secret root key")
        verb.add_argument(
            "--signature", type=Path, metavar="FILE", help="a signature made elsewhere, to be added"
        )


def _new(args: argparse.Namespace, context: Context) -> int:
    from release.keysource import read_public_key
    from release.roots import new_root

    path = new_root(
        _folder(args, context),
        product=args.product,
        threshold=args.threshold if args.threshold is not None else max(1, len(args.root_key)),
        root_keys=[read_public_key(text) for text in args.root_key],
        signing_keys=[read_public_key(text) for text in args.signing_key],
    )
    return _tell_draft(path, context)


def _add_key(args: argparse.Namespace, context: Context) -> int:
    from release.keysource import read_public_key
    from release.roots import add_keys, change_root

    root_keys = [read_public_key(text) for text in args.root_key]
    signing_keys = [read_public_key(text) for text in args.signing_key]
    if not root_keys and not signing_keys:
        raise UsageError("bad-usage", "no key is named", hint="use --signing-key KEY or --root-key KEY")
    path = change_root(
        _folder(args, context),
        lambda root: add_keys(root, root_keys=root_keys, signing_keys=signing_keys) | _threshold(args),
    )
    return _tell_draft(path, context)


def _retire(args: argparse.Namespace, context: Context) -> int:
    from release.roots import change_root, retire_key

    path = change_root(
        _folder(args, context),
        lambda root: retire_key(root, args.key_id, args.last_sequence) | _threshold(args),
    )
    return _tell_draft(path, context)


def _sign(args: argparse.Namespace, context: Context) -> int:
    from release.keysource import Surroundings, find_secret_key
    from release.roots import sign_root

    if args.signature is not None and args.key is not None:
        raise UsageError("bad-usage", "--key and --signature exclude each other")
    folder = _folder(args, context)
    if args.signature is not None:
        path = sign_root(folder, made=_read(args.signature))
    else:
        key = find_secret_key(args.key, context.console, Surroundings.real())
        path = sign_root(folder, key=key)
    context.console.result(str(path), {"signatures": str(path)})
    return 0


def _check(args: argparse.Namespace, context: Context) -> int:
    from release.roots import check_roots

    root = check_roots(_folder(args, context))
    if root is None:
        context.console.warn("there is no root with keys yet: clients verify nothing (`root new` makes one)")
        context.console.result("no keys", {"version": 0, "rootKeys": [], "signingKeys": []})
        return 0
    lines = [
        f"root {root.version} of {root.product}, {root.threshold} of {len(root.root_keys)} root keys sign"
    ]
    lines += [f"  root key     {key.name}" for key in root.root_keys]
    lines += [
        f"  signing key  {key.public.name}"
        + (f"  retired after sequence {key.last_sequence}" if key.is_retired else "")
        for key in root.keys
    ]
    data = {
        "version": root.version,
        "threshold": root.threshold,
        "rootKeys": [key.name for key in root.root_keys],
        "signingKeys": [{"id": key.public.name, "lastSequence": key.last_sequence} for key in root.keys],
    }
    context.console.result("\n".join(lines), data)
    return 0


def _folder(args: argparse.Namespace, context: Context) -> Path:
    given: Path | None = args.dir
    return given if given is not None else context.layout.root / "opencoti" / "trust"


def _threshold(args: argparse.Namespace) -> dict[str, int]:
    return {} if args.threshold is None else {"threshold": args.threshold}


def _tell_draft(path: Path, context: Context) -> int:
    context.console.info("a draft until enough root keys have signed it: `python -m release root sign`")
    context.console.result(str(path), {"root": str(path)})
    return 0


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise storage_error(exc, f"cannot read {path}") from exc


_VERBS = {
    "new": (_new, "write the draft of the first root"),
    "add-key": (_add_key, "add keys, in a draft of the next root"),
    "retire": (_retire, "retire a signing key as of a release, or remove a root key"),
    "sign": (_sign, "add a signature to the newest root"),
    "check": (_check, "walk all roots and show the keys of the newest"),
}
