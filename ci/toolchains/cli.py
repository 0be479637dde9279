"""`python -m ci images`: look at, build, prove and lock toolchain images."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ci.context import Context
from opencoti.errors import MissingError, UsageError

if TYPE_CHECKING:
    from ci.engines.client import EngineClient
    from ci.engines.image import ImageRecord, ToolchainImage
    from ci.toolchains.recipe import Recipe

# What one image lacks and the next one may have.
_LEFT_OUT: Final = frozenset({"archive-unreachable", "image-missing", "image-not-built", "escrow-missing"})


def register(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `images`."""
    parser = subparsers.add_parser(
        "images",
        parents=[common],
        help="toolchain images: list, build, verify, lock",
        description="Without an option: list the images and whether the container engine has them.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="toolchains (default: all)")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--build", action="store_true", help="build what is missing")
    action.add_argument(
        "--verify",
        action="store_true",
        help="run every tool of the image once and compile the probe of its backends for every device",
    )
    action.add_argument("--lock", action="store_true", help="write wheels.lock and debs.lock anew")
    action.add_argument(
        "--export",
        type=Path,
        metavar="DIR",
        help="write each image as a file, with its description beside it",
    )
    action.add_argument(
        "--import", dest="import_from", type=Path, metavar="DIR", help="load images that --export wrote"
    )
    parser.add_argument("--locked", action="store_true", help="accept nothing but what the locks name")
    parser.set_defaults(command=run_images)


def run_images(args: argparse.Namespace, context: Context) -> int:
    """Run the command `images`.

    Raises:
        UsageError: `image-unknown`.
    """
    from ci.toolchains.recipe import Recipe, recipe_names

    folder = context.layout.containers
    known = recipe_names(folder)
    for name in args.names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"toolchains are {', '.join(known)}"
            raise UsageError("image-unknown", f"there is no toolchain {name[:80]!r}", hint=hint)
    names = args.names or known
    recipes = [Recipe.load(folder / name, needs_lock=not args.lock) for name in names]
    if args.lock:
        return _lock(recipes, context)
    return _show([recipe for recipe in recipes if not recipe.is_abstract], args, context)


def _lock(recipes: list[Recipe], context: Context) -> int:
    from ci.toolchains.locking import write_locks

    paths = [str(path) for recipe in recipes for path in write_locks(recipe, context.layout, context.console)]
    context.console.result("\n".join(paths), {"written": paths})
    return 0


def _show(recipes: list[Recipe], args: argparse.Namespace, context: Context) -> int:
    from ci.engines.client import EngineClient
    from ci.engines.endpoint import find_endpoint, probe, uses_tls

    client = EngineClient(probe(find_endpoint(), with_tls=uses_tls()))
    try:
        rows, failures = _handle_all(recipes, args, context, client)
    finally:
        client.close()
    lines = [
        f"{row['tag']:<44} {row['state']:<8} {row['size_mb']:>6} MB  debs: {row['debs']}" for row in rows
    ]
    if rows:
        context.console.result("\n".join(lines), {"images": rows})
    if failures and (args.build or not rows):
        raise failures[0]
    return 0


def _handle_all(
    recipes: list[Recipe], args: argparse.Namespace, context: Context, client: EngineClient
) -> tuple[list[dict[str, object]], list[MissingError]]:
    """Handle every image; where none was named, one that cannot be had here does not keep the others back."""
    rows: list[dict[str, object]] = []
    failures: list[MissingError] = []
    for recipe in recipes:
        try:
            rows.append(_handle(recipe, args, context, client))
        except MissingError as error:
            if args.names or error.error_id not in _LEFT_OUT:
                raise
            context.console.warn(f"{recipe.name} is left out: {error}")
            failures.append(error)
    return rows, failures


def _handle(
    recipe: Recipe, args: argparse.Namespace, context: Context, client: EngineClient
) -> dict[str, object]:
    from ci.engines.image import ToolchainImage

    image = ToolchainImage(recipe, context.layout, is_strict=args.locked)
    record, state = _act(image, args, context, client)
    return {
        "name": recipe.name,
        "tag": image.tag,
        "state": state,
        "recipe": image.recipe_id,
        "image_id": record.id if record else None,
        "size_mb": record.size_bytes // 1_000_000 if record else 0,
        "debs": record.debs if record else "-",
    }


def _act(
    image: ToolchainImage, args: argparse.Namespace, context: Context, client: EngineClient
) -> tuple[ImageRecord | None, str]:
    """Do what was asked for with one image; return what the daemon has afterwards, and the word for it."""
    from ci.engines.escrow import export_image, import_image

    if args.build:
        return image.ensure(client, context.console), "present"
    if args.import_from:
        return import_image(client, image, args.import_from, context.console), "proved"
    if args.export:
        export_image(client, image, args.export, context.console)
        return image.find(client), "exported"
    record = image.find(client)
    if not args.verify:
        return record, "present" if record else "absent"
    if record is None:
        raise MissingError(
            "image-missing",
            f"there is no image {image.tag}" + (" made from the locks alone" if args.locked else ""),
            hint=f"`python -m ci images {image.name} --build`",
        )
    image.prove(client, context.console)
    return record, "proved"
