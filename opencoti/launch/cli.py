"""The command line of `python -m opencoti.launch`. Only the standard library is loaded to parse it."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from opencoti.commandline import Parser, common_options
from opencoti.console import Console
from opencoti.entry import run_command
from opencoti.errors import MissingError, UsageError

if TYPE_CHECKING:
    from opencoti.launch.engine import Engine
    from opencoti.launch.options import LaunchOptions
    from opencoti.launch.state import State

_DEFAULT_NAME: Final = "engine"
_CLEAN_EXITS: Final = (0, -signal.SIGTERM, 128 + signal.SIGTERM)
_EPILOG: Final = """\
Words after `--` go to the engine as they are. The address is the only thing on standard output.
Variables: OPENCOTI_LLAMAFILE_LOCAL, OPENCOTI_CACHE_DIR; LLAMA_ARG_*, GGML_* and the like are kept from the
engine unless --pass-env names them.
"""
Handler = Callable[[argparse.Namespace, Console], int]


def build_parser() -> Parser:
    """Make the parser of all verbs."""
    common = common_options()
    parser = Parser(
        prog="python -m opencoti.launch",
        description="Start the engine on this machine, look at it, stop it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True, dest="verb")
    for name, (run, text) in _VERBS.items():
        verb = verbs.add_parser(name, parents=[common], help=text, description=text)
        verb.set_defaults(run=run)
        if name in ("run", "start"):
            _add_launch_options(verb)
        else:
            verb.add_argument("name", nargs="?", metavar="NAME", help="default: the only one there is")
    stop = verbs.choices["stop"]
    stop.add_argument("--all", action="store_true", help="stop every one")
    stop.add_argument("--grace", type=float, default=10.0, metavar="S", help="seconds before SIGKILL")
    logs = verbs.choices["logs"]
    logs.add_argument("--lines", type=int, default=40, metavar="N", help="how many of the last lines")
    logs.add_argument("--follow", action="store_true", help="go on printing until the engine ends")
    return parser


def _add_launch_options(verb: argparse.ArgumentParser) -> None:
    add = verb.add_argument
    add("--model", type=Path, metavar="FILE", help="GGUF file (default: the one inside the artifact)")
    add("--binary", type=Path, metavar="FILE", help="engine to start, instead of looking for one")
    add("--pin", type=Path, metavar="FILE", help="pin file (default: the one shipped with opencoti)")
    add("--fetch", action="store_true", help="download the pinned engine where it is not here yet")
    add("--name", default="", help=f"name for status, stop and logs (default: {_DEFAULT_NAME} for start)")
    add("--alias", default="", help="what the engine calls its model (default: the file name)")
    add("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    add("--port", type=int, default=0, help="default: a free one")
    add("--allow-remote", action="store_true", help="other machines may connect")
    add("--api-key-file", type=Path, metavar="FILE", help="password that clients must send")
    add("--gpu", default="auto", metavar="KIND", help="auto, disable, nvidia, amd, vulkan or apple")
    add("--embedding", action="store_true", help="serve embeddings instead of chat")
    add("--parallel", type=int, metavar="N", help="conversations at once")
    add("--isolated", action="store_true", help="share nothing between conversations")
    add("--timeout", type=float, metavar="S", help="default: 60 s and 1 s per 25 MB of model")
    add("--max-log-bytes", type=int, default=16 << 20, metavar="N", help="cap of the log (default: 16 MiB)")
    add(
        "--pass-env",
        action="append",
        default=[],
        metavar="NAME",
        help="let a variable through (NAME or PREFIX*)",
    )
    add("--env", action="append", default=[], metavar="NAME=VALUE", help="set a variable for the engine")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one verb and exit with its code."""
    given = list(sys.argv[1:] if argv is None else argv)
    ours, engines = _split(given)
    console = Console(quiet="--quiet" in ours, as_json="--json" in ours)

    def command() -> int:
        args = build_parser().parse_args(ours)
        args.arguments = engines
        run: Handler = args.run
        return run(args, console)

    run_command(command, console, show_traceback="--traceback" in ours)


def _split(given: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Part our words from the engine's, which stand after the first `--`."""
    if "--" not in given:
        return given, ()
    at = given.index("--")
    return given[:at], tuple(given[at + 1 :])


def _options(args: argparse.Namespace, *, name: str) -> LaunchOptions:
    from opencoti.launch.options import LaunchOptions

    return LaunchOptions(
        model=args.model,
        binary=args.binary,
        name=args.name or name,
        alias=args.alias,
        host=args.host,
        port=args.port,
        allow_remote=args.allow_remote,
        gpu=args.gpu,
        purpose="embedding" if args.embedding else "chat",
        parallel=args.parallel,
        is_isolated=args.isolated,
        api_key_file=args.api_key_file,
        arguments=args.arguments,
        pass_env=tuple(args.pass_env),
        env=dict(_assignment(text) for text in args.env),
        timeout_s=args.timeout,
        max_log_bytes=args.max_log_bytes,
        allow_fetch=args.fetch,
        pin=args.pin,
    )


def _assignment(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UsageError("bad-launch-option", f"--env {text[:80]!r} is not usable", why="expected NAME=VALUE")
    return name, value


def _run(args: argparse.Namespace, console: Console) -> int:
    from opencoti.launch.engine import launch

    with launch(_options(args, name=""), console) as engine:
        _tell(engine, console)
        engine.wait()
        if engine.exit_code not in _CLEAN_EXITS:
            engine.require_alive()
    return 0


def _start(args: argparse.Namespace, console: Console) -> int:
    from opencoti.launch.engine import DEFAULT_GRACE_S, launch
    from opencoti.launch.state import engines_folder
    from opencoti.launch.stopping import stop_engine

    engine = launch(_options(args, name=_DEFAULT_NAME), console)
    try:
        engine.detach()
    except BaseException:
        engine.stop()
        raise
    try:
        _tell(engine, console)
    except BrokenPipeError:
        raise  # nobody wants to know the address
    except BaseException:
        # Nobody was told where it is: it would run unseen.
        stop_engine(engines_folder(), engine.state, grace_s=DEFAULT_GRACE_S)
        raise
    return 0


def _tell(engine: Engine, console: Console) -> None:
    state = engine.state
    for library in state.libraries:
        console.info(f"mapped: {library}")
    console.info(f"ready: {state.name} serves {state.alias} (process {state.engine.pid})")
    console.result(state.url, state.as_dict())


def _stop(args: argparse.Namespace, console: Console) -> int:
    from opencoti.launch.state import engines_folder, known_states
    from opencoti.launch.stopping import stop_engine

    folder = engines_folder()
    states = list(known_states(folder)) if args.all else [_chosen(args.name)]
    done = [stop_engine(folder, state, grace_s=max(0.0, args.grace)) for state in states]
    texts = {
        "stopped": "stopped",
        "stale": "was gone already; its notes are removed, no process was touched",
    }
    lines = [f"{item.name}: {texts[item.outcome]}" for item in done]
    console.result("\n".join(lines) or "nothing to stop", [vars(item) for item in done])
    return 0


def _status(args: argparse.Namespace, console: Console) -> int:
    from opencoti.launch.state import engines_folder, known_states

    states = [_chosen(args.name)] if args.name else list(known_states(engines_folder()))
    lines = [
        f"{state.name}  {state.condition()}  {state.url}  {state.alias or '-'}  process {state.engine.pid}"
        for state in states
    ]
    console.result("\n".join(lines) or "no engine", [state.as_dict() for state in states])
    return 0


def _logs(args: argparse.Namespace, console: Console) -> int:
    from opencoti.launch.logs import follow_log, last_lines
    from opencoti.launch.state import LOG_NAME, engines_folder

    state = _chosen(args.name)
    log = engines_folder() / state.name / LOG_NAME
    console.result(
        "\n".join(last_lines(log, args.lines)), {"path": str(log), "lines": last_lines(log, args.lines)}
    )
    if args.follow:
        for line in follow_log(log, lambda: state.condition() != "stale"):
            console.result(line, {"line": line})
    return 0


def _chosen(name: str | None) -> State:
    """Return the launch that is meant: the named one, or the only one."""
    from opencoti.launch.state import engines_folder, known_states

    states = list(known_states(engines_folder()))
    if name is not None:
        found = [state for state in states if state.name == name]
    else:
        found = states
    if len(found) == 1:
        return found[0]
    names = ", ".join(state.name for state in states) or "none"
    if name is None and states:
        raise UsageError("engine-ambiguous", "there are several engines", why=names, hint="name one of them")
    raise MissingError(
        "engine-unknown",
        f"there is no engine named {name}" if name else "no engine was started here",
        why=f"known in {engines_folder()}: {names}",
        hint="`python -m opencoti.launch start` starts one",
    )


_VERBS: Final[dict[str, tuple[Handler, str]]] = {
    "run": (_run, "start the engine and stay; it ends with this command"),
    "start": (_start, "start the engine, wait until it is ready, and leave it running"),
    "stop": (_stop, "end an engine that runs, and everything that belongs to it"),
    "status": (_status, "list the engines of this user"),
    "logs": (_logs, "print the end of an engine's log"),
}
