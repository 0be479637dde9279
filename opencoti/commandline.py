"""The argument parser of every command."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from opencoti.errors import UsageError


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours, and which never guesses abbreviated options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting, so that usage errors look like all others."""
        raise UsageError("bad-usage", message, hint=f"see `{self.prog} --help`")


def common_options() -> Parser:
    """Return a parent parser with the options that every command takes."""
    common = Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="print results and errors as JSON")
    common.add_argument("--quiet", action="store_true", help="no progress, only results and problems")
    common.add_argument("--traceback", action="store_true", help="show the traceback of an unexpected error")
    return common
