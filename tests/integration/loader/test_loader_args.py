"""`.args`: how the file's arguments and the user's become one list."""

from __future__ import annotations

import pytest

from tests.integration.loader.artifacts import Bench


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        ("-a\n...\n-b\n", ["u", "v"], ["-a", "u", "v", "-b"]),
        ("-a\n...\n-b\n", [], ["-a", "-b"]),
        ("-a\n-b\n", [], ["-a", "-b"]),
        ("-a\n-b\n", ["u"], ["u"]),
        ("-a\n-b", [], ["-a", "-b"]),
        ("...", ["u"], ["u"]),
        ("...\n-z", ["u"], ["u", "-z"]),
        ("-z\n...", ["u"], ["-z", "u"]),
        ("", ["u"], ["u"]),
        ("\n\n-a\n\n", [], ["-a"]),
        ("two words\n  kept \n", [], ["two words", "  kept "]),
        ("a...\n....\n", ["u"], ["u"]),
        ("ü\n...\n", ["é"], ["ü", "é"]),
        ("...\n", ["..."], ["..."]),
    ],
)
def test_merge_rules(bench: Bench, text: str, given: list[str], expected: list[str]) -> None:
    done = bench.start(bench.pack(bench.files(__args=text.encode())), *given)
    assert done.all("arg")[1:] == expected


def test_zip_paths_become_paths_of_the_unpacked_files(bench: Bench) -> None:
    files = bench.files(__args=b"-m\n/zip/tiny.gguf\n--at=/zip/tiny.gguf\n...\n", tiny__gguf=b"GGUF")
    done = bench.start(bench.pack(files), "/zip/tiny.gguf", "/zip/other.gguf", "/zip/.args")

    model = str(bench.folder / "tiny.gguf")
    assert done.all("arg")[1:] == [
        "-m", model, "--at=/zip/tiny.gguf", model, "/zip/other.gguf", "/zip/.args",
    ]  # fmt: skip
    assert not (bench.folder / ".args").exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"-a\r\n-b\r\n", "holds a NUL or a carriage return"),
        (b"-a\0-b\n", "holds a NUL or a carriage return"),
        (b"...\n...\n", "has two lines ..."),
        (b"-m\n/zip/other.gguf\n", "names /zip/other.gguf, which is not in it"),
        (b"-m\n/zip/../x\n", "names /zip/../x, which is not in it"),
        (b"x" * (1 << 20) + b"\n", "more than allowed"),
    ],
)
def test_unusable_args_are_refused(bench: Bench, text: bytes, reason: str) -> None:
    done = bench.start(bench.pack(bench.files(__args=text)))
    assert done.code == 6
    assert reason in done.stderr
    assert done.stdout == b""


def test_changed_args_are_refused(bench: Bench) -> None:
    data = bench.pack(bench.files(__args=b"--host\n127.0.0.1\n")).read_bytes()
    done = bench.start(bench.write(data.replace(b"127.0.0.1", b"0.0.0.0.0")))
    assert done.code == 6
    assert "SHA-256 of member .args" in done.stderr
