"""The command line of `python -m opencoti.models`. Only the standard library is loaded to parse it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from opencoti.commandline import Parser, common_options
from opencoti.console import Console
from opencoti.entry import run_command

if TYPE_CHECKING:
    from opencoti.models.choice import Recommendation, Wish
    from opencoti.models.kvcache import CacheWish

_GIB: Final = 1 << 30
Handler = Callable[[argparse.Namespace, Console], int]


def build_parser() -> Parser:
    """Make the parser of all verbs."""
    common = common_options()
    parser = Parser(
        prog="python -m opencoti.models", description="Which model suits this machine, and its file."
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True, dest="verb")
    for name, (run, text) in _VERBS.items():
        verb = verbs.add_parser(name, parents=[common], help=text, description=text)
        verb.set_defaults(run=run)
        if name != "inspect":
            verb.add_argument("--table", type=Path, metavar="FILE", help="another table of quants")
        _OPTIONS[name](verb)
    return parser


def _add_cache(verb: argparse.ArgumentParser) -> None:
    from opencoti.models.words import CACHE_TYPES, DEFAULT_CONTEXT

    group = verb.add_argument_group("context")
    group.add_argument(
        "--context",
        type=int,
        default=DEFAULT_CONTEXT,
        metavar="N",
        help=f"tokens of all conversations together (default {DEFAULT_CONTEXT})",
    )
    group.add_argument("--slots", type=int, default=1, metavar="N", help="conversations at once (default 1)")
    group.add_argument("--cache-type-k", default="f16", choices=CACHE_TYPES, help="type of the key cache")
    group.add_argument("--cache-type-v", default="f16", choices=CACHE_TYPES, help="type of the value cache")
    group.add_argument(
        "--flash-attn",
        default="auto",
        choices=("auto", "on", "off"),
        help="`auto` leaves it to the engine; `on` insists, also where heads are too wide for it",
    )


def _add_choice(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--quant", default="", metavar="NAME", help="this one, whatever is recommended")
    verb.add_argument("--family", choices=("plain", "cd"), help="recommend among this family only")
    verb.add_argument("--vram", type=float, metavar="GIB", help="memory of the GPU (default: what is found)")
    _add_cache(verb)


def _add_download(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("quant", nargs="?", metavar="QUANT", help="default: the one that is recommended")
    verb.add_argument("--url", help="address of the file, instead of the table's")
    verb.add_argument("--sha256", metavar="HEX", help="what it must hash to, where the table does not say")
    verb.add_argument("--name", help="file name (default: the last part of the address)")
    verb.add_argument("--dest", type=Path, metavar="DIR", help="folder (default: one in the cache)")
    verb.add_argument(
        "--trust-host", action="store_true", help="believe the SHA-256 that the host of the file announces"
    )


def _add_inspect(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("file", type=Path, metavar="FILE", help="a GGUF file, whatever its name")
    _add_cache(verb)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one verb and exit with its code."""
    given = list(sys.argv[1:] if argv is None else argv)
    console = Console(quiet="--quiet" in given, as_json="--json" in given)

    def command() -> int:
        args = build_parser().parse_args(given)
        run: Handler = args.run
        return run(args, console)

    run_command(command, console, show_traceback="--traceback" in given)


def _list(args: argparse.Namespace, console: Console) -> int:
    from opencoti.models.table import load_table

    table = load_table(args.table)
    rows = [f"{'quant':<14}{'size':>9}  {'HE+':>7}  when to pick"]
    for quant in table.quants:
        score = f"{quant.humaneval_plus:.2f} %" if quant.humaneval_plus is not None else "-"
        is_default = "  (default)" if quant.name == table.default_quant.name else ""
        rows.append(
            f"{quant.name:<14}{quant.size_bytes / 1e9:>6.2f} GB  {score:>7}  {quant.note}{is_default}"
        )
    data = table.model_dump(mode="json", by_alias=True)
    console.result("\n".join([f"{table.publisher}/{table.model}", *rows]), data)
    return 0


def _recommend(args: argparse.Namespace, console: Console) -> int:
    found = recommendation(args, console)
    lines = [found.reason, *(f"note: {text}" for text in found.warnings)]
    lines += [
        f"  {'*' if c.quant.name == found.taken.quant.name else ' '} {c.quant.name:<14}"
        f"{c.needed_bytes / _GIB:>6.1f} GiB  {c.reason}"
        for c in found.candidates
    ]
    fitting = f"{found.largest_context} tokens" if found.largest_context else "none, whole"
    lines.append(f"largest context that fits: {fitting}")
    lines.append(f"engine: {' '.join(found.engine_arguments())}")
    console.result("\n".join(lines), found.as_dict())
    return 0


def recommendation(args: argparse.Namespace, console: Console) -> Recommendation:
    """Return the recommendation for the words of a command line and the hardware at hand."""
    from dataclasses import replace

    from opencoti.hardware import detect
    from opencoti.models.choice import recommend
    from opencoti.models.table import load_table
    from opencoti.models.words import vram_bytes

    wish = _wish(args)
    if args.vram is not None:
        return recommend(load_table(args.table), vram_bytes(args.vram), wish)
    hardware = detect()
    for gpu in hardware.usable_gpus:
        console.info(f"GPU: {gpu.name}, {gpu.total_bytes / _GIB:.1f} GiB")
    for note in hardware.notes if not hardware.usable_gpus else ():
        console.info(note)
    wish = replace(wish, free_bytes=hardware.free_vram_bytes, ram_bytes=hardware.memory.total_bytes or None)
    return recommend(load_table(args.table), hardware.vram_bytes, wish)


def _wish(args: argparse.Namespace) -> Wish:
    from opencoti.models.choice import Wish

    families = (args.family,) if args.family else ("plain", "cd")
    return Wish(cache=cache_wish(args), quant=args.quant, families=families)


def cache_wish(args: argparse.Namespace) -> CacheWish:
    """Return the cache that the words of a command line ask for."""
    from opencoti.models.kvcache import CacheWish

    return CacheWish(
        context=args.context,
        slots=args.slots,
        key_type=args.cache_type_k,
        value_type=args.cache_type_v,
        flash_attention=args.flash_attn,
    )


def _download(args: argparse.Namespace, console: Console) -> int:
    import os

    from opencoti.errors import UsageError
    from opencoti.fetch.interrupts import prompt_signals
    from opencoti.fetch.settings import Settings
    from opencoti.models.download import Source, download
    from opencoti.models.table import load_table

    if args.quant is not None and args.url is not None:
        raise UsageError("bad-usage", "either QUANT or --url says what is wanted")
    if args.url is not None:
        source = Source(url=args.url, sha256=args.sha256, name=args.name)
    else:
        table = load_table(args.table)
        quant = table.named(args.quant) if args.quant else table.named(_recommended(args, console))
        source = Source(url=quant.url, sha256=args.sha256 or quant.sha256, name=args.name)
    with prompt_signals():
        done = download(
            source,
            Settings.from_environ(os.environ),
            console,
            dest=args.dest,
            trust_host=args.trust_host,
        )
    console.result(str(done.path), done.fetched.as_dict())
    return 0


def _recommended(args: argparse.Namespace, console: Console) -> str:
    words = ["recommend", *(("--table", str(args.table)) if args.table else ())]
    found = recommendation(build_parser().parse_args(words), console)
    console.info(found.reason)
    return found.taken.quant.name


def _inspect(args: argparse.Namespace, console: Console) -> int:
    from opencoti.models.gguf import read_header
    from opencoti.models.report import inspect_text, inspected

    data = inspected(read_header(args.file), args.file, cache_wish(args))
    console.result(inspect_text(data), data)
    return 0


_VERBS: Final[dict[str, tuple[Handler, str]]] = {
    "list": (_list, "print the table of quants"),
    "recommend": (_recommend, "say which quant suits this machine, and why"),
    "download": (_download, "fetch and verify a model's file; print its path"),
    "inspect": (_inspect, "read a model file's header; say what memory it needs"),
}
_OPTIONS: Final[dict[str, Callable[[Any], None]]] = {
    "list": lambda verb: None,
    "recommend": _add_choice,
    "download": _add_download,
    "inspect": _add_inspect,
}
