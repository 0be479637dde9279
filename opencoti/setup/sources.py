"""Where the model's file can come from: a file, Ollama's store, or a download; and getting it from there.

A source is a word that can be written down and taken up again: `file:PATH`, `ollama:NAME` or `quant:NAME`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opencoti.console import Console
from opencoti.errors import OpencotiError, UsageError
from opencoti.launch.options import LaunchOptions
from opencoti.models.gguf import Header, read_header
from opencoti.setup.asking import Option
from opencoti.setup.config import ModelChoice

if TYPE_CHECKING:
    from opencoti.models.choice import Recommendation
    from opencoti.models.table import QuantTable
    from opencoti.ollama.store import Store

FILE: Final = "file:"
OLLAMA: Final = "ollama:"
QUANT: Final = "quant:"
_MAX_OFFERED: Final = 12


@dataclass(frozen=True, kw_only=True)
class Obtained:
    """A model's file that can be launched: what is written down, its header, and words for the engine."""

    choice: ModelChoice
    header: Header
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DownloadWish:
    """What the user says about the download."""

    url: str | None = None
    sha256: str | None = None
    trust_host: bool = False
    dest: Path | None = None


def options(table: QuantTable, found: Recommendation, stores: tuple[Store, ...]) -> list[Option]:
    """Return what can be chosen, what is proposed first.

    A recommended quant that Ollama has already comes first, then the download of it, then Ollama's other
    models, then the other quants.
    """
    names = ollama_names(stores)
    taken = found.taken.quant
    here = [name for name in names if name.casefold() == f"{table.ollama}:{taken.name}".casefold()]
    offers = [Option(key=OLLAMA + name, text=f"use {name}, which Ollama has already") for name in here]
    offers.append(_download_option(taken.name, taken.size_bytes, "recommended"))
    others = [name for name in names if name not in here][:_MAX_OFFERED]
    offers += [Option(key=OLLAMA + name, text=f"use {name} of Ollama's") for name in others]
    quants = [quant for quant in table.quants if quant.name != taken.name]
    offers += [_download_option(quant.name, quant.size_bytes, quant.note) for quant in quants]
    return [*offers, Option(key=FILE, text="use a GGUF file on this machine")]


def _download_option(name: str, size_bytes: int, note: str) -> Option:
    return Option(key=QUANT + name, text=f"download {name}, {size_bytes / 1e9:.1f} GB ({note})")


def ollama_names(stores: tuple[Store, ...]) -> list[str]:
    """Return the names of all models that Ollama has; nothing where there is no readable store."""
    from opencoti.ollama.store import open_stores

    try:
        return [str(entry.reference) for store in open_stores(stores) for entry in store.entries()]
    except OpencotiError:
        return []


def obtain(
    source: str,
    table: QuantTable,
    stores: tuple[Store, ...],
    wish: DownloadWish,
    console: Console,
    *,
    environ: Mapping[str, str],
) -> Obtained:
    """Get the file of a source.

    Raises:
        OpencotiError: as `import_model`, `download` and `read_header`.
        UsageError: `setup-file-missing`; `bad-launch-option`, its name is not UTF-8.
    """
    if source.startswith(OLLAMA):
        return _from_ollama(source.removeprefix(OLLAMA), stores, console)
    if source.startswith(FILE):
        return _from_file(Path(source.removeprefix(FILE)))
    return _from_download(source.removeprefix(QUANT), table, wish, console, environ)


def is_pinned(source: str, table: QuantTable) -> bool:
    """Tell whether the table knows what the file of a source must hash to."""
    return source.startswith(QUANT) and table.named(source.removeprefix(QUANT)).sha256 is not None


def _from_file(path: Path) -> Obtained:
    absolute = Path(os.path.abspath(path.expanduser()))
    if not absolute.is_file():
        raise UsageError(
            "setup-file-missing", f"there is no model file {absolute}", hint="name a GGUF file with --model"
        )
    LaunchOptions(model=absolute).require_valid()  # a name that cannot be written down
    header = read_header(absolute)
    choice = ModelChoice.of_file(absolute, origin="file", name=absolute.name, sha256=None)
    return Obtained(choice=choice, header=header)


def _from_ollama(name: str, stores: tuple[Store, ...], console: Console) -> Obtained:
    from opencoti.ollama.importing import import_model

    done = import_model(name, stores, console)
    choice = ModelChoice.of_file(
        done.model.path, origin="ollama", name=str(done.reference), sha256=done.model.sha256
    )
    return Obtained(choice=choice, header=done.header, arguments=done.engine_arguments())


def _from_download(
    name: str, table: QuantTable, wish: DownloadWish, console: Console, environ: Mapping[str, str]
) -> Obtained:
    from opencoti.fetch.interrupts import prompt_signals
    from opencoti.fetch.settings import Settings
    from opencoti.models.download import Source, download

    source = Source.of_quant(table.named(name), url=wish.url, sha256=wish.sha256)
    settings = Settings.from_environ(environ)
    is_main = threading.current_thread() is threading.main_thread()
    with prompt_signals() if is_main else nullcontext():
        done = download(source, settings, console, dest=wish.dest, trust_host=wish.trust_host)
    choice = ModelChoice.of_file(
        done.path, origin="download", name=done.path.name, sha256=done.fetched.sha256
    )
    return Obtained(choice=choice, header=done.header)
