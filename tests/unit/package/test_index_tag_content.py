"""The embedded index, OPENCOTI_TAG, `.args` and the model checks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.package.content import check_args, check_models
from ci.package.index import IndexedFile, make_index, parse_index, render_index
from ci.package.tag import read_tag
from ci.package.zipwriter import NewMember
from opencoti.errors import ConfigError, OpencotiError

DIGEST = "ab" * 32
TEXT = f"""opencoti-index 1
version opencoti-0.5.0-g0c1e570-c1
entry llama-server
file {DIGEST} 21 0644 .args
file {DIGEST} 120004 0755 llama-server
"""


def error_id(action: Callable[[], object]) -> str | None:
    """Return the id of the expected error that `action` raises; any other exception goes on."""
    try:
        action()
    except OpencotiError as error:
        return error.error_id
    return None


def test_the_index_has_the_form_that_the_loader_reads() -> None:
    files = [
        IndexedFile(name="llama-server", sha256=DIGEST, size=120004, mode="0755"),
        IndexedFile(name=".args", sha256=DIGEST, size=21, mode="0644"),
    ]
    index = make_index(version="opencoti-0.5.0-g0c1e570-c1", entry="llama-server", files=files)
    assert render_index(index) == TEXT.encode()
    assert parse_index(TEXT.encode(), "sample") == index


def test_a_part_is_a_line_of_its_own_kind() -> None:
    files = [
        IndexedFile(name="run", sha256=DIGEST, size=1, mode="0755"),
        IndexedFile(name="m.gguf", sha256=DIGEST, size=2, mode="0644", is_part=True),
    ]
    index = make_index(version="opencoti-1-c1", entry="run", files=files)
    text = render_index(index)
    assert text.decode().splitlines()[3:] == [f"part {DIGEST} 2 0644 m.gguf", f"file {DIGEST} 1 0755 run"]
    assert parse_index(text, "sample") == index


@pytest.mark.parametrize(
    "line", [f"part {DIGEST} 2 0755 m.gguf", f"part {DIGEST} 2 0644 .gguf", f"piece {DIGEST} 2 0644 m.gguf"]
)
def test_what_cannot_be_a_part_is_refused(line: str) -> None:
    text = f"opencoti-index 1\nversion opencoti-1-c1\nentry run\n{line}\nfile {DIGEST} 1 0755 run\n"
    assert error_id(partial(parse_index, text.encode(), "sample")) == "index-malformed"


names = st.from_regex(r"[A-Za-z][A-Za-z0-9._+-]{0,20}[a-z0-9]", fullmatch=True)


@given(st.lists(st.tuples(names, st.integers(0, 2**63 - 1)), max_size=8))
def test_every_index_survives_a_round_trip(files: list[tuple[str, int]]) -> None:
    unique = {name.casefold(): (name, size) for name, size in files if len(name) > 5}
    listed = [IndexedFile(name="run", sha256=DIGEST, size=1, mode="0755")]
    listed += [IndexedFile(name=n, sha256=DIGEST, size=s, mode="0644") for n, s in unique.values()]
    index = make_index(version="opencoti-1-c1", entry="run", files=listed)
    assert parse_index(render_index(index), "sample") == index


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("index 1", "index 2"),
        ("version opencoti-0.5.0-g0c1e570-c1", "version "),
        ("version opencoti-0.5.0-g0c1e570-c1", "version ../../x"),
        ("entry llama-server", "entry missing"),
        ("entry llama-server", "entry .args"),
        ("0755 llama", "0777 llama"),
        ("21 0644", "021 0644"),
        ("21 0644", "-1 0644"),
        ("21 0644", "99999999999999999999 0644"),
        ("21 0644", "9223372036854775808 0644"),
        (".args", "../args"),
        (".args", "a/b"),
        (".args", "CON"),
        (".args", "zzz"),
        (".args", "LLAMA-SERVER"),
        (DIGEST, DIGEST.upper()),
        (DIGEST, DIGEST[:-1]),
        ("\n", "\r\n"),
        ("21 0644 .args\n", "21 0644 .args\n\n"),
        ("0755 llama-server\n", "0755 llama-server"),
        (".args", "\u00e4rgs"),
    ],
)
def test_a_malformed_index_is_refused(old: str, new: str) -> None:
    """Case B44 (names)."""
    assert old in TEXT
    with pytest.raises(ConfigError) as caught:
        parse_index(TEXT.replace(old, new).encode(), "sample")
    assert caught.value.error_id == "index-malformed"


@given(st.binary(max_size=400))
def test_any_bytes_raise_known_errors_only(data: bytes) -> None:
    for sample in (data, TEXT.encode() + data):
        assert error_id(partial(parse_index, sample, "sample")) in {None, "index-malformed"}


@pytest.mark.parametrize("text", ["c1\n", "# the next cut\n\n  c1  \n# end\n", "c1"])
def test_a_tag_is_read_past_comments(tmp_path: Path, text: str) -> None:
    path = tmp_path / "OPENCOTI_TAG"
    path.write_text(text)
    assert read_tag(path) == "c1"


@pytest.mark.parametrize(
    "text", ["", "# only\n", "c1\nc2\n", "c1 c2", "C1", "-c1", "c" * 33, "a/b", "c1.", "\u0663", "\0"]
)
def test_a_malformed_tag_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "OPENCOTI_TAG"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_tag(path)
    assert caught.value.error_id == "tag-malformed"
    assert caught.value.exit_code == 3


def test_a_missing_tag_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="OPENCOTI_TAG") as caught:
        read_tag(tmp_path / "OPENCOTI_TAG")
    assert caught.value.error_id == "tag-missing"


def gguf(name: str) -> NewMember:
    return NewMember(name=name, mode=0o644, data=b"GGUF\3\0\0\0")


def test_two_models_need_an_argument_that_chooses() -> None:
    """Case B23: both are listed."""
    models = [gguf("b.gguf"), gguf("A.GGUF")]
    names = [model.name for model in models]
    for args in (None, b"-v\n...\n"):
        with pytest.raises(ConfigError, match=r"A\.GGUF, b\.gguf") as caught:
            check_models(models, names, args)
        assert caught.value.error_id == "models-ambiguous"
    check_models(models, names, b"-m\n/zip/b.gguf\n...\n")
    check_models(models[:1], names[:1], None)


@pytest.mark.parametrize("data", [b"", b"GGU", b"version https://git-lfs", b"gguf"])
def test_a_model_that_is_none_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        check_models([NewMember(name="m.gguf", mode=0o644, path=path)], ["m.gguf"], None)
    assert caught.value.error_id == "model-not-gguf"


def test_good_args_pass_unchanged() -> None:
    data = "--alias\nüber model\n...\n".encode()
    assert check_args(data, "sample") == data


@given(st.binary(max_size=120))
def test_any_bytes_as_args_are_taken_whole_or_refused(data: bytes) -> None:
    """What is taken reads the same for everyone: as lines that are neither empty nor split otherwise."""
    found = error_id(lambda: check_args(data, "sample"))
    assert found in {None, "args-malformed"}
    if found is None:
        lines = data.decode().removesuffix("\n").split("\n")
        assert "".join(f"{line}\n" for line in lines).encode() == data
        assert "" not in lines
        assert lines.count("...") <= 1
        assert not set("\0\r") & set(data.decode())
