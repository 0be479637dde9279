"""`python -m tests.fuzz TARGET [--seconds N] [--corpus DIR]`, or with `--replay FILE` one input again.

Needs atheris, which is no part of the locks: `pip install atheris` into an environment with those of
`requirements/dev.txt`. The corpus and what was found go to a folder outside the checkout.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path


def main() -> int:
    """Fuzz one target until the time is over or something is found."""
    args = _parser().parse_args()
    if args.replay is not None:
        from tests.fuzz.guard import check_one
        from tests.fuzz.targets import TARGETS

        print(check_one(TARGETS[args.target].parse, args.replay.read_bytes()) or "taken")  # noqa: T201
        return 0
    folder = args.corpus or Path(tempfile.mkdtemp(prefix=f"opencoti-fuzz-{args.target}-"))
    return _fuzz(args.target, folder, args.seconds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", help="a name in tests/fuzz/targets.py")
    parser.add_argument("--seconds", type=int, default=60, help="how long (default 60)")
    parser.add_argument("--corpus", type=Path, help="folder of inputs that goes on from last time")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run one input and say what became of it")
    return parser


def _fuzz(name: str, folder: Path, seconds: int) -> int:
    import atheris

    with atheris.instrument_imports(include=["ci", "opencoti", "elftools", "zipfile"]):
        from tests.fuzz.targets import TARGETS
    from tests.fuzz.guard import LIMIT_S, check_one

    target = TARGETS[name]
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate([*target.seeds(), *target.bad()]):
        (folder / f"seed-{number}").write_bytes(data)

    def one(data: bytes) -> None:
        check_one(target.parse, data)

    words = [
        sys.argv[0],
        str(folder),
        f"-max_total_time={seconds}",
        f"-max_len={target.max_bytes}",
        f"-timeout={int(LIMIT_S * 12)}",
        f"-artifact_prefix={folder.parent}/{name}-",
        "-print_final_stats=1",
        "-rss_limit_mb=2048",
    ]
    atheris.Setup(words, one)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
