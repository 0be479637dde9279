"""What makes two wishes for an engine the same wish. Pure but for looking at the files' sizes and times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from opencoti.hashing import sha256_bytes
from opencoti.launch.binary import LOCAL_VARIABLE
from opencoti.launch.environment import is_held_back
from opencoti.launch.options import LaunchOptions, parse_gpu


def fingerprint(options: LaunchOptions, environ: Mapping[str, str]) -> str:
    """Return a hash of everything that changes what the engine is or answers.

    Not part of it: name, time-outs, and size of the log. Of the environment: what names the engine, and what
    was let through to it. Two programs that leave the choice of the engine to the same pin agree.
    """
    named = options.binary or (Path(environ[LOCAL_VARIABLE]) if environ.get(LOCAL_VARIABLE) else None)
    wish = {
        "binary": _file(named),
        "pin": _file(options.pin),
        "model": _file(options.model),
        "alias": options.alias,
        "address": [options.host, options.port, options.allow_remote],
        "gpu": parse_gpu(options.gpu),
        "purpose": options.purpose,
        "parallel": options.parallel,
        "is_isolated": options.is_isolated,
        "api_key_file": _file(options.api_key_file),
        "arguments": list(options.arguments),
        "passed": {name: environ[name] for name in sorted(environ) if _is_passed(name, options)},
        "env": dict(sorted(options.env.items())),
    }
    return sha256_bytes(json.dumps(wish, sort_keys=True).encode())


def _is_passed(name: str, options: LaunchOptions) -> bool:
    wanted = (name.startswith(item[:-1]) if item.endswith("*") else name == item for item in options.pass_env)
    return is_held_back(name) and any(wanted)


def _file(path: Path | None) -> list[object] | None:
    if path is None:
        return None
    try:
        found = path.resolve(strict=True)
        status = found.stat()
    except (OSError, RuntimeError):
        return [str(path.absolute())]
    return [str(found), status.st_size, status.st_mtime_ns]
