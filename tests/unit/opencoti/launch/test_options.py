"""What a launch accepts, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from opencoti.errors import UsageError
from opencoti.launch.options import LaunchOptions, model_bytes, parse_gpu


def refused(options: LaunchOptions) -> str:
    with pytest.raises(UsageError) as caught:
        options.require_valid()
    return caught.value.error_id


@pytest.mark.parametrize(
    ("word", "gpu"),
    [
        ("AUTO", "auto"),
        ("cuda", "nvidia"),
        ("hip", "amd"),
        ("vk", "vulkan"),
        ("off", "disable"),
        ("metal", "apple"),
    ],
)
def test_gpu_words_of_all_kinds_are_known(word: str, gpu: str) -> None:
    assert parse_gpu(word) == gpu


def test_unknown_gpu_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        parse_gpu("nvida")
    assert caught.value.error_id == "gpu-unknown"
    assert "'nvidia'" in caught.value.why


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.local"])
def test_other_machines_need_permission(host: str) -> None:
    assert refused(LaunchOptions(host=host)) == "remote-not-allowed"
    LaunchOptions(host=host, allow_remote=True).require_valid()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_this_machine_needs_none(host: str) -> None:
    LaunchOptions(host=host).require_valid()


@pytest.mark.parametrize(
    "word",
    ["--host", "--host=0.0.0.0", "--port", "-m", "--model", "--gpu", "-dev", "--api-key", "--slot-save-path"],
)
def test_words_that_the_launcher_decides_are_not_passed_through(word: str) -> None:
    assert refused(LaunchOptions(arguments=(word, "x"))) == "engine-argument-reserved"


@pytest.mark.parametrize(
    "options",
    [
        LaunchOptions(port=-1),
        LaunchOptions(port=70000),
        LaunchOptions(name="../x"),
        LaunchOptions(timeout_s=0),
        LaunchOptions(parallel=0),
        LaunchOptions(host="/run/x.sock"),
        LaunchOptions(host="a b"),
        LaunchOptions(arguments=("a\0b",)),
        LaunchOptions(pass_env=("A=B",)),
        LaunchOptions(max_log_bytes=1),
        LaunchOptions(model=Path("not-utf-8-\udcff.gguf")),
        LaunchOptions(alias="a\0b"),
        LaunchOptions(env={"A=B": "x"}),
        LaunchOptions(env={"": "x"}),
        LaunchOptions(env={"A": "x\0y"}),
    ],
)
def test_values_out_of_range_are_refused(options: LaunchOptions) -> None:
    assert refused(options) == "bad-launch-option"


def test_missing_model_and_folder_are_told_apart(tmp_path: Path) -> None:
    assert refused(LaunchOptions(model=tmp_path / "x.gguf")) == "model-not-found"
    with pytest.raises(UsageError) as caught:
        LaunchOptions(model=tmp_path).require_valid()
    assert caught.value.why == "it is a folder"


def test_time_to_be_ready_grows_with_all_parts_of_a_model(tmp_path: Path) -> None:
    for number in (1, 2):
        with open(tmp_path / f"m-0000{number}-of-00002.gguf", "wb") as file:
            file.truncate(250_000_000)
    model = tmp_path / "m-00001-of-00002.gguf"
    assert model_bytes(model) == 500_000_000
    assert LaunchOptions(model=model).ready_timeout_s == 80
    assert LaunchOptions(model=model, timeout_s=5).ready_timeout_s == 5
