"""An artifact with a model: its name, its `.args`, its plan, its limits, and what is refused."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.package.arguments import embedder_args, offered_options, reads_models_in_place
from ci.package.artifact import PackageInputs, assemble, list_members
from ci.package.backends import choose_backends, parse_backends
from ci.package.content import model_member
from ci.package.index import INDEX_NAME, parse_index
from ci.package.naming import (
    ASSET_MAX_BYTES,
    PART_BYTES,
    WINDOWS_MAX_BYTES,
    embedder_name,
    release_parts,
    size_warnings,
)
from ci.package.plan import PackagePlan, packed_size, plan_artifact, plan_member
from ci.package.zipwriter import NewMember, write_archive
from opencoti.errors import BuildError, ConfigError, UsageError
from opencoti.manifest import load_manifest
from tests.conftest import RecordedConsole
from tests.unit.package.samples import make_inputs

NAME = "opencoti-embedder-0.5.0-g0c1e570-linux-x86_64.llamafile"
GGUF = b"GGUF\3\0\0\0" + b"w" * 70_000
# As option names stand in an executable; `strengt` has no end of its own, as constants may have none.
OPTIONS = b"\0--embedding\0strengt--pooling\0--ctx-size\0--parallel\0"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "qwen3-embedding-0.6b.gguf"
    path.write_bytes(GGUF)
    return path


def engine(folder: Path, options: bytes = OPTIONS) -> Path:
    path = folder / "engine"
    path.write_bytes(b"\x7fELF" + options)
    return path


def with_model(folder: Path, *models: Path, args: bytes | None = None) -> PackageInputs:
    args = args or f"-m\n/zip/{models[0].name}\n...\n".encode()
    return replace(make_inputs(folder), product="embedder", models=models, args=args)


def test_an_artifact_with_a_model_holds_it_under_its_own_name(
    model: Path, tmp_path: Path, recorded: RecordedConsole
) -> None:
    packaged = assemble(with_model(tmp_path / "in", model), tmp_path / "out", recorded.console)
    assert packaged.artifact.name == NAME
    manifest = load_manifest(packaged.manifest.read_bytes())
    assert (manifest.name, manifest.windows_runnable) == (NAME, False)
    with zipfile.ZipFile(packaged.artifact) as archive:
        assert archive.read(model.name) == GGUF
        assert archive.read(".args") == b"-m\n/zip/qwen3-embedding-0.6b.gguf\n...\n"
    assert not assemble(with_model(tmp_path / "in", model), tmp_path / "out", recorded.console).is_new


def test_a_model_that_the_engine_reads_in_place_is_a_part(
    model: Path, tmp_path: Path, recorded: RecordedConsole
) -> None:
    inputs = replace(with_model(tmp_path / "in", model), parts=frozenset({model.name}))
    packaged = assemble(inputs, tmp_path / "out", recorded.console)
    with zipfile.ZipFile(packaged.artifact) as archive:
        index = parse_index(archive.read(INDEX_NAME), "artifact")
    assert [file.name for file in index.files if file.is_part] == [model.name]
    assert not assemble(inputs, tmp_path / "out", recorded.console).is_new
    assert assemble(replace(inputs, parts=frozenset()), tmp_path / "out", recorded.console).is_new


def test_an_engine_that_reads_models_in_place_is_known_by_its_bytes(tmp_path: Path) -> None:
    assert not reads_models_in_place(engine(tmp_path))
    assert reads_models_in_place(engine(tmp_path, OPTIONS + b"opencoti: model in place: bytes %llu\0"))
    (tmp_path / "engine").write_bytes(b"")
    assert not reads_models_in_place(tmp_path / "engine")


def test_generated_args_hold_what_the_engine_offers(tmp_path: Path) -> None:
    args = embedder_args(engine(tmp_path), lane="elf", model="m.gguf", mmproj="p.gguf")
    assert args.decode().splitlines() == [
        *("-m", "/zip/m.gguf", "--mmproj", "/zip/p.gguf", "--embedding", "--pooling", "last"),
        *("--ctx-size", "16384", "--parallel", "2", "..."),
    ]


def test_options_of_a_patch_appear_with_the_patch(tmp_path: Path) -> None:
    patched = engine(tmp_path, OPTIONS + b"--slot-initial-ctx\0--slot-shrink-idle-ms\0--server\0")
    lines = embedder_args(patched, lane="elf", model="m.gguf").decode().splitlines()
    assert lines[-5:] == ["--slot-initial-ctx", "4096", "--slot-shrink-idle-ms", "30000", "..."]
    assert "--server" not in lines
    assert "--server" in embedder_args(patched, lane="ape", model="m.gguf").decode().splitlines()


def test_an_engine_without_a_needed_option_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        embedder_args(engine(tmp_path), lane="ape", model="m.gguf")
    assert caught.value.error_id == "args-not-offered"
    assert "--server" in caught.value.why
    (tmp_path / "engine").write_bytes(b"")
    assert offered_options(tmp_path / "engine", ["--embedding"]) == frozenset()


@pytest.mark.parametrize("name", ["my model.gguf", ".hidden.gguf", "modèle.gguf", "con.gguf", "a:b.gguf"])
def test_a_model_whose_name_no_member_can_have_is_refused(tmp_path: Path, name: str) -> None:
    """Case B44."""
    (tmp_path / name).write_bytes(GGUF)
    with pytest.raises(ConfigError) as caught:
        model_member(tmp_path / name)
    assert caught.value.error_id == "model-name-refused"


@pytest.mark.parametrize("data", [b"", b"GGU", b"version https://git-lfs.github.com/spec/v1\n"])
def test_a_model_is_a_gguf_whatever_its_name(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "sha256-0123"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        model_member(path)
    assert caught.value.error_id == "model-not-gguf"
    path.write_bytes(GGUF)
    assert model_member(path).name == "sha256-0123"


def test_args_may_only_name_members(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        list_members(with_model(tmp_path / "in", model, args=b"-m\n/zip/other.gguf\n...\n"))
    assert caught.value.error_id == "args-member-missing"
    assert "/zip/other.gguf" in str(caught.value)


def test_a_model_named_like_the_engine_is_refused(tmp_path: Path, recorded: RecordedConsole) -> None:
    twin = tmp_path / "LLAMA-SERVER"
    twin.write_bytes(GGUF)
    with pytest.raises(ConfigError) as caught:
        assemble(with_model(tmp_path / "in", twin), tmp_path / "out", recorded.console)
    assert caught.value.error_id == "member-duplicate"


def test_the_name_has_no_tag_and_the_elf_lane_names_its_system() -> None:
    facts = {"version_string": "opencoti-0.5.0-g0c1e570-c1", "tag": "c1", "arch": "x86_64"}
    assert embedder_name(**facts) == NAME
    assert embedder_name(**facts, lane="ape") == "opencoti-embedder-0.5.0-g0c1e570-x86_64.llamafile"


def test_a_file_is_cut_into_parts_only_above_the_limit_of_an_asset() -> None:
    assert release_parts(ASSET_MAX_BYTES) == ()
    parts = release_parts(ASSET_MAX_BYTES + 1)
    assert [(part.offset, part.size) for part in parts] == [(0, PART_BYTES), (PART_BYTES, 1 << 20)]


@given(st.integers(0, 1 << 36))
def test_parts_cover_a_file_without_gaps(size: int) -> None:
    parts = release_parts(size)
    assert not parts or len(parts) > 1
    end = 0
    for part in parts:
        assert part.offset == end
        assert part.offset % 65536 == 0
        assert 0 < part.size <= ASSET_MAX_BYTES
        end += part.size
    assert end == (size if parts else 0)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (ASSET_MAX_BYTES, []),
        (ASSET_MAX_BYTES + 1, ["2 parts"]),
        (WINDOWS_MAX_BYTES - 1, ["3 parts"]),
        (WINDOWS_MAX_BYTES, ["3 parts", "Windows"]),
    ],
)
def test_size_warnings(size: int, words: list[str]) -> None:
    warnings = size_warnings("x", size, "ape")
    assert len(warnings) == len(words)
    assert all(word in text for word, text in zip(words, warnings, strict=True))


def make_plan(inputs: PackageInputs, path: Path, *, is_built: bool = True) -> PackagePlan:
    planned = [plan_member(member, "here") for member in list_members(inputs)]
    artifact = plan_artifact(
        path,
        planned,
        lane="elf",
        loader_size=inputs.loader.stat().st_size if is_built else None,
        version_string=inputs.version_string,
        entry=inputs.entry.name,
        args=inputs.args,
    )
    return PackagePlan(
        version_string=inputs.version_string,
        is_cpu_only=True,
        artifacts=(artifact,),
        skipped=(),
        notes=("n",),
    )


def test_the_plan_is_what_is_written(model: Path, tmp_path: Path, recorded: RecordedConsole) -> None:
    inputs = with_model(tmp_path / "in", model)
    plan = make_plan(inputs, tmp_path / "out" / inputs.name)
    packaged = assemble(inputs, tmp_path / "out", recorded.console)
    planned = plan.artifacts[0]
    assert (planned.path, planned.size) == (packaged.artifact, packaged.size)
    members = load_manifest(packaged.manifest.read_bytes()).members
    assert [(m.name, m.size) for m in planned.members] == [(m.name, m.size) for m in members]
    assert f"{packaged.size} bytes" in plan.text()
    assert ".args: -m /zip/qwen3-embedding-0.6b.gguf ..." in plan.text()


def test_a_plan_before_the_build_says_what_is_missing(model: Path, tmp_path: Path) -> None:
    inputs = with_model(tmp_path / "in", model)
    plan = make_plan(inputs, tmp_path / inputs.name, is_built=False)
    assert plan.artifacts[0].size is None
    inputs.entry.unlink()
    plan = make_plan(inputs, tmp_path / inputs.name)
    states = {m.name: m.state for m in plan.artifacts[0].members}
    assert states["llama-server"] == "to build"
    assert states[model.name] == "ready"
    assert "size known after the build" in plan.text()


def test_a_plan_above_the_limits_warns_and_lists_parts(tmp_path: Path) -> None:
    sparse = tmp_path / "big.gguf"
    with sparse.open("wb") as file:
        file.write(b"GGUF")
        file.truncate(5 << 30)
    plan = make_plan(with_model(tmp_path / "in", sparse), tmp_path / NAME)
    document = plan.as_dict()["artifacts"]
    assert isinstance(document, list)
    assert [part["offset"] for part in document[0]["parts"]] == [0, PART_BYTES, 2 * PART_BYTES]
    assert len(document[0]["warnings"]) == 2
    assert document[0]["windowsRunnable"] is False
    assert "WARN" in plan.text()


names = st.from_regex(r"[a-z][a-z0-9]{1,12}", fullmatch=True)


@given(st.dictionaries(names, st.binary(max_size=200), max_size=5), st.binary(min_size=1, max_size=100))
def test_the_size_is_computed_to_the_byte(
    tmp_path_factory: pytest.TempPathFactory, members: dict[str, bytes], host: bytes
) -> None:
    folder = tmp_path_factory.mktemp("size")
    (folder / "host").write_bytes(b"#" + host)
    new = [NewMember(name=name, mode=0o644, data=data) for name, data in members.items()]
    written = write_archive(folder / "host", new, folder / "out")
    assert packed_size(1 + len(host), [(m.name, m.mode, len(m.data)) for m in new]) == written.size


def test_no_backend_named_counts_as_cpu_only_while_there_is_none() -> None:
    assert choose_backends(None, built=["cpu"], is_cpu_only=False).is_cpu_only
    assert choose_backends(("cpu",), built=["cpu", "vulkan"], is_cpu_only=False).is_cpu_only
    assert choose_backends(None, built=["cpu", "vulkan"], is_cpu_only=False).gpu == ("vulkan",)
    assert choose_backends(None, built=["cpu", "vulkan"], is_cpu_only=True).gpu == ()


def test_a_missing_backend_is_skipped_if_another_is_there_and_an_error_if_none_is() -> None:
    choice = choose_backends(("rocm", "vulkan"), built=["cpu", "vulkan"], is_cpu_only=False)
    assert (choice.gpu, choice.is_cpu_only) == (("vulkan",), False)
    assert [item.backend for item in choice.skipped] == ["rocm"]
    with pytest.raises(BuildError) as caught:
        choose_backends(("vulkan",), built=["cpu"], is_cpu_only=False)
    assert caught.value.error_id == "no-gpu-backend"
    with pytest.raises(UsageError) as contradiction:
        choose_backends(("vulkan",), built=["cpu"], is_cpu_only=True)
    assert contradiction.value.error_id == "cpu-only-contradicted"


@pytest.mark.parametrize(
    ("text", "error_id"),
    [("cuda", "backend-unknown"), ("", "backend-unknown"), ("cuda12,cuda13", "cuda-twice")],
)
def test_bad_backend_lists_are_refused(text: str, error_id: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_backends(text)
    assert caught.value.error_id == error_id
    assert parse_backends("cpu, vulkan,cpu") == ("cpu", "vulkan")
