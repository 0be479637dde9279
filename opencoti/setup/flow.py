"""The steps of a first run, in their order. Each can be taken up again: what is done is not done twice.

detect → recommend → find the engine → choose → obtain → launch → one test prompt → write the configuration.
A run that is interrupted leaves `setup.json` (what was chosen and what is there already) and the downloader's
partial file; the next one goes on from there.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opencoti.console import Console
from opencoti.errors import MissingError
from opencoti.hardware import Hardware, detect
from opencoti.launch.options import parse_gpu
from opencoti.models.choice import Recommendation, Wish, cache_arguments, recommend
from opencoti.models.kvcache import CacheWish
from opencoti.models.table import QuantTable, load_table
from opencoti.setup import sources
from opencoti.setup.asking import Asker, FirstOption, needs_answers
from opencoti.setup.config import (
    Config,
    FirstAnswer,
    ModelChoice,
    Progress,
    config_folder,
    forget_progress,
    load_config,
    load_progress,
    save,
)
from opencoti.setup.sources import DownloadWish, Obtained

if TYPE_CHECKING:
    from opencoti.launch.binary import Binary
    from opencoti.launch.engine import Engine
    from opencoti.launch.options import LaunchOptions
    from opencoti.ollama.store import Store

_GIB: Final = 1 << 30
_PROMPT: Final = "Say hello in one short sentence."
_TEST_TOKENS: Final = 32
_ENGINE_NAME: Final = "engine"


@dataclass(frozen=True, kw_only=True)
class SetupWish:
    """What the user wants.

    Attributes:
        source: where the model comes from (`file:PATH`, `ollama:NAME`, `quant:NAME`); asked for if empty.
        wish: for the recommendation.
        vram_bytes: memory of the GPU, instead of what is found.
        table: another table of quants.
        stores: where Ollama's models are.
        binary: the engine, instead of the one that is found.
        is_dry_run: only say what would be done.
        is_again: begin anew although there is a configuration.
        keeps_running: leave the engine running at the end.
    """

    source: str = ""
    wish: Wish = field(default_factory=Wish)
    vram_bytes: int | None = None
    table: Path | None = None
    stores: tuple[Store, ...] = ()
    download: DownloadWish = field(default_factory=DownloadWish)
    binary: Path | None = None
    gpu: str = "auto"
    is_dry_run: bool = False
    is_again: bool = False
    keeps_running: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How it ended: the configuration (None after a dry run), where it is, and the steps that were taken."""

    config: Config | None
    path: Path
    steps: tuple[str, ...]
    plan: Mapping[str, Any]
    url: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as data, the form that `--json` prints."""
        return {
            "config": self.config.model_dump(mode="json", by_alias=True) if self.config else None,
            "path": str(self.path),
            "steps": list(self.steps),
            "plan": dict(self.plan),
            "url": self.url,
            "is_done": self.config is not None,
        }

    def as_text(self) -> str:
        """Render for people."""
        if self.config is None:
            return "\n".join(f"{name}: {value}" for name, value in self.plan.items())
        return f"{self.path}\n{self.url or shlex.join(_start_words(self.config))}"


def _start_words(config: Config) -> list[str]:
    """Return the command that starts what was set up."""
    words = ["python", "-m", "opencoti.launch", "start", "--model", config.model.path]
    words += ["--binary", config.engine] if config.engine else []
    words += ["--gpu", config.gpu] if config.gpu != "auto" else []
    return [*words, "--", *config.arguments] if config.arguments else words


def set_up(
    wish: SetupWish,
    console: Console,
    asker: Asker | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    find_hardware: Callable[[], Hardware] = detect,
) -> Outcome:
    """Do what is not done yet.

    Args:
        wish: what the user wants.
        console: told about progress.
        asker: answers questions; takes what is proposed if None.
        environ: environment to read instead of this process's.
        folder: of the configuration.
        find_hardware: looks for GPUs.

    Raises:
        UsageError: `setup-needs-answers`, nobody is there to ask; `gpu-unknown`.
        OpencotiError: as `recommend`, `find_binary`, `obtain`, `launch` and `Client`; what was done stays.
        MissingError: `setup-no-answer`, the engine runs and says nothing.
    """
    flow = _Flow(
        wish,
        console,
        asker or FirstOption(),
        os.environ if environ is None else environ,
        folder or config_folder(),
    )
    return flow.run(find_hardware)


class _Flow:
    """One run."""

    def __init__(
        self, wish: SetupWish, console: Console, asker: Asker, environ: Mapping[str, str], folder: Path
    ) -> None:
        self._wish = wish
        self._console = console
        self._asker = asker
        self._environ = environ
        self._folder = folder
        self._steps: list[str] = []

    def run(self, find_hardware: Callable[[], Hardware]) -> Outcome:
        if (done := self._already_done()) is not None:
            return done
        if not self._asker.is_there:
            raise needs_answers("there is no terminal to ask questions in")
        parse_gpu(self._wish.gpu)  # before gigabytes are fetched for it
        progress = Progress() if self._wish.is_again else load_progress(self._folder)
        table = load_table(self._wish.table)
        found = self._recommend(table, find_hardware)
        binary = self._find_engine()
        source = self._choose(table, found, progress)
        if self._wish.is_dry_run:
            return self._dry(found, binary, source)
        obtained = self._obtain(table, source, progress)
        arguments = self._arguments(obtained, found)
        return self._finish(obtained, arguments, found)

    def _already_done(self) -> Outcome | None:
        if self._wish.is_again or self._wish.source:
            return None
        config = load_config(self._folder)
        if config is None or not config.model.is_unchanged():
            return None
        self._console.info("already set up, nothing to do (--again begins anew)")
        return Outcome(config=config, path=self._folder / "config.json", steps=("already-done",), plan={})

    def _recommend(self, table: QuantTable, find_hardware: Callable[[], Hardware]) -> Recommendation:
        self._step("detect")
        wish, vram = self._wish.wish, self._wish.vram_bytes
        if vram is None:
            hardware = find_hardware()
            vram = hardware.vram_bytes
            names = [f"{gpu.name} ({gpu.total_bytes / _GIB:.1f} GiB)" for gpu in hardware.usable_gpus]
            self._console.info(f"GPU: {', '.join(names) or 'none'}")
            wish = replace(
                wish, free_bytes=hardware.free_vram_bytes, ram_bytes=hardware.memory.total_bytes or None
            )
        self._step("recommend")
        if self._wish.source and not self._wish.source.startswith(sources.QUANT):
            # The model is chosen already: whether one of the table fits does not matter.
            return recommend(table, vram, replace(wish, quant=table.default))
        found = recommend(table, vram, wish)
        self._console.info(f"recommended: {found.reason}")
        for warning in found.warnings:
            self._console.warn(warning)
        return found

    def _find_engine(self) -> Binary:
        """Find the engine before gigabytes are fetched for it."""
        from opencoti.launch.binary import Search, checkout_root, find_binary

        self._step("engine")
        search = Search(
            environ=self._environ,
            explicit=self._wish.binary,
            checkout=checkout_root(),
            allow_fetch=not self._wish.is_dry_run,
        )
        binary = find_binary(search, self._console)
        self._console.info(f"engine: {binary.path} ({binary.named_by})")
        return binary

    def _choose(self, table: QuantTable, found: Recommendation, progress: Progress) -> str:
        self._step("choose")
        if self._wish.source:
            return self._wish.source
        if progress.source and self._asker.confirm(f"Go on with {progress.source}?", default=True):
            self._console.info(f"going on with {progress.source} (--again begins anew)")
            return progress.source
        chosen = self._asker.choose("Which model?", sources.options(table, found, self._wish.stores)).key
        return chosen if chosen != sources.FILE else sources.FILE + self._asker.ask_text("Path of the file")

    def _dry(self, found: Recommendation, binary: Binary, source: str) -> Outcome:
        plan = {
            "recommended": found.reason,
            "engine": str(binary.path),
            "model": source,
            "context": found.cache.context,
            "configuration": str(self._folder / "config.json"),
        }
        return Outcome(config=None, path=self._folder / "config.json", steps=tuple(self._steps), plan=plan)

    def _obtain(self, table: QuantTable, source: str, progress: Progress) -> Obtained:
        self._step("obtain")
        if source.startswith(sources.QUANT):
            # A download is gone on with; a name that leads to nothing is not worth remembering.
            save(Progress(source=source, model=progress.model), self._folder)
        known = progress.model if progress.source == source else None
        if known is not None and known.is_unchanged() and known.origin != "ollama":
            self._console.info(f"{known.path}: there already")
            source_of_file = sources.FILE + known.path
            obtained = sources.obtain(
                source_of_file, table, (), DownloadWish(), self._console, environ=self._environ
            )
            return replace(obtained, choice=known)
        obtained = sources.obtain(
            source,
            table,
            self._wish.stores,
            self._download_wish(source, table),
            self._console,
            environ=self._environ,
        )
        save(Progress(source=source, model=obtained.choice), self._folder)
        return obtained

    def _download_wish(self, source: str, table: QuantTable) -> DownloadWish:
        """Ask whether a hash that only the host of the file knows will do; without an answer it does not."""
        wish = self._wish.download
        is_known = wish.sha256 or (not wish.url and sources.is_pinned(source, table))
        if is_known or wish.trust_host or not source.startswith(sources.QUANT):
            return wish
        question = "The table has no SHA-256 of this file. Believe the one that its host announces?"
        return replace(wish, trust_host=self._asker.confirm(question, default=False))

    def _arguments(self, obtained: Obtained, found: Recommendation) -> tuple[str, ...]:
        """Return the engine's words: our context where the model does not bring its own."""
        cache = self._fitting_cache(obtained, found.cache)
        own = obtained.arguments
        return own if "--ctx-size" in own else (*own, *cache_arguments(cache))

    def _fitting_cache(self, obtained: Obtained, cache: CacheWish) -> CacheWish:
        """Count the cache again from the file's own header; never ask for more than it was trained for."""
        from opencoti.models.kvcache import cache_size
        from opencoti.models.shape import ModelShape

        shape = ModelShape.from_header(obtained.header, obtained.choice.path)
        if shape.context and shape.context < cache.context:
            self._console.info(f"context: {shape.context} tokens, what the model was trained for")
            cache = replace(cache, context=shape.context)
        size = cache_size(shape, cache)
        self._console.info(f"cache for {cache.context} tokens: {size.total_bytes / _GIB:.2f} GiB")
        return cache

    def _finish(self, obtained: Obtained, arguments: tuple[str, ...], found: Recommendation) -> Outcome:
        from opencoti.launch.engine import launch

        self._step("launch")
        engine = launch(self._options(obtained.choice, arguments), self._console, environ=self._environ)
        try:
            self._step("test")
            test = self._ask_engine(engine)
            self._step("write")
            config = Config(
                model=obtained.choice,
                arguments=arguments,
                gpu=self._wish.gpu,
                engine=str(self._wish.binary.absolute()) if self._wish.binary else "",
                reason=found.reason if obtained.choice.origin == "download" else "you chose it",
                test=test,
            )
            path = save(config, self._folder)
            forget_progress(self._folder)
            url = engine.detach().url if self._wish.keeps_running else ""
        finally:
            engine.stop()  # a detached one is left alone
        return Outcome(config=config, path=path, steps=tuple(self._steps), plan={}, url=url)

    def _options(self, model: ModelChoice, arguments: tuple[str, ...]) -> LaunchOptions:
        from opencoti.launch.options import LaunchOptions

        return LaunchOptions(
            model=Path(model.path),
            binary=self._wish.binary,
            name=_ENGINE_NAME if self._wish.keeps_running else "",
            alias=model.name,
            gpu=self._wish.gpu,
            arguments=arguments,
        )

    def _ask_engine(self, engine: Engine) -> FirstAnswer:
        from opencoti.client.requests import Sampling
        from opencoti.client.sync import Client

        started = time.monotonic()
        with Client(engine.url) as client:
            answer = client.chat(
                [{"role": "user", "content": _PROMPT}], Sampling(max_tokens=_TEST_TOKENS, temperature=0.0)
            )
        seconds = time.monotonic() - started
        message = answer.choices[0].message if answer.choices else None
        text = (message.content or message.reasoning_content or "") if message else ""
        tokens = answer.usage.completion_tokens if answer.usage else None
        if not text and not tokens:
            raise MissingError(
                "setup-no-answer",
                "the engine runs, and its answer to the test prompt is empty",
                hint=f"is {engine.state.model} a chat model? choose another one with --again",
            )
        self._console.info(f"it says: {_one_line(text)}")
        return FirstAnswer(
            answer=text[:2000],
            tokens=tokens,
            seconds=round(seconds, 3),
            libraries=engine.state.libraries,
        )

    def _step(self, name: str) -> None:
        self._steps.append(name)
        self._console.step(name)


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))[:200]
