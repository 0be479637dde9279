"""The command line of `python -m opencoti.setup`. Only the standard library is loaded to parse it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from opencoti.commandline import Parser, common_options
from opencoti.console import Console
from opencoti.entry import run_command

if TYPE_CHECKING:
    from opencoti.setup.asking import Asker
    from opencoti.setup.flow import SetupWish


def build_parser() -> Parser:
    """Make the parser."""
    from opencoti.models.words import DEFAULT_CONTEXT

    parser = Parser(
        prog="python -m opencoti.setup",
        parents=[common_options()],
        description="First run: choose a model for this machine, get it, test it, and write that down.",
        epilog="Run it again after an interruption: it goes on where it stopped.",
    )
    add = parser.add_argument
    add("--yes", action="store_true", help="ask nothing, take what is proposed")
    add("--dry-run", action="store_true", help="only say what would be done")
    add("--again", action="store_true", help="begin anew although there is a configuration")
    add("--keep-running", action="store_true", help="leave the engine running at the end")
    model = parser.add_argument_group("model").add_mutually_exclusive_group()
    model.add_argument("--model", type=Path, metavar="FILE", help="this GGUF file")
    model.add_argument("--ollama", metavar="NAME", help="this model of Ollama's")
    model.add_argument("--quant", metavar="NAME", help="download this quant")
    add("--context", type=int, default=DEFAULT_CONTEXT, metavar="N", help="tokens (default %(default)s)")
    add("--vram", type=float, metavar="GIB", help="memory of the GPU (default: what is found)")
    add("--gpu", default="auto", metavar="KIND", help="as of the launcher: auto, disable, nvidia, …")
    add("--binary", type=Path, metavar="FILE", help="engine, instead of looking for one")
    add("--store", type=Path, metavar="DIR", help="Ollama's store, instead of looking for it")
    add("--table", type=Path, metavar="FILE", help="another table of quants")
    add("--url", help="address of the file to download, instead of the table's")
    add("--sha256", metavar="HEX", help="what the download must hash to, where the table does not say")
    add("--trust-host", action="store_true", help="believe the SHA-256 that the host of the file announces")
    return parser


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Set up and exit."""
    given = list(sys.argv[1:] if argv is None else argv)
    console = Console(quiet="--quiet" in given, as_json="--json" in given)

    def command() -> int:
        args = build_parser().parse_args(given)
        from opencoti.setup.flow import set_up

        done = set_up(_wish(args), console, _asker(args))
        console.result(done.as_text(), done.as_dict())
        return 0

    run_command(command, console, show_traceback="--traceback" in given)


def _wish(args: argparse.Namespace) -> SetupWish:
    from opencoti.models.choice import Wish
    from opencoti.models.kvcache import CacheWish
    from opencoti.models.words import vram_bytes
    from opencoti.ollama.places import known_stores
    from opencoti.setup.flow import SetupWish
    from opencoti.setup.sources import DownloadWish

    return SetupWish(
        source=_source(args),
        wish=Wish(cache=CacheWish(context=args.context), quant=args.quant or ""),
        vram_bytes=None if args.vram is None else vram_bytes(args.vram),
        table=args.table,
        stores=known_stores(explicit=args.store),
        download=DownloadWish(url=args.url, sha256=args.sha256, trust_host=args.trust_host),
        binary=args.binary,
        gpu=args.gpu,
        is_dry_run=args.dry_run,
        is_again=args.again,
        keeps_running=args.keep_running,
    )


def _source(args: argparse.Namespace) -> str:
    from opencoti.setup import sources

    if args.model is not None:
        return f"{sources.FILE}{args.model}"
    if args.ollama is not None:
        return f"{sources.OLLAMA}{args.ollama}"
    return f"{sources.QUANT}{args.quant}" if args.quant is not None else ""


def _asker(args: argparse.Namespace) -> Asker:
    from opencoti.setup.asking import FirstOption, NoTerminal, Terminal

    if args.yes or args.dry_run or _source(args):
        return FirstOption()
    if not (sys.stdin and sys.stdin.isatty()):
        return NoTerminal()
    return Terminal(sys.stderr)
