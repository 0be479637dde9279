"""The commands `workflows`, which keeps `.github/workflows/` fresh, and `job` and `push`, which they call."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci.context import Context


def register(subparsers: Any, common: argparse.ArgumentParser) -> None:
    """Add the parsers."""
    workflows = subparsers.add_parser(
        "workflows", parents=[common], help="write the generated parts of the GitHub workflows anew"
    )
    workflows.add_argument("--check", action="store_true", help="change nothing; fail if one is stale")
    workflows.set_defaults(command=_workflows)
    job = subparsers.add_parser("job", parents=[common], help="what the jobs of a release hand on")
    verbs = job.add_subparsers(metavar="VERB", required=True, dest="verb")
    _register_facts(verbs, common)
    _register_files(verbs, common)
    push = subparsers.add_parser("push", parents=[common], help="push proved toolchain images to a registry")
    push.add_argument("names", nargs="+", metavar="NAME", help="toolchains")
    push.add_argument("--to", required=True, metavar="REGISTRY/PATH", help="such as ghcr.io/OWNER/NAME")
    push.add_argument("--record", type=Path, required=True, metavar="FILE", help="what is there, by digest")
    push.set_defaults(command=_push)


def _register_facts(verbs: Any, common: argparse.ArgumentParser) -> None:
    resolve = verbs.add_parser("resolve", parents=[common], help="tell the other jobs what the plan says")
    resolve.add_argument("--plan", type=Path, required=True, metavar="FILE", help="what `plan --json` wrote")
    resolve.add_argument("--source", type=Path, required=True, metavar="FILE", help="the source tarball")
    resolve.set_defaults(command=_resolve)

    digests = verbs.add_parser("digests", parents=[common], help="verify what was packaged; tell its hashes")
    digests.add_argument("folder", type=Path, metavar="DIR")
    digests.set_defaults(command=_digests)

    bundle = verbs.add_parser("bundle", parents=[common], help="put an attestation into a staged release")
    bundle.add_argument("file", type=Path, metavar="FILE", help="the bundle that the CI service made")
    bundle.add_argument("folder", type=Path, metavar="DIR", help="the staged release, named by its tag")
    bundle.set_defaults(command=_bundle)


def _register_files(verbs: Any, common: argparse.ArgumentParser) -> None:
    accept = verbs.add_parser("accept", parents=[common], help="compare what was downloaded with its hashes")
    accept.add_argument("folder", type=Path, metavar="DIR")
    _add_digests(accept)
    accept.add_argument("--whole", action="store_true", help="every listed file must be there")
    accept.set_defaults(command=_accept)

    for kind, text in (("smoke", "smoke-test"), ("bench", "measure")):
        test = verbs.add_parser(kind, parents=[common], help=f"{text} every artifact that has a backend")
        test.add_argument("folder", type=Path, metavar="DIR")
        test.add_argument("--backend", required=True, metavar="NAME", help="what to compute on")
        test.set_defaults(command=_test)

    collect = verbs.add_parser(
        "collect", parents=[common], help="check evidence from other machines, take it"
    )
    collect.add_argument("origin", type=Path, metavar="DIR", help="holds one folder per machine")
    _add_digests(collect)
    collect.add_argument("--to", type=Path, metavar="DIR", help="default: dist/evidence")
    collect.set_defaults(command=_collect)


def _add_digests(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--digests", required=True, metavar="JSON", help="what `job digests` told")


def _workflows(args: argparse.Namespace, context: Context) -> int:
    from ci.workflows import stale_workflows
    from opencoti.errors import ConfigError
    from opencoti.files import write_atomic

    stale = stale_workflows(context.layout.root)
    if args.check and stale:
        raise ConfigError(
            "workflows-stale",
            f"{next(iter(stale))} is not fresh",
            why="it is not what containers/toolchains.toml gives",
            hint="run `python -m ci workflows` and commit",
        )
    for path, text in stale.items():
        write_atomic(path, text.encode("utf-8"))
    written = [str(path) for path in stale]
    context.console.result("\n".join(written) or "the workflows are fresh", {"written": written})
    return 0


def _push(args: argparse.Namespace, context: Context) -> int:
    from ci.engines.client import EngineClient
    from ci.engines.endpoint import find_endpoint, probe, uses_tls
    from ci.engines.image import ToolchainImage
    from ci.toolchains.recipe import Recipe
    from ci.workflows_push import credentials, parse_target, push_image, write_record

    target, auth = parse_target(args.to), credentials(os.environ)
    recipes = [Recipe.load(context.layout.containers / name) for name in args.names]
    client = EngineClient(probe(find_endpoint(), with_tls=uses_tls()))
    try:
        pushed = [
            push_image(
                client,
                recipe.name,
                ToolchainImage(recipe, context.layout, is_strict=True),
                target=target,
                auth=auth,
            )
            for recipe in recipes
        ]
    finally:
        client.close()
    write_record(pushed, args.record)
    text = "\n".join(f"{image.reference}@{image.digest}" for image in pushed)
    context.console.result(text, {"images": [image.as_dict() for image in pushed]})
    return 0


def _resolve(args: argparse.Namespace, context: Context) -> int:
    from ci.workflows_jobs import resolve

    done = resolve(args.plan, args.source)
    facts = {"tag": done.tag, "source": done.source, "waived": json.dumps(list(done.waived))}
    return _tell(facts, context)


def _digests(args: argparse.Namespace, context: Context) -> int:
    from ci.workflows_jobs import verified_digests

    return _tell({"digests": json.dumps(verified_digests(context, args.folder), sort_keys=True)}, context)


def _bundle(args: argparse.Namespace, context: Context) -> int:
    from ci.workflows_jobs import place_bundle

    return _paths([place_bundle(args.file, args.folder)], context)


def _accept(args: argparse.Namespace, context: Context) -> int:
    from ci.workflows_jobs import accept, parse_digests

    found = accept(args.folder, parse_digests(args.digests), is_whole=args.whole)
    context.console.info(f"{len(found)} files are what was packaged")
    return _paths(list(found), context)


def _test(args: argparse.Namespace, context: Context) -> int:
    from ci.workflows_jobs import run_tests

    return _paths(list(run_tests(context, args.folder, args.verb, args.backend)), context)


def _collect(args: argparse.Namespace, context: Context) -> int:
    from ci.workflows_jobs import collect_evidence, parse_digests

    target = args.to or context.layout.dist / "evidence"
    return _paths(list(collect_evidence(args.origin, target, parse_digests(args.digests))), context)


def _paths(paths: list[Path], context: Context) -> int:
    names = [str(path) for path in paths]
    context.console.result("\n".join(names), {"files": names})
    return 0


def _tell(facts: Mapping[str, str], context: Context) -> int:
    """Print facts, and give them to the CI service where there is one (GITHUB_OUTPUT)."""
    from opencoti.errors import storage_error

    output = os.environ.get("GITHUB_OUTPUT")
    lines = "".join(f"{name}={value}\n" for name, value in facts.items())
    assert lines.count("\n") == len(facts), "JSON and checked names have no line ends"
    if output:
        try:
            with open(output, "a", encoding="utf-8") as file:
                file.write(lines)
        except OSError as exc:
            raise storage_error(exc, f"cannot write {output}") from exc
    context.console.result(lines.rstrip("\n"), dict(facts))
    return 0
