"""Toolchain images: bytes to download, time of a build with the downloads there, and size, per image.

The proof is part of a build. What is measured is a build under the image's own name: the image stays.
"""

from __future__ import annotations

from functools import partial

from ci.context import Context
from ci.engines.client import EngineClient
from ci.engines.endpoint import find_endpoint, probe
from ci.engines.image import ToolchainImage
from ci.toolchains.recipe import Recipe, recipe_names
from perf.measure import Report, Sample, time_call


def run(context: Context, *, runs: int) -> Report:
    """Build the image of every toolchain whose downloads are there, `runs` times each."""
    client = EngineClient(probe(find_endpoint()))
    samples: list[Sample] = []
    facts: dict[str, str] = {}
    try:
        for name in recipe_names(context.layout.containers):
            recipe = Recipe.load(context.layout.containers / name)
            image = ToolchainImage(recipe, context.layout)
            if recipe.is_abstract or image.find(client) is None:
                continue
            build = partial(image.build, client, context.console)
            samples.append(time_call(name, build, runs=runs))
            facts[name] = _sizes(recipe, image, client)
    finally:
        client.close()
    return Report(title="images", samples=samples, facts=facts)


def _sizes(recipe: Recipe, image: ToolchainImage, client: EngineClient) -> str:
    download = sum({file.sha256: file.size for file in (*recipe.wheels, *recipe.debs)}.values())
    record = image.find(client)
    unpacked = record.size_bytes if record else 0
    return f"{download / 1e6:.0f} MB to download, {unpacked / 1e6:.0f} MB unpacked"
