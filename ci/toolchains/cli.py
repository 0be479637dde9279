"""`python -m ci images`: look at, build, prove and lock toolchain images."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ci.context import Context

if TYPE_CHECKING:
    from ci.engines.client import EngineClient
    from ci.toolchains.recipe import Recipe


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
        "--verify", action="store_true", help="check the locks, and run every tool of the image once"
    )
    action.add_argument("--lock", action="store_true", help="write wheels.lock and debs.lock anew")
    parser.add_argument("--locked", action="store_true", help="accept nothing but what the locks name")
    parser.set_defaults(command=run_images)


def run_images(args: argparse.Namespace, context: Context) -> int:
    """Run the command `images`."""
    from ci.toolchains.recipe import Recipe

    folder = context.layout.containers
    names = args.names or sorted(path.parent.name for path in folder.glob("*/recipe.toml"))
    recipes = [Recipe.load(folder / name, needs_lock=not args.lock) for name in names]
    if args.lock:
        return _lock(recipes, context)
    return _show(recipes, args, context)


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
        rows = [_handle(recipe, args, context, client) for recipe in recipes]
    finally:
        client.close()
    lines = [
        f"{row['tag']:<44} {row['state']:<8} {row['size_mb']:>6} MB  debs: {row['debs']}" for row in rows
    ]
    context.console.result("\n".join(lines), {"images": rows})
    return 0


def _handle(
    recipe: Recipe, args: argparse.Namespace, context: Context, client: EngineClient
) -> dict[str, object]:
    from ci.engines.image import ToolchainImage
    from opencoti.errors import MissingError

    image = ToolchainImage(recipe, context.layout, is_strict=args.locked)
    record = image.ensure(client, context.console) if args.build else image.find(client)
    if args.verify:
        if record is None:
            raise MissingError(
                "image-missing",
                f"there is no image {image.tag}" + (" made from the locks alone" if args.locked else ""),
                hint=f"`python -m ci images {recipe.name} --build`",
            )
        image.prove(client, context.console)
    return {
        "name": recipe.name,
        "tag": image.tag,
        "state": "proved" if args.verify else "present" if record else "absent",
        "recipe": image.recipe_id,
        "image_id": record.id if record else None,
        "size_mb": record.size_bytes // 1_000_000 if record else 0,
        "debs": record.debs if record else "-",
    }
