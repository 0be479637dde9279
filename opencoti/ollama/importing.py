"""From a name to files that an engine can load: found, whole, undamaged, and where they are.

The order of the checks: the manifest, that all files are there, their sizes, their SHA-256, and that the
model is a model. Nothing is copied: the path that comes out is Ollama's own file.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from opencoti.console import Console
from opencoti.errors import ConfigError, MissingError, OpencotiError, VerificationError
from opencoti.jsonio import parse_strict
from opencoti.models.gguf import Header, read_header
from opencoti.ollama.manifest import Kind, Layer, Manifest
from opencoti.ollama.reference import Reference
from opencoti.ollama.store import Entry, Store, open_stores, unreadable

_BLOCK_BYTES: Final = 4 << 20
_MAX_TEXT_BYTES: Final = 1 << 20
_NEAR: Final = 3
# What of Ollama's parameters an engine takes on its command line.
_ENGINE_WORDS: Final = {
    "num_ctx": "--ctx-size",
    "temperature": "--temp",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "min_p": "--min-p",
    "repeat_penalty": "--repeat-penalty",
    "repeat_last_n": "--repeat-last-n",
    "presence_penalty": "--presence-penalty",
    "frequency_penalty": "--frequency-penalty",
    "seed": "--seed",
}


@dataclass(frozen=True, kw_only=True)
class Blob:
    """A file of a store. `is_verified`: its SHA-256 was computed and is right."""

    path: Path
    sha256: str
    size_bytes: int
    is_verified: bool


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A model of Ollama's that can be loaded where it lies.

    Attributes:
        template: Ollama's prompt template, in its own language. Engines use the one inside the model.
        parameters: what the model's author recommends, by Ollama's names.
    """

    reference: Reference
    store: Path
    model: Blob
    projectors: tuple[Blob, ...]
    adapters: tuple[Blob, ...]
    template: str
    system: str
    parameters: dict[str, Any]
    header: Header

    def engine_arguments(self) -> tuple[str, ...]:
        """Return the engine's words beside `--model`."""
        words: list[str] = []
        for projector in self.projectors[:1]:
            words += ["--mmproj", str(projector.path)]
        for adapter in self.adapters:
            words += ["--lora", str(adapter.path)]
        for name, option in _ENGINE_WORDS.items():
            value = self.parameters.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                words += [option, f"{value:g}" if isinstance(value, float) else str(value)]
        return tuple(words)

    def as_dict(self) -> dict[str, object]:
        """Return it as data, the form that `--json` prints."""
        return {
            "name": str(self.reference),
            "full_name": self.reference.full,
            "store": str(self.store),
            "model": _blob_dict(self.model),
            "projectors": [_blob_dict(blob) for blob in self.projectors],
            "adapters": [_blob_dict(blob) for blob in self.adapters],
            "template": self.template,
            "system": self.system,
            "parameters": self.parameters,
            "engine_arguments": list(self.engine_arguments()),
            "architecture": self.header.text("general.architecture"),
        }


def find_model(name: str, stores: tuple[Store, ...]) -> tuple[Store, Entry]:
    """Return the store that has a model, and its entry; the first store wins.

    Raises:
        UsageError: `ollama-name-malformed`.
        MissingError: `ollama-model-unknown`, with the near names; `ollama-store-missing`.
        StorageError: `ollama-store-unreadable`.
    """
    wanted = Reference.parse(name)
    usable = open_stores(stores)
    known: list[Reference] = []
    for store in usable:
        for entry in store.entries():
            if entry.reference.folded == wanted.folded:
                return store, entry
            known.append(entry.reference)
    raise _unknown(wanted, known, usable)


def import_model(
    name: str, stores: tuple[Store, ...], console: Console, *, is_fast: bool = False
) -> Imported:
    """Check a model of Ollama's and return where its files are.

    Args:
        name: as Ollama writes it.
        stores: where to look.
        console: told about progress.
        is_fast: compute no SHA-256 of large files.

    Raises:
        UsageError, MissingError, StorageError: as `find_model`.
        ConfigError: `ollama-manifest-malformed`, `ollama-not-a-gguf`, `gguf-malformed`.
        MissingError: `ollama-blob-missing`, `ollama-pull-unfinished`.
        VerificationError: `ollama-blob-damaged`.
    """
    store, entry = find_model(name, stores)
    return _Import(store, entry, console, is_fast=is_fast).run()


class _Import:
    """The steps of one import."""

    def __init__(self, store: Store, entry: Entry, console: Console, *, is_fast: bool) -> None:
        self._store = store
        self._entry = entry
        self._console = console
        self._is_fast = is_fast

    def run(self) -> Imported:
        manifest = self._store.manifest(self._entry)
        model = _the_model(manifest, self._entry)
        wanted = [*manifest.of_kind("projector"), *manifest.of_kind("adapter")]
        paths = {layer.sha256: self._located(layer) for layer in (model, *wanted)}
        # The SHA-256 first: of a file that was zeroed, "damaged" says more than "no model".
        blobs = {layer.sha256: self._verified(layer, paths[layer.sha256]) for layer in (model, *wanted)}
        header = read_header(paths[model.sha256])
        for layer in wanted:
            read_header(paths[layer.sha256])
        return Imported(
            reference=self._entry.reference,
            store=self._store.root,
            model=blobs[model.sha256],
            projectors=tuple(blobs[layer.sha256] for layer in manifest.of_kind("projector")),
            adapters=tuple(blobs[layer.sha256] for layer in manifest.of_kind("adapter")),
            template=self._text(manifest, "template"),
            system=self._text(manifest, "system"),
            parameters=self._parameters(manifest),
            header=header,
        )

    def _located(self, layer: Layer) -> Path:
        """Return the file of a layer if it is there and has the right size."""
        path = self._store.blob(layer)
        if path is None:
            raise self._absent(layer)
        size = path.stat().st_size
        if size != layer.size_bytes:
            raise self._damaged(path, f"it has {size} bytes, its manifest says {layer.size_bytes}")
        return path

    def _verified(self, layer: Layer, path: Path) -> Blob:
        if not self._is_fast:
            found = self._hashed(path)
            if found != layer.sha256:
                raise self._damaged(path, f"its SHA-256 is {found}")
        return Blob(
            path=path, sha256=layer.sha256, size_bytes=layer.size_bytes, is_verified=not self._is_fast
        )

    def _hashed(self, path: Path) -> str:
        digest, done = hashlib.sha256(), 0
        try:
            with open(path, "rb", buffering=0) as file:
                total = os.fstat(file.fileno()).st_size
                while block := file.read(_BLOCK_BYTES):
                    digest.update(block)
                    done += len(block)
                    self._console.status(f"checking {self._entry.reference}: {done * 100 // max(1, total)} %")
        except OSError as exc:
            raise unreadable(path, exc) from exc
        return digest.hexdigest()

    def _text(self, manifest: Manifest, kind: Kind) -> str:
        return "\n".join(self._small(layer).decode("utf-8", "replace") for layer in manifest.of_kind(kind))

    def _parameters(self, manifest: Manifest) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for layer in manifest.of_kind("params"):
            found = parse_strict(self._small(layer), f"the parameters of {self._entry.reference}")
            if isinstance(found, dict):
                merged |= found
        return merged

    def _small(self, layer: Layer) -> bytes:
        """Read a small blob; its SHA-256 is always checked."""
        path = self._located(layer)
        if layer.size_bytes > _MAX_TEXT_BYTES:
            raise self._damaged(path, f"a {layer.kind} of {layer.size_bytes} bytes makes no sense")
        try:
            data = path.read_bytes()
        except OSError as exc:
            raise unreadable(path, exc) from exc
        if hashlib.sha256(data).hexdigest() != layer.sha256:
            raise self._damaged(path, "its SHA-256 is another one than its name says")
        return data

    def _absent(self, layer: Layer) -> OpencotiError:
        name = self._entry.reference
        if self._store.is_partial(layer):
            return MissingError(
                "ollama-pull-unfinished",
                f"{name} is not completely here",
                why=f"of its {layer.kind} sha256:{layer.sha256} only parts were downloaded",
                hint=f"`ollama pull {name}` goes on with it",
            )
        return MissingError(
            "ollama-blob-missing",
            f"{name} is not completely here",
            why=f"its {layer.kind} sha256:{layer.sha256} is not in {self._store.root / 'blobs'}",
            hint=f"`ollama pull {name}` gets it again",
        )

    def _damaged(self, path: Path, why: str) -> VerificationError:
        name = self._entry.reference
        return VerificationError(
            "ollama-blob-damaged",
            f"{path}, which belongs to {name}, is damaged",
            why=why,
            hint=f"remove that file, then `ollama pull {name}` gets it again",
        )


def _the_model(manifest: Manifest, entry: Entry) -> Layer:
    models = manifest.of_kind("model")
    if len(models) == 1:
        return models[0]
    why = "it has no model file of its own; it runs in a cloud, or is kept in another format"
    if models:
        why = f"it has {len(models)} model files, which no engine of ours loads together"
    raise ConfigError(
        "ollama-not-a-gguf",
        f"{entry.reference} cannot be loaded from its store",
        why=why,
        hint="choose another one of `python -m opencoti.ollama list`",
    )


def _unknown(wanted: Reference, known: list[Reference], stores: tuple[Store, ...]) -> MissingError:
    names = [str(item) for item in known]
    same = [str(item) for item in known if item.model.casefold() == wanted.model.casefold()]
    near = (same or difflib.get_close_matches(str(wanted), names, n=_NEAR, cutoff=0.5))[:_NEAR]
    return MissingError(
        "ollama-model-unknown",
        f"Ollama has no model {wanted}",
        why=f"near are: {', '.join(near)}"
        if near
        else f"{len(names)} others are in {', '.join(str(store.root) for store in stores)}",
        hint="`python -m opencoti.ollama list` prints the names of all models",
    )


def _blob_dict(blob: Blob) -> dict[str, object]:
    return {**vars(blob), "path": str(blob.path)}
