"""What an embedder does without an engine: arguments, batches, checks, and where it looks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.package.arguments import embedder_args
from opencoti.embedder import EmbedderOptions, build_embedder_args, embedder_launch_options
from opencoti.embedder.arguments import offered_options, patch_options
from opencoti.embedder.vectors import Batching, batches_of, check_vectors, pooling_in, require_pooling
from opencoti.errors import OpencotiError, UsageError, VerificationError
from tests.conftest import RecordedConsole

SEED = (
    "--embedding --pooling last --ctx-size 16384 --parallel 2 "
    "--slot-initial-ctx 4096 --slot-shrink-idle-ms 30000"
)


def test_arguments_are_those_of_the_interface() -> None:
    assert build_embedder_args(lane="ape") == ["--server", *SEED.split()]
    assert build_embedder_args() == SEED.split()
    assert build_embedder_args(offered=()) == SEED.split()[:7]
    assert build_embedder_args(offered={"--slot-initial-ctx"}) == SEED.split()[:9]


def test_texts_have_to_fit_in_one_part_where_they_cannot_be_computed_in_several() -> None:
    words = build_embedder_args(pooling="mean", context_tokens=8192, parallel=4, offered=())
    assert words[words.index("--ubatch-size") + 1] == "2048"
    assert "--ubatch-size" not in build_embedder_args()


def test_args_in_an_artifact_are_the_same_arguments(tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    engine.write_bytes(b"\0".join(word.encode() for word in SEED.split()) + b"\0")
    lines = embedder_args(engine, lane="elf", model="m.gguf").decode().splitlines()
    assert lines == ["-m", "/zip/m.gguf", *SEED.split(), "..."]
    assert offered_options(engine, patch_options()) == set(patch_options())


@pytest.mark.parametrize(
    "words",
    [{"pooling": "max"}, {"parallel": 0}, {"context_tokens": 0}, {"context_tokens": 3, "parallel": 4}],
)
def test_impossible_arguments_are_refused(words: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        build_embedder_args(**words)
    assert caught.value.error_id == "bad-embedder-option"


@given(
    st.lists(st.text(min_size=1, max_size=30), max_size=40),
    st.integers(min_value=1, max_value=9),
    st.integers(min_value=1, max_value=60),
)
def test_batches_hold_every_text_once_in_order_and_are_not_too_large(
    texts: list[str], count: int, size: int
) -> None:
    batches = list(batches_of(texts, Batching(texts=count, bytes_=size)))
    assert [text for batch in batches for text in batch] == texts
    for batch in batches:
        assert 1 <= len(batch) <= count
        assert len(batch) == 1 or sum(len(text.encode()) for text in batch) <= size


def test_empty_text_is_named_by_its_number() -> None:
    with pytest.raises(UsageError) as caught:
        list(batches_of(["a", "b", ""], Batching()))
    assert caught.value.error_id == "text-empty"
    assert "number 2" in caught.value.what


@pytest.mark.parametrize(
    ("vectors", "error_id"),
    [([[1.0, 2.0]], "embedder-other-dimension"), ([[1.0, 0.0, 0.0], [0.0] * 3], "embedder-zero-vector")],
)
def test_vectors_that_cannot_be_right_are_refused(vectors: list[list[float]], error_id: str) -> None:
    with pytest.raises(VerificationError) as caught:
        check_vectors(vectors, 3)
    assert caught.value.error_id == error_id
    check_vectors([[0.0, 0.5, 0.0]], 3)


def test_last_word_on_pooling_counts() -> None:
    assert pooling_in(["x", "--pooling", "last", "--pooling", "mean", "--port", "0"]) == "mean"
    assert pooling_in(["x", "--port", "0"]) is None
    assert pooling_in(["x", "--pooling"]) is None


def test_other_pooling_than_the_wanted_one_is_refused() -> None:
    require_pooling(None, "mean")
    require_pooling("mean", "mean")
    for found in ("last", None):
        with pytest.raises(VerificationError) as caught:
            require_pooling("mean", found)
        assert caught.value.error_id == "embedder-other-pooling"


class Places:
    """A cache folder, an environment, and files that may be embedders."""

    def __init__(self, root: Path, console: RecordedConsole) -> None:
        self.root = root
        self.console = console
        self.environ = {"OPENCOTI_CACHE_DIR": str(root / "cache"), "PATH": str(root / "bin")}

    def file(self, name: str) -> Path:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"\x7fELF and more")
        path.chmod(0o755)
        return path

    def find(self, **words: Any) -> Any:
        return embedder_launch_options(EmbedderOptions(**words), self.console.console, environ=self.environ)

    def fail(self, **words: Any) -> OpencotiError:
        with pytest.raises(OpencotiError) as caught:
            self.find(**words)
        return caught.value


@pytest.fixture
def places(tmp_path: Path, recorded: RecordedConsole, monkeypatch: pytest.MonkeyPatch) -> Places:
    # What this checkout may have built is not looked at.
    monkeypatch.setattr("opencoti.embedder.options.checkout_root", lambda: None)
    return Places(tmp_path, recorded)


def test_variable_names_the_embedder_and_its_hash_is_that_of_the_pin(places: Places) -> None:
    path = places.file("mine.llamafile")
    places.environ["OPENCOTI_EMBEDDER_LOCAL"] = str(path)
    options = places.find()
    assert (options.binary, options.model, options.purpose, options.arguments) == (
        path,
        None,
        "embedding",
        (),
    )
    assert "not verified" in places.console.text
    pin = places.root / "pin.txt"
    pin.write_text(f"file:/x c1 opencoti-embedder.llamafile {'0' * 64}\n")
    error = places.fail(pin=pin)
    assert (error.error_id, "OPENCOTI_EMBEDDER_LOCAL" in error.hint) == ("hash-mismatch", True)


def test_variable_of_the_engine_is_not_one_of_the_embedder(places: Places) -> None:
    places.environ["OPENCOTI_LLAMAFILE_LOCAL"] = str(places.file("engine"))
    assert places.fail().error_id == "embedder-not-found"


def test_places_that_were_tried_are_told(places: Places) -> None:
    error = places.fail()
    assert error.exit_code == 4
    for part in ("OPENCOTI_EMBEDDER_LOCAL", "no release yet", "checkout", "opencoti-embedder"):
        assert part in error.why


def test_embedder_on_path_is_the_last_resort(places: Places) -> None:
    path = places.file("bin/opencoti-embedder")
    assert places.find().binary == path


def test_model_and_engine_get_the_arguments_of_an_embedder(places: Places) -> None:
    engine = places.file("bin/llama-server")
    model = places.file("m.gguf")
    options = places.find(model=model, parallel=3, context_tokens=6144, arguments=("--threads", "2"))
    assert (options.binary, options.model, options.parallel) == (engine, model, 3)
    assert options.arguments == ("--pooling", "last", "--ctx-size", "6144", "--threads", "2")
    options.require_valid()


@pytest.mark.parametrize("words", [{"dimension": 0}, {"batch_texts": 0}, {"batch_bytes": -1}])
def test_impossible_options_are_refused(places: Places, words: dict[str, int]) -> None:
    assert places.fail(**words).error_id == "bad-embedder-option"
