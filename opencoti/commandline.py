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
