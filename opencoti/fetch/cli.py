"""The command line of `python -m opencoti.fetch`. Only the standard library is loaded to parse it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from opencoti.commandline import Parser, common_options
from opencoti.console import Console
from opencoti.entry import run_command
from opencoti.fetch import verbs
from opencoti.fetch.interrupts import prompt_signals

_EPILOG = """\
Without a verb, `get` is meant. The path of the file is the only thing on standard output.
Variables: OPENCOTI_CACHE_DIR, OPENCOTI_MIRROR, OPENCOTI_OFFLINE, OPENCOTI_LLAMAFILE_LOCAL,
OPENCOTI_EMBEDDER_LOCAL, OPENCOTI_TIMEOUT_S, OPENCOTI_TRIES, OPENCOTI_CONNECTIONS, OPENCOTI_TOKEN;
proxies and SSL_CERT_FILE as usual.
"""


def build_parser() -> Parser:
    """Make the parser of all verbs."""
    common = common_options()
    parser = Parser(
        prog="python -m opencoti.fetch",
        description="Get the opencoti engine, or any file of known SHA-256, onto this machine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True, dest="verb")
    for name, (run, text) in _VERBS.items():
        verb = verbs.add_parser(name, parents=[common], help=text, description=text)
        verb.set_defaults(run=run)
        if name == "gc":
            _add_gc(verb)
        elif name != "list":
            _add_selection(verb)
            _add_release(verb)
        if name in ("get", "repair"):
            _add_transfer(verb)
    return parser


def _add_selection(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--pin", type=Path, metavar="FILE", help="pin file (default: the one shipped with opencoti)"
    )
    verb.add_argument("--url", help="address of a file, instead of a pin; https, file:, or http on loopback")
    verb.add_argument("--sha256", metavar="HEX", help="what the file from --url must hash to")
    verb.add_argument(
        "--manifest", metavar="URL|FILE", help="manifest of the file from --url, with its .chunks beside it"
    )
    verb.add_argument("--name", help="file name for --url (default: the last part of the address)")
    verb.add_argument("--dest", type=Path, metavar="DIR", help="folder (default: one in the cache)")


def _add_release(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("signed releases")
    group.add_argument("--latest", action="store_true", help="the newest release instead of a pin")
    group.add_argument("--tag", help="the release of this tag instead of a pin")
    group.add_argument("--repo", metavar="OWNER/NAME", help="whose release (default: mann1x/opencoti)")
    group.add_argument("--backend", metavar="NAME", help="only an artifact with this backend")
    group.add_argument("--flavor", metavar="NAME", help="only the artifact of this flavor, such as cuda12")
    group.add_argument(
        "--require", choices=("hash", "signature", "attestation"), help="the least proof that will do"
    )
    group.add_argument("--allow-downgrade", action="store_true", help="take a release older than one seen")
    group.add_argument("--allow-expired", action="store_true", help="only warn about an expired index")
    group.add_argument(
        "--allow-weaker", action="store_true", help="take a release with less proof than was seen before"
    )
    group.add_argument(
        "--trust-root", type=Path, metavar="FILE", help="start from this root, which you vouch for"
    )
    group.add_argument(
        "--sigstore-root",
        type=Path,
        metavar="FILE",
        help="trusted_root.json of another Sigstore instance, for attestations",
    )


def _add_transfer(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--no-try", action="store_true", help="do not start a fetched engine once")
    verb.add_argument(
        "--seed-from",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="take from this older file what did not change (may be given several times)",
    )
    verb.add_argument("--connections", type=int, metavar="N", help="ranges asked for at once (default 6)")


def _add_gc(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--keep", type=int, default=2, metavar="N", help="how many of the newest stay (default 2)"
    )
    verb.add_argument(
        "--pin",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="what this pin names stays, as does what the shipped one names (may be given several times)",
    )
    verb.add_argument("--dry-run", action="store_true", help="only say what would be removed")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one verb and exit with its code."""
    given = list(sys.argv[1:] if argv is None else argv)
    console = Console(quiet="--quiet" in given, as_json="--json" in given)

    def command() -> int:
        args = build_parser().parse_args(with_default_verb(given))
        run: Callable[[argparse.Namespace, Console], int] = args.run
        with prompt_signals():
            return run(args, console)

    run_command(command, console, show_traceback="--traceback" in given)


def with_default_verb(given: list[str]) -> list[str]:
    """Put `get` in front where the command line names no verb."""
    if given[:1] in (["-h"], ["--help"]) or (given and not given[0].startswith("-")):
        return given
    return ["get", *given]


_VERBS: dict[str, tuple[Callable[[argparse.Namespace, Console], int], str]] = {
    "get": (verbs.get, "fetch, verify and put in place; print the path"),
    "verify": (verbs.verify, "read the whole file and check its SHA-256"),
    "repair": (verbs.repair, "read the whole file, and fetch again what is damaged"),
    "path": (verbs.path, "print the path of the file if it is there"),
    "list": (verbs.list_, "list what the cache holds"),
    "gc": (verbs.gc, "remove old files of the cache; pinned ones and the newest stay"),
    "explain": (verbs.explain, "say what `get` would do, and why"),
}
