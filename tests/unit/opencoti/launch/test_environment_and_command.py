"""What an engine is given: variables and words."""

from __future__ import annotations

from pathlib import Path

import pytest

from opencoti.launch.command import engine_arguments
from opencoti.launch.environment import EXTRACT_VARIABLE, MARK_VARIABLE, engine_environment
from opencoti.launch.options import LaunchOptions


def environment(environ: dict[str, str], **words: object) -> dict[str, str]:
    given: dict[str, object] = {"mark": "m", "home": "/home/me", "fallback": "/f"} | words
    return engine_environment(environ, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        "LLAMA_ARG_HOST",
        "LLAMA_API_KEY",
        "LLAMA_SERVER_CHILD_MODE",
        "GGML_BACKEND_PATH",
        "LLAMAFILE_GPU_PROBE_DSO",
        "AIP_MODE",
        "LD_PRELOAD",
        "LD_AUDIT",
        "OPENCOTI_SIGNING_KEY",
    ],
)
def test_variables_that_change_the_engine_are_held_back_unless_asked(name: str) -> None:
    environ = {name: "x", "PATH": "/bin"}
    assert name not in environment(environ)
    assert environment(environ, pass_env=(name,))[name] == "x"
    assert environment(environ, pass_env=(name[:3] + "*",))[name] == "x"


def test_the_rest_of_the_environment_stays() -> None:
    environ = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1", "LD_LIBRARY_PATH": "/driver", "HOME": "/h"}
    assert environment(environ) == {**environ, MARK_VARIABLE: "m"}


def test_variables_that_are_set_win_over_what_is_held_back() -> None:
    assert environment({}, env={"GGML_X": "1"})["GGML_X"] == "1"


def test_home_is_filled_in_case_b51() -> None:
    assert environment({})["HOME"] == "/home/me"
    assert environment({"HOME": ""})["HOME"] == "/home/me"
    assert environment({}, home=None)[EXTRACT_VARIABLE] == "/f"
    assert environment({EXTRACT_VARIABLE: "/mine"}, home=None)[EXTRACT_VARIABLE] == "/mine"


def words(options: LaunchOptions, *, devices: tuple[str, ...] = (), for_ape: bool = False) -> list[str]:
    return engine_arguments(options, alias="a", devices=devices, slots_folder=Path("/slots"), for_ape=for_ape)


def test_address_comes_last_so_that_no_other_word_wins() -> None:
    given = words(LaunchOptions(arguments=("--ctx-size", "99"), port=5))
    assert given[-6:] == ["--ctx-size", "99", "--host", "127.0.0.1", "--port", "5"]


def test_web_pages_of_other_machines_are_kept_out() -> None:
    given = words(LaunchOptions())
    assert given[given.index("--cors-origins") + 1] == "localhost"


def test_gpu_words_of_the_two_lanes() -> None:
    assert words(LaunchOptions(gpu="cuda"), for_ape=True)[-6:-4] == ["--gpu", "nvidia"]
    assert "--device CUDA0,CUDA1" in " ".join(words(LaunchOptions(gpu="cuda"), devices=("CUDA0", "CUDA1")))
    assert "--device none" in " ".join(words(LaunchOptions(gpu="disable")))
    assert "--device" not in words(LaunchOptions())


def test_isolation_turns_the_shared_cache_off_case_b56() -> None:
    text = " ".join(words(LaunchOptions(is_isolated=True, parallel=2)))
    for part in ("--cache-ram 0", "--no-cache-idle-slots", "--no-kv-unified", "--slot-save-path /slots"):
        assert part in text
    assert "--parallel 2" in text
    assert "--cache-ram" not in words(LaunchOptions())
