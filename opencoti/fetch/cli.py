"""The command line of `python -m opencoti.fetch`. Only the standard library is loaded to parse it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from opencoti.commandline import Parser
from opencoti.console import Console
from opencoti.entry import run_command
from opencoti.errors import MissingError, UsageError, VerificationError

if TYPE_CHECKING:
    from opencoti.fetch.settings import Settings
    from opencoti.fetch.source import Request
    from opencoti.fetch.store import Slot

_EPILOG = """\
Without a verb, `get` is meant. The path of the file is the only thing on standard output.
Variables: OPENCOTI_CACHE_DIR, OPENCOTI_MIRROR, OPENCOTI_OFFLINE, OPENCOTI_LLAMAFILE_LOCAL,
OPENCOTI_EMBEDDER_LOCAL, OPENCOTI_TIMEOUT_S, OPENCOTI_TRIES; proxies and SSL_CERT_FILE as usual.
"""


def build_parser() -> Parser:
    """Make the parser of all verbs."""
    common = Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="print results and errors as JSON")
    common.add_argument("--quiet", action="store_true", help="no progress, only results and problems")
    common.add_argument("--traceback", action="store_true", help="show the traceback of an unexpected error")
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
        if name != "list":
            _add_selection(verb)
        if name in ("get", "repair"):
            verb.add_argument("--no-try", action="store_true", help="do not start a fetched engine once")
    return parser


def _add_selection(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--pin", type=Path, metavar="FILE", help="pin file (default: the one shipped with opencoti)"
    )
    verb.add_argument("--url", help="address of a file, instead of a pin; https, file:, or http on loopback")
    verb.add_argument("--sha256", metavar="HEX", help="what the file from --url must hash to")
    verb.add_argument("--name", help="file name for --url (default: the last part of the address)")
    verb.add_argument("--dest", type=Path, metavar="DIR", help="folder (default: one in the cache)")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one verb and exit with its code."""
    given = list(sys.argv[1:] if argv is None else argv)
    console = Console(quiet="--quiet" in given, as_json="--json" in given)

    def command() -> int:
        args = build_parser().parse_args(with_default_verb(given))
        run: Callable[[argparse.Namespace, Console], int] = args.run
        return run(args, console)

    run_command(command, console, show_traceback="--traceback" in given)


def with_default_verb(given: list[str]) -> list[str]:
    """Put `get` in front where the command line names no verb."""
    if given[:1] in (["-h"], ["--help"]) or (given and not given[0].startswith("-")):
        return given
    return ["get", *given]


@dataclass(frozen=True, kw_only=True)
class _Selection:
    """What a verb is about."""

    request: Request
    settings: Settings
    slot: Slot
    named_by: str


def _select(args: argparse.Namespace) -> _Selection:
    from opencoti.fetch.get import slot_for
    from opencoti.fetch.settings import Settings
    from opencoti.fetch.source import request_for_pin, request_for_url
    from opencoti.pins import ArtifactPin

    settings = Settings.from_environ(os.environ)
    if args.url is not None:
        if args.pin is not None or args.sha256 is None:
            raise UsageError("bad-usage", "--url goes with --sha256, and not with --pin")
        named_by = "--url"
        request = request_for_url(args.url, args.sha256, name=args.name)
    elif args.sha256 is not None or args.name is not None:
        raise UsageError("bad-usage", "--sha256 and --name go with --url")
    else:
        pin = ArtifactPin.load_shipped() if args.pin is None else ArtifactPin.load(args.pin)
        named_by = pin.read_from
        request = request_for_pin(pin, settings)
    return _Selection(
        request=request, settings=settings, slot=slot_for(request, settings, args.dest), named_by=named_by
    )


def _get(args: argparse.Namespace, console: Console) -> int:
    from opencoti.fetch.get import fetch

    chosen = _select(args)
    fetched = fetch(chosen.request, chosen.settings, console, dest=args.dest, allow_trial=not args.no_try)
    if fetched.action == "already-there":
        console.info(f"{fetched.path.name}: already there, nothing to do")
    console.result(str(fetched.path), fetched.as_dict())
    return 0


def _verify(args: argparse.Namespace, console: Console) -> int:
    from opencoti.fetch.store import inspect

    chosen = _select(args)
    found = inspect(chosen.slot, read_all=True)
    if found.sha256 is None:
        raise _absent(chosen.slot)
    if found.sha256 != chosen.request.sha256:
        raise VerificationError(
            "hash-mismatch",
            f"{chosen.slot.final} is not the wanted file",
            why=f"expected sha256 {chosen.request.sha256}, found {found.sha256} ({found.size} bytes)",
            hint="`python -m opencoti.fetch repair` with the same words fetches it again",
        )
    data = {"path": str(chosen.slot.final), "sha256": found.sha256, "size": found.size, "is_right": True}
    console.result(str(chosen.slot.final), data)
    return 0


def _repair(args: argparse.Namespace, console: Console) -> int:
    from opencoti.fetch.store import inspect

    chosen = _select(args)
    found = inspect(chosen.slot, read_all=True)
    if found.sha256 not in (None, chosen.request.sha256):
        console.info(f"{chosen.slot.name}: damaged; fetching it again")
    return _get(args, console)


def _path(args: argparse.Namespace, console: Console) -> int:
    from opencoti.fetch.store import inspect

    chosen = _select(args)
    if inspect(chosen.slot).sha256 != chosen.request.sha256:
        raise _absent(chosen.slot)
    console.result(str(chosen.slot.final), {"path": str(chosen.slot.final), "sha256": chosen.request.sha256})
    return 0


def _list(args: argparse.Namespace, console: Console) -> int:
    from opencoti import paths
    from opencoti.fetch.inventory import list_cache

    entries = list_cache(paths.artifacts_folder())
    if not entries and not console.as_json:
        console.info(f"nothing in {paths.artifacts_folder()}")
        return 0
    console.result("\n".join(entry.as_line() for entry in entries), [entry.as_dict() for entry in entries])
    return 0


def _explain(args: argparse.Namespace, console: Console) -> int:
    from opencoti.fetch.inventory import explain

    chosen = _select(args)
    told = explain(chosen.request, chosen.slot, chosen.settings, named_by=chosen.named_by)
    console.result(told.as_text(), told.as_dict())
    return 0


def _absent(slot: Slot) -> MissingError:
    return MissingError(
        "file-absent",
        f"the wanted file is not at {slot.final}",
        hint="`python -m opencoti.fetch get` with the same words fetches it",
    )


_VERBS: dict[str, tuple[Callable[[argparse.Namespace, Console], int], str]] = {
    "get": (_get, "fetch, verify and put in place; print the path"),
    "verify": (_verify, "read the whole file and check its SHA-256"),
    "repair": (_repair, "read the whole file, and fetch it again where it is damaged"),
    "path": (_path, "print the path of the file if it is there"),
    "list": (_list, "list what the cache holds"),
    "explain": (_explain, "say what `get` would do, and why"),
}
