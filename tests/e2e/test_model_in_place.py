"""Models that lie in another file, or under a name without an extension (patch 0005)."""

from __future__ import annotations

import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from ci.paths import Layout
from ci.smoke.gguf_file import Value, write_gguf
from tests.e2e.conftest import EngineArtifact
from tests.e2e.models import long_model
from tests.e2e.running import spawned, started

pytestmark = pytest.mark.engine

_OFFSET: Final = 1 << 16
_PROMPT: Final = list(range(1000, 1040))
_LOCAL_HEADER: Final = 30
_ANY_EXTRA: Final = 0xFFFF
_UINT16: Final = 2  # number of GGUF's value type


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The engine, a model by itself, and a folder to put others in."""

    engine: Path
    model: Path
    root: Path

    @property
    def size(self) -> int:
        return self.model.stat().st_size

    def write(self, name: str, *pieces: bytes) -> Path:
        """Write a file that holds these pieces one after the other."""
        path = self.root / name
        path.write_bytes(b"".join(pieces))
        return path

    def embedded(self, name: str) -> Path:
        """Write a file with the model at `_OFFSET`, and more behind it."""
        return self.write(name, b"x" * _OFFSET, self.model.read_bytes(), b"y" * 10000)

    def refusal(self, model: str) -> str:
        """Return why the engine does not take this model."""
        with spawned(self.engine, "-m", model, home=self.root) as server:
            assert server.wait_for_end() == 1
            return server.wait_for(r"opencoti: cannot use the model [^:]*: (.*)")[0][1]


@dataclass(frozen=True, kw_only=True)
class Served:
    """What an engine with some model did."""

    tokens: list[int]
    names: list[str]
    mapped: list[str]


def serve(bench: Bench, model: str, *words: str) -> Served:
    with started(bench.engine, "-m", model, "-c", "4096", *words, home=bench.root) as server:
        return Served(
            tokens=server.complete(_PROMPT, 8).data["tokens"],
            names=[item["id"] for item in server.ask("/v1/models").data["data"]],
            mapped=server.mapped_files,
        )


@pytest.fixture(scope="module")
def bench(artifact: EngineArtifact, real_layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    root = tmp_path_factory.mktemp("in-place")
    return Bench(engine=artifact.path, model=long_model(real_layout, root / "tiny.gguf"), root=root)


@pytest.fixture(scope="module")
def expected(bench: Bench) -> list[int]:
    """What the model says when it is a file of its own."""
    return serve(bench, str(bench.model)).tokens


def archive(bench: Bench, name: str, *, method: int = zipfile.ZIP_STORED) -> Path:
    """Write a zip with the model as an aligned member, and something small after it."""
    path = bench.root / name
    member = zipfile.ZipInfo("model.gguf")
    padding = _OFFSET - _LOCAL_HEADER - len(member.filename) - 4
    member.extra = struct.pack("<2H", _ANY_EXTRA, padding) + bytes(padding)
    member.compress_type = method
    with zipfile.ZipFile(path, "w") as target:
        target.writestr(member, bench.model.read_bytes())
        target.writestr("small", b"z" * 100)
    return path


def test_a_name_without_extension_is_a_model(bench: Bench, expected: list[int]) -> None:
    """Ollama names its blobs `sha256-<digits>`."""
    blob = bench.write("sha256-0123", bench.model.read_bytes())
    assert serve(bench, str(blob)).tokens == expected


def test_a_model_at_an_offset_is_mapped_where_it_lies(bench: Bench, expected: list[int]) -> None:
    blob = bench.embedded("blob")
    served = serve(bench, f"{blob}#offset={_OFFSET},size={bench.size}")
    assert served.tokens == expected
    assert set(served.mapped) == {str(blob)}
    assert serve(bench, f"{blob}#offset={_OFFSET}", "--load-mode", "none").tokens == expected


def test_a_model_behind_four_gibibytes_is_found(bench: Bench, expected: list[int]) -> None:
    blob = bench.root / "far"
    with blob.open("wb") as file:
        file.seek(5 << 30)  # a hole: it takes no space
        file.write(bench.model.read_bytes())
    assert serve(bench, f"{blob}#offset={5 << 30}").tokens == expected


def test_a_member_of_an_archive_is_served_under_its_own_name(bench: Bench, expected: list[int]) -> None:
    served = serve(bench, f"{archive(bench, 'a.zip')}!/model.gguf")
    assert served.tokens == expected
    assert [Path(name).name for name in served.names] == ["model.gguf"]
    assert set(served.mapped) == {str(bench.root / "a.zip")}


def test_a_file_with_such_a_name_is_a_plain_file(bench: Bench, expected: list[int]) -> None:
    odd = bench.write("odd#offset=5", bench.model.read_bytes())
    assert serve(bench, str(odd)).tokens == expected


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ("#offset=65537", "no multiple of the page size"),
        ("#offset=99999999", "lies past the end of the file"),
        ("#offset=18446744073709551617", "is not a number of bytes"),
        ("#offset=-1", "is not a number of bytes"),
        ("#offset=", "names no file, or no part of it"),
        ("#offset=0,size=", "the size is missing"),
        ("#offset=0", "there is no GGUF at byte 0"),
        ("#offset=65536,size=4096", "it is cut off"),
        ("#offset=65536,size=99999999", "end past the end of the file"),
        ("!/model.gguf", "not a zip archive"),
        ("!/", "names no file, or no part of it"),
    ],
)
def test_a_part_that_is_none_is_refused_with_the_reason(bench: Bench, part: str, why: str) -> None:
    assert why in bench.refusal(f"{bench.embedded('blob')}{part}")


def test_a_file_that_became_shorter_is_refused(bench: Bench) -> None:
    blob = bench.write("short", b"x" * _OFFSET, bench.model.read_bytes()[:-1000])
    assert "it is cut off" in bench.refusal(f"{blob}#offset={_OFFSET}")


def test_no_file_and_no_plain_file_are_refused(bench: Bench) -> None:
    assert "No such file" in bench.refusal(f"{bench.root / 'none'}#offset=0")
    assert "not a regular file" in bench.refusal(f"{bench.root}#offset=0")


def test_an_archive_without_such_a_member_is_refused(bench: Bench) -> None:
    path = archive(bench, "b.zip")
    assert "no such member" in bench.refusal(f"{path}!/other.gguf")
    assert "no multiple of the page size" in bench.refusal(f"{path}!/small")
    packed = archive(bench, "c.zip", method=zipfile.ZIP_DEFLATED)
    assert "must be stored" in bench.refusal(f"{packed}!/model.gguf")


def test_a_damaged_directory_is_refused(bench: Bench) -> None:
    data = bytearray(archive(bench, "d.zip").read_bytes())
    start = struct.unpack_from("<I", data, len(data) - 6)[0]
    struct.pack_into("<I", data, start + 42, len(data) * 2)  # where the member's own header is
    assert "points outside the file" in bench.refusal(f"{bench.write('e.zip', bytes(data))}!/model.gguf")
    assert "something follows" in bench.refusal(f"{bench.write('f.zip', bytes(data), b'!')}!/model.gguf")


def test_a_piece_of_a_split_model_is_refused(bench: Bench) -> None:
    piece = bench.root / "piece"
    metadata = {
        "general.architecture": Value.string("qwen2"),
        "split.count": Value(kind=_UINT16, raw=b"\2\0"),
    }
    with piece.open("wb") as file:
        write_gguf(file, metadata, [])
    blob = bench.write("split", b"x" * _OFFSET, piece.read_bytes())
    assert "one piece of a split model" in bench.refusal(f"{blob}#offset={_OFFSET}")
