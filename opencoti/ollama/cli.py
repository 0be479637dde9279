"""The command line of `python -m opencoti.ollama`. Only the standard library is loaded to parse it."""

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
    from opencoti.ollama.store import Entry, Store

Handler = Callable[[argparse.Namespace, Console], int]


def build_parser() -> Parser:
    """Make the parser of all verbs."""
    common = common_options()
    parser = Parser(
        prog="python -m opencoti.ollama",
        description="Use a model that Ollama has downloaded, where it lies.",
        epilog="`import` prints the path of the model's file, for `python -m opencoti.launch --model`.",
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True, dest="verb")
    for name, (run, text) in _VERBS.items():
        verb = verbs.add_parser(name, parents=[common], help=text, description=text)
        verb.set_defaults(run=run)
        verb.add_argument("--store", type=Path, metavar="DIR", help="this store (default: OLLAMA_MODELS, …)")
    importing = verbs.choices["import"]
    importing.add_argument("name", metavar="NAME", help="as Ollama writes it: [host/][namespace/]model[:tag]")
    importing.add_argument("--fast", action="store_true", help="do not compute SHA-256 of large files")
    return parser


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
    from opencoti.ollama.places import known_stores
    from opencoti.ollama.store import open_stores

    stores = open_stores(known_stores(explicit=args.store))
    rows = [_row(store, entry) for store in stores for entry in store.entries()]
    lines = [f"{row['name']:<40} {row['size']:>10}  {row['state']}" for row in rows]
    if not lines and not console.as_json:
        console.info(f"no model in {', '.join(str(store.root) for store in stores)}")
        return 0
    console.result("\n".join(lines), rows)
    return 0


def _row(store: Store, entry: Entry) -> dict[str, Any]:
    """Describe a model by its manifest and the sizes of its files; nothing is hashed."""
    from opencoti.errors import OpencotiError

    row: dict[str, Any] = {
        "name": str(entry.reference),
        "full_name": entry.reference.full,
        "store": str(store.root),
        "size_bytes": None,
        "size": "-",
    }
    try:
        manifest = store.manifest(entry)
        row |= {"size_bytes": manifest.size_bytes, "size": f"{manifest.size_bytes / 1e9:.2f} GB"}
        models = manifest.of_kind("model")
        if not models:
            return row | {"state": "no GGUF model"}
        is_there = all(store.blob(layer) is not None for layer in models)
        unfinished = any(store.is_partial(layer) for layer in models)
        return row | {
            "state": "here" if is_there else ("pull not finished" if unfinished else "its file is missing")
        }
    except OpencotiError as error:
        return row | {"state": error.why or error.what}


def _import(args: argparse.Namespace, console: Console) -> int:
    from opencoti.ollama.importing import import_model
    from opencoti.ollama.places import known_stores

    done = import_model(args.name, known_stores(explicit=args.store), console, is_fast=args.fast)
    if args.fast:
        console.warn(f"{done.reference}: its SHA-256 was not computed")
    words = done.engine_arguments()
    if words:
        console.info(f"engine: {' '.join(words)}")
    console.result(str(done.model.path), done.as_dict())
    return 0


_VERBS: Final[dict[str, tuple[Handler, str]]] = {
    "list": (_list, "list the models that Ollama has"),
    "import": (_import, "check a model, and print the path of its file"),
}
