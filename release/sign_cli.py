"""The commands `sign`, `keygen` and `verify`, and the options about keys that other commands share."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.context import Context
from opencoti.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from opencoti.trust.keys import TrustedKeys
    from release.keys import SecretKey
    from release.sign import Facts


def register(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the parsers."""
    sign = subparsers.add_parser(
        "sign", parents=[common], help="sign an index, manifests or other files of a release"
    )
    sign.add_argument("files", nargs="+", type=Path, metavar="FILE")
    add_signing_options(sign)
    sign.add_argument("--sequence", metavar="N", help="must agree with the index, if one is signed")
    sign.add_argument("--expires", metavar="TIME", help="YYYY-MM-DDTHH:MM:SSZ; must agree with the index")
    sign.set_defaults(command=_sign)

    keygen = subparsers.add_parser("keygen", parents=[common], help="make a key pair in minisign's format")
    keygen.add_argument(
        "--out", type=Path, required=True, metavar="PREFIX", help="writes PREFIX.key, PREFIX.pub"
    )
    keygen.add_argument("--no-password", action="store_true", help="do not encrypt the secret key")
    keygen.set_defaults(command=_keygen)

    verify = subparsers.add_parser("verify", parents=[common], help="check the signature beside a file")
    verify.add_argument("file", type=Path, metavar="FILE")
    _add_root_option(verify)
    verify.add_argument("--pubkey", metavar="KEY", help="a .pub file or its RW line, instead of the root")
    verify.add_argument(
        "--allow-development", action="store_true", help="with --pubkey: take a one-time key too"
    )
    verify.add_argument("--repo", metavar="OWNER/NAME", help="must be signed for this repository")
    verify.add_argument("--tag", help="must be signed for this tag")
    verify.set_defaults(command=_verify)


def add_signing_options(parser: argparse.ArgumentParser) -> None:
    """Add what says which key signs and what the comments say."""
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="minisign secret key (default: OPENCOTI_SIGNING_KEY)"
    )
    parser.add_argument(
        "--ephemeral", action="store_true", help="sign with a one-time key, which clients refuse"
    )
    _add_root_option(parser)
    parser.add_argument(
        "--unlisted", action="store_true", help="sign although clients do not know the key (they will refuse)"
    )
    parser.add_argument("--product", help="product (default: from the index, else opencoti)")
    parser.add_argument("--repo", metavar="OWNER/NAME", help="repository (default: from the index beside)")
    parser.add_argument("--tag", help="tag of the release (default: from the index beside)")
    parser.add_argument("--version", help="versionString (default: from the manifest or the index beside)")
    parser.add_argument(
        "--comment", action="append", default=[], metavar="x-KEY=VALUE", help="a note in the signed comment"
    )


def _add_root_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root", type=Path, metavar="DIR", help="folder of trust roots (default: the root that ships)"
    )


def signing_key(args: argparse.Namespace, context: Context) -> tuple[SecretKey, TrustedKeys]:
    """Return the key that the options of `add_signing_options` name, and the list that clients have.

    Raises:
        UsageError: `bad-usage`.
        ConfigError: as `find_secret_key`.
        VerificationError, StorageError: as `trusted_keys`.
    """
    from release.keys import SecretKey
    from release.keysource import Surroundings, find_secret_key

    if args.ephemeral and (args.key is not None or args.unlisted):
        raise UsageError("bad-usage", "--ephemeral makes its own key", hint="leave out --key and --unlisted")
    if args.ephemeral:
        key = SecretKey.generate(is_development=True)
        context.console.warn(
            "signed with a one-time key: clients refuse these files unless told its public key"
        )
    else:
        key = find_secret_key(args.key, context.console, Surroundings.real())
    return key, _keys_of_clients(args, context, key)


def sign_with_options(args: argparse.Namespace, context: Context, files: list[Path]) -> int:
    """Sign files as the options of `add_signing_options` say, and print what was written."""
    from release.sign import sign_files

    key, keys = signing_key(args, context)
    signed = sign_files(files, key=key, facts=_facts(args), keys=keys, now=datetime.now(UTC))
    context.console.info(f"public key {key.public.text}")
    data = {
        "publicKey": key.public.text,
        "signatures": [{"file": str(s.signature_path), "comment": s.comment.render()} for s in signed],
    }
    context.console.result("\n".join(str(item.signature_path) for item in signed), data)
    return 0


def trusted_keys(root: Path | None) -> TrustedKeys:
    """Return the root that ships, or the newest of a folder after walking it."""
    from opencoti.trust.shipped import shipped_root
    from release.roots import check_roots

    if root is None:
        return shipped_root()
    found = check_roots(root)
    if found is None:
        raise ConfigError(
            "root-missing", f"{root} has no root", hint="make one with `python -m release root new`"
        )
    return found


def _sign(args: argparse.Namespace, context: Context) -> int:
    return sign_with_options(args, context, args.files)


def _keys_of_clients(args: argparse.Namespace, context: Context, key: SecretKey) -> TrustedKeys:
    from opencoti.trust.keys import only_key

    if args.unlisted:
        context.console.warn(f"key {key.public.name} is not checked against the trust root that ships")
    if args.unlisted or args.ephemeral:
        return only_key(key.public, allow_development=args.ephemeral)
    return trusted_keys(args.root)


def _facts(args: argparse.Namespace) -> Facts:
    from release.sign import Facts

    notes = []
    for note in args.comment:
        name, is_pair, value = note.partition("=")
        if not is_pair or not name.startswith("x-"):
            raise UsageError("bad-usage", f"--comment {note[:60]!r}", hint="a note has the form x-KEY=VALUE")
        notes.append((name, value))
    return Facts(
        product=args.product,
        repo=args.repo,
        tag=args.tag,
        version=args.version,
        sequence=getattr(args, "sequence", None),
        expires=getattr(args, "expires", None),
        notes=tuple(notes),
    )


def _keygen(args: argparse.Namespace, context: Context) -> int:
    from release.keys import SecretKey
    from release.keysource import Surroundings, write_key_pair

    password = None if args.no_password else Surroundings.real().new_password()
    key = SecretKey.generate()
    secret, public = write_key_pair(args.out, key, password)
    context.console.info(f"secret key {secret}: keep it off this machine's backups; public key {public}")
    context.console.result(
        key.public.text, {"publicKey": key.public.text, "secret": str(secret), "public": str(public)}
    )
    return 0


def _verify(args: argparse.Namespace, context: Context) -> int:
    from opencoti.trust.keys import only_key
    from release.keysource import read_public_key
    from release.verify import verify_file

    if args.pubkey is not None and args.root is not None:
        raise UsageError("bad-usage", "--pubkey and --root exclude each other")
    if args.pubkey is not None:
        keys = only_key(read_public_key(args.pubkey), allow_development=args.allow_development)
    else:
        keys = trusted_keys(args.root)
    result = verify_file(args.file, keys=keys, repo=args.repo, tag=args.tag, now=datetime.now(UTC))
    for warning in result.warnings:
        context.console.warn(warning)
    data = {
        "file": str(args.file),
        "key": result.key.name,
        "comment": result.comment,
        "warnings": list(result.warnings),
    }
    context.console.result(f"{args.file}: signed by {result.key.name}: {result.comment}", data)
    return 0
