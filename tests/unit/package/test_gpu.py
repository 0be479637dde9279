"""GPU backends of an artifact: which go in, why others stay out, and what is embedded with them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from ci.backend_records import RECORD, BackendRecord, read_built
from ci.backends import borrowed_symbols
from ci.build import backend_folder
from ci.context import Context
from ci.package.backends import choose_backends
from ci.package.bundle import bundle_of
from ci.package.gpu import read_gpu
from ci.paths import Layout
from ci.stages.gpu import gpu_stage
from ci.toolchains.lockfile import LockedFile, lock_text
from ci.toolchains.recipe import Recipe
from ci.toolchains.stubs import stub_symbols
from ci.toolchains.table import Backend, load_table
from opencoti.document import render_document
from opencoti.errors import BuildError, ConfigError, OpencotiError, UsageError
from opencoti.hashing import sha256_bytes, sha256_file

TREE = "a" * 40
LIBRARY = b"\x7fELF of vulkan"


def stage_key(context: Context) -> str:
    backend = load_table(context.layout.table).backend("vulkan")
    stage = gpu_stage(backend, arch="x86_64", targets=(), has_flash_attention=True, source_tree=TREE)
    return stage.key(Recipe.load(context.layout.containers / "vulkan").image_id)


def record(context: Context, **changes: object) -> Path:
    """Put a built backend into its folder."""
    folder = backend_folder(context.layout, "vulkan", "1.0", arch="x86_64")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "libggml-vulkan.so").write_bytes(LIBRARY)
    fields: dict[str, object] = {
        "backend": "vulkan",
        "arch": "x86_64",
        "source_tree": TREE,
        "library": "libggml-vulkan.so",
        "sha256": sha256_bytes(LIBRARY),
        "engine": "docker",
        "toolchain": "vulkan",
        "toolchain_id": "b" * 64,
        "key": stage_key(context),
    }
    made = BackendRecord.model_validate(fields | changes)
    (folder / RECORD).write_bytes(render_document(made))
    return folder


def read(context: Context, tree: str | None = TREE) -> tuple[set[str], dict[str, str]]:
    found, reasons = read_built(context, load_table(context.layout.table), "1.0", arch="x86_64", tree=tree)
    return set(found), reasons


def test_a_backend_counts_while_source_and_bytes_are_those_of_its_record(context: Context) -> None:
    assert read(context) == (set(), dict.fromkeys(("vulkan", "cuda13", "cuda12", "rocm"), "it was not built"))
    folder = record(context)
    assert read(context)[0] == {"vulkan"}
    assert "another source" in read(context, "c" * 40)[1]["vulkan"]
    assert read(context, None)[0] == {"vulkan"}
    (folder / "libggml-vulkan.so").write_bytes(b"something else")
    assert "is not the file that was built" in read(context)[1]["vulkan"]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": "opencoti.other/1"}', '{"schema": "opencoti.backend-build/1"}']
)
def test_a_record_that_cannot_be_read_is_a_reason_and_no_crash(text: str, context: Context) -> None:
    (record(context) / RECORD).write_text(text)
    assert "cannot be read" in read(context)[1]["vulkan"]


def test_a_library_name_that_leads_elsewhere_is_refused(context: Context) -> None:
    record(context, library="../../secret")
    assert "tells of another library" in read(context)[1]["vulkan"]


@pytest.mark.parametrize(
    "changes", [{"backend": "cuda13"}, {"arch": "aarch64"}, {"library": "libggml-cpu-x64.so"}]
)
def test_a_record_of_something_else_is_refused(changes: dict[str, object], context: Context) -> None:
    folder = record(context, **changes)
    (folder / "libggml-cpu-x64.so").write_bytes(LIBRARY)
    found, reasons = read(context)
    assert found == set()
    assert "tells of another library" in reasons["vulkan"]


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("toolchains.toml", '["-DGGML_VULKAN=ON"]', '["-DGGML_VULKAN=ON", "-DOTHER=1"]'),
        ("vulkan/debs.lock", 'version = "2025.2-1"', 'version = "2025.2-2"'),
    ],
)
def test_a_backend_that_would_be_built_otherwise_now_is_left_out(
    file: str, old: str, new: str, context: Context
) -> None:
    record(context)
    path = context.layout.containers / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert "have changed since" in read(context)[1]["vulkan"]


def test_of_two_generations_of_cuda_the_newer_goes_in_or_the_one_of_the_flavor() -> None:
    built = ["cpu", "vulkan", "cuda13", "cuda12"]
    choice = choose_backends(None, built=built, is_cpu_only=False)
    assert choice.gpu == ("vulkan", "cuda13")
    assert [(item.backend, "one generation" in item.reason) for item in choice.skipped] == [("cuda12", True)]
    assert choose_backends(None, built=built, is_cpu_only=False, flavor="cuda12").gpu == ("vulkan", "cuda12")
    assert choose_backends(["cpu", "cuda12"], built=built, is_cpu_only=False).gpu == ("cuda12",)


@pytest.mark.parametrize(
    ("asked", "built", "is_cpu_only", "error_id", "code"),
    [
        (None, ["cpu", "cuda13"], False, "flavor-not-built", 5),
        (["cpu", "cuda12"], ["cpu", "cuda13"], False, "flavor-not-built", 5),
        (["cuda12", "vulkan"], ["cpu", "vulkan"], False, "flavor-not-built", 5),
        (None, ["cpu"], False, "flavor-not-built", 5),
        (["cpu", "vulkan"], ["cpu", "vulkan", "cuda12"], False, "flavor-contradicted", 2),
        (["cuda13"], ["cpu", "cuda13", "cuda12"], False, "flavor-contradicted", 2),
        (None, ["cpu", "cuda12"], True, "flavor-contradicted", 2),
    ],
)
def test_an_artifact_named_after_a_generation_of_cuda_holds_it(
    asked: list[str] | None, built: list[str], is_cpu_only: bool, error_id: str, code: int
) -> None:
    """case B17"""
    with pytest.raises(OpencotiError) as caught:
        choose_backends(asked, built=built, is_cpu_only=is_cpu_only, flavor="cuda12")
    assert (caught.value.error_id, caught.value.exit_code) == (error_id, code)


def test_the_reason_of_a_missing_backend_gets_into_the_choice() -> None:
    reasons = {"rocm": "the toolchain is not there", "cuda13": "it was not built"}
    choice = choose_backends(None, built=["cpu", "vulkan"], is_cpu_only=False, reasons=reasons)
    assert {item.backend: item.reason for item in choice.skipped} == reasons
    asked = choose_backends(["rocm", "vulkan"], built=["cpu", "vulkan"], is_cpu_only=False, reasons=reasons)
    assert {item.backend: item.reason for item in asked.skipped} == {"rocm": "the toolchain is not there"}
    assert choose_backends(None, built=["cpu"], is_cpu_only=False, reasons=reasons).skipped == ()
    with pytest.raises(BuildError, match="the toolchain is not there"):
        choose_backends(["rocm"], built=["cpu"], is_cpu_only=False, reasons=reasons)


def a_wheel(context: Context, members: dict[str, bytes]) -> Backend:
    """Pin a wheel of two tiny libraries for a toolchain, and put it into the download cache."""
    archive = context.layout.cache / "wheel.whl"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w") as bundle:
        for name, data in members.items():
            bundle.writestr(name, data)
    sha256 = sha256_file(archive)
    context.layout.downloads.mkdir(parents=True, exist_ok=True)
    archive.rename(context.layout.downloads / sha256)
    folder = context.layout.containers / "tiny"
    folder.mkdir()
    (folder / "recipe.toml").write_text(
        'name = "tiny"\ndescription = "d"\n\n'
        '[[wheel]]\nname = "blas"\nversion = "1"\nfrom = "x/"\nto = "x/"\n'
    )
    size = (context.layout.downloads / sha256).stat().st_size
    locked = LockedFile(name="blas", version="1", arch="x86_64", filename="b.whl", sha256=sha256, size=size)
    (folder / "wheels.lock").write_text(lock_text("wheel", [locked], ""))
    return Backend.model_validate(
        {
            "name": "cuda13",
            "title": "t",
            "kind": "cuda",
            "toolchain": "tiny",
            "toolkit": "1",
            "glibc": "2.31",
            "library": "libggml-cuda.so",
            "targets": {"x86_64": ["75"], "aarch64": ["75"]},
            "needed": ["libcublas.so.13"],
            "probe": "probe.cu",
            "bundle": [{"wheel": "blas", "files": ["libblas.so.1"]}],
        }
    )


def test_a_vendors_libraries_come_with_their_licence(context: Context) -> None:
    backend = a_wheel(
        context,
        {"x/lib/libblas.so.1": b"blas", "x/lib/other.so": b"no", "blas-1.dist-info/License.txt": b"yes"},
    )
    bundle = bundle_of(context, backend, "x86_64")
    assert [(path.name, path.read_bytes()) for path in bundle.libraries] == [("libblas.so.1", b"blas")]
    assert {name: path.read_bytes() for name, path in bundle.licences.items()} == {"LICENSE.blas": b"yes"}
    bundle.libraries[0].write_bytes(b"cut")
    assert bundle_of(context, backend, "x86_64").libraries[0].read_bytes() == b"blas"


def test_a_wheel_without_what_the_table_says_is_refused(context: Context) -> None:
    backend = a_wheel(context, {"x/lib/libblas.so.2": b"blas", "blas-1.dist-info/License.txt": b"yes"})
    with pytest.raises(ConfigError, match=r"libblas\.so\.1") as caught:
        bundle_of(context, backend, "x86_64")
    assert caught.value.error_id == "bundle-incomplete"


def test_a_wheel_that_the_toolchain_does_not_pin_is_named(context: Context) -> None:
    backend = a_wheel(context, {"x/lib/libblas.so.1": b"blas"})
    (part,) = backend.bundle
    other = backend.model_copy(update={"bundle": (part.model_copy(update={"wheel": "blaz"}),)})
    with pytest.raises(ConfigError, match="blaz") as caught:
        bundle_of(context, other, "x86_64")
    assert caught.value.error_id == "bundle-unpinned"


@pytest.mark.parametrize("chosen", [(), ("vulkan",), ("rocm",)])
def test_a_bundle_for_nothing_is_refused_in_the_plan_as_in_the_package(
    chosen: tuple[str, ...], context: Context
) -> None:
    gpu = read_gpu(context, "1.0", arch="x86_64", tree=TREE)
    for ask in (
        lambda: list(gpu.planned_bundle(chosen)),
        lambda: gpu.bundle(context, chosen, "x86_64"),
    ):
        with pytest.raises(UsageError) as caught:
            ask()
        assert caught.value.error_id == "bundle-unknown"
    names = {member.name for member in gpu.planned_bundle(("vulkan", "cuda13"))}
    assert {"libcublas.so.13", "LICENSE.nvidia-cublas"} <= names


def test_a_vendor_without_a_bundle_says_so(context: Context) -> None:
    with pytest.raises(UsageError) as caught:
        bundle_of(context, load_table(context.layout.table).backend("rocm"), "x86_64")
    assert caught.value.error_id == "bundle-unknown"


def test_a_symbol_that_was_lent_at_the_link_is_found(real_layout: Layout) -> None:
    """case B17: the linker found a C++ runtime in a library that the engine does not have."""
    undefined = ("ggml_nelements", "cublasCreate_v2", "_ZSt9terminatev", "_Znwm", "cuMemMap")
    provided = stub_symbols(real_layout.containers, load_table(real_layout.table).backend("cuda13"))
    assert borrowed_symbols(undefined, provided, kind="cuda") == ["_ZSt9terminatev", "_Znwm"]
    assert borrowed_symbols(undefined, provided, kind="vulkan") == ["_ZSt9terminatev"]
