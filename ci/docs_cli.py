"""Command `docs`: write the generated reference pages, or check that they are fresh."""

from __future__ import annotations

import argparse

from ci.context import Context


def register(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the parser."""
    parser = subparsers.add_parser("docs", parents=[common], help="write the generated reference pages anew")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is stale")
    parser.set_defaults(command=run_docs)


def run_docs(args: argparse.Namespace, context: Context) -> int:
    """Write or check every generated page."""
    from ci.docs import pages
    from opencoti.errors import ConfigError
    from opencoti.files import write_atomic

    for path, text in pages(context.layout).items():
        current = path.read_text(encoding="utf-8") if path.is_file() else None
        if current == text:
            continue
        if args.check:
            raise ConfigError("docs-stale", f"{path} is not fresh", hint="run `./noxw -s docs` and commit")
        write_atomic(path, text.encode())
        context.console.info(f"wrote {path.relative_to(context.layout.root)}")
    return 0
