"""Source pins: both forms, and every way to get one wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.pins import GitOrigin, SdistOrigin, SourcePin
from opencoti.errors import ConfigError

COMMIT = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"
DIGEST = "8" * 64


def load(tmp_path: Path, text: str) -> SourcePin:
    path = tmp_path / "llama.cpp.txt"
    path.write_text(text)
    return SourcePin.load(path)


def test_sdist_pin(tmp_path: Path) -> None:
    pin = load(
        tmp_path,
        f"# why\nsdist:some-project==1.2.3#vendor/tree {COMMIT} 0.5.0 sha256={DIGEST} tree={'a' * 40}\n",
    )
    assert pin.origin == SdistOrigin(
        project="some-project", version="1.2.3", folder="vendor/tree", sha256=DIGEST
    )
    assert pin.version == "0.5.0-g0c1e570"
    assert pin.tree == "a" * 40
    assert pin.name == "llama.cpp"


def test_git_pin(tmp_path: Path) -> None:
    pin = load(tmp_path, f"https://example.org/llama.cpp {COMMIT} b9999")
    assert pin.origin == GitOrigin(url="https://example.org/llama.cpp")
    assert pin.tree is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "one two",
        f"https://example.org/x {COMMIT} b1\nhttps://example.org/x {COMMIT} b2",
        "https://example.org/x 0c1e570 b1",
        f"https://example.org/x {COMMIT.upper()} b1",
        f"https://example.org/x {COMMIT} bad/tag",
        f"http://example.org/x {COMMIT} b1",
        f"https://example.org/x {COMMIT} b1 colour=blue",
        f"https://example.org/x {COMMIT} b1 tree=abc",
        f"sdist:p==1#f {COMMIT} 1.0",
        f"sdist:p==1#f {COMMIT} 1.0 sha256={DIGEST.replace('8', 'X')}",
        f"sdist:p==1#../f {COMMIT} 1.0 sha256={DIGEST}",
        f"sdist:p==1#/f {COMMIT} 1.0 sha256={DIGEST}",
    ],
)
def test_malformed_pin_is_refused_and_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"llama\.cpp\.txt") as caught:
        load(tmp_path, text)
    assert caught.value.error_id == "pin-malformed"


def test_missing_pin_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.txt"):
        SourcePin.load(tmp_path / "nothing.txt")


def test_pin_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "llama.cpp.txt"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError) as caught:
        SourcePin.load(path)
    assert caught.value.error_id == "pin-malformed"
