"""Choices, questions and what is written down. The whole flow runs in tests/integration/setup."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from opencoti.console import Console
from opencoti.errors import OpencotiError
from opencoti.models.choice import recommend
from opencoti.models.table import load_table
from opencoti.ollama.store import Store
from opencoti.setup import sources
from opencoti.setup.asking import FirstOption, Option, Terminal
from opencoti.setup.config import (
    Config,
    FirstAnswer,
    ModelChoice,
    Progress,
    forget_progress,
    load_config,
    load_progress,
    save,
)
from tests.fakes.ollama_store import FakeStore, tiny_gguf

TABLE = load_table()
FOUND = recommend(TABLE, 12 << 30)
OPTIONS = [Option(key="a", text="first"), Option(key="b", text="[b]second[/b]")]


def test_nobody_is_asked_and_the_first_is_taken() -> None:
    asker = FirstOption()
    assert asker.choose("?", OPTIONS).key == "a"
    assert (asker.confirm("?", default=True), asker.confirm("?", default=False)) == (True, False)


def test_questions_go_to_their_stream_and_wrong_answers_are_asked_again() -> None:
    output = io.StringIO()
    asker = Terminal(output, io.StringIO("seven\n3\n2\n"))
    assert asker.choose("Which?", OPTIONS).key == "b"
    assert "1. first" in output.getvalue()
    assert "[b]second[/b]" in output.getvalue()  # what a store says is no markup
    assert Terminal(output, io.StringIO("\n")).choose("Which?", OPTIONS).key == "a"
    assert Terminal(output, io.StringIO("n\n")).confirm("Sure?", default=True) is False
    assert Terminal(output, io.StringIO("/a b.gguf\n")).ask_text("Path") == "/a b.gguf"


def test_recommended_quant_that_ollama_has_is_proposed_first(tmp_path: Path) -> None:
    fake = FakeStore(tmp_path)
    fake.add("registry.ollama.ai/library/llama3/latest")
    stores = (Store(root=fake.root, reason="test"),)
    keys = [option.key for option in sources.options(TABLE, FOUND, stores)]
    assert keys[:2] == ["quant:IQ4_XS", "ollama:llama3:latest"]
    assert keys[-1] == "file:"
    assert {f"quant:{quant.name}" for quant in TABLE.quants} <= set(keys)
    fake.add("registry.ollama.ai/mannix/gemma4-98e-v5-coder/IQ4_XS")
    first = sources.options(TABLE, FOUND, stores)[0]
    assert first.key == "ollama:mannix/gemma4-98e-v5-coder:IQ4_XS"


def test_no_store_is_no_obstacle(tmp_path: Path) -> None:
    assert sources.ollama_names((Store(root=tmp_path / "absent", reason="test"),)) == []


def test_name_that_cannot_be_written_down_is_refused(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"not-utf-8-\xff.gguf")
    path.write_bytes(tiny_gguf())
    with pytest.raises(OpencotiError) as caught:
        sources.obtain(f"file:{path}", TABLE, (), sources.DownloadWish(), Console(quiet=True), environ={})
    assert caught.value.error_id == "bad-launch-option"


def model_of(path: Path) -> ModelChoice:
    return ModelChoice.of_file(path, origin="file", name=path.name, sha256=None)


def test_documents_are_read_back_and_private(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    config = Config(
        model=model_of(model),
        arguments=("--ctx-size", "2048"),
        test=FirstAnswer(answer="hello", tokens=1, seconds=0.5),
    )
    folder = tmp_path / "config"
    path = save(config, folder)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_config(folder) == config
    save(Progress(source="quant:IQ3_M", model=config.model), folder)
    assert load_progress(folder).source == "quant:IQ3_M"
    forget_progress(folder)
    assert load_progress(folder) == Progress()


def test_a_changed_model_is_noticed(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    known = model_of(model)
    assert known.is_unchanged()
    model.write_bytes(b"GGUF2")
    assert not known.is_unchanged()
    model.unlink()
    assert not known.is_unchanged()


def test_damaged_configuration_is_an_error_and_damaged_progress_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"schema": "opencoti.config/9"}')
    (tmp_path / "setup.json").write_text("{half")
    with pytest.raises(OpencotiError) as caught:
        load_config(tmp_path)
    assert (caught.value.error_id, caught.value.exit_code) == ("config-malformed", 3)
    assert load_progress(tmp_path) == Progress()
    assert load_config(tmp_path / "absent") is None
