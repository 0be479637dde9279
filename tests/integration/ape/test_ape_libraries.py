"""The GPU libraries of the ape lane: scripts like upstream's, with gcc behind the names that they call."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from ci.ape import libraries as ape
from ci.ape.libraries import BuiltLibrary
from ci.ape.stages import SCRIPTS
from ci.toolchains.table import load_table
from opencoti.errors import OpencotiError
from tests.conftest import RecordedConsole
from tests.fakes.ape_checkout import OPTIONS, ApeCheckout
from tests.fakes.source_trees import change, creation, git

CUDA = "llama.cpp/ggml/src/ggml-cuda/ggml-cuda.cu"
SHADER = "llama.cpp/ggml/src/ggml-vulkan/vulkan-shaders/add.comp"
LONE_LINE = "void main() {} // add"


def build(checkout: ApeCheckout, name: str = "cuda13") -> BuiltLibrary:
    backend = load_table(checkout.layout.table).backend(name)
    return ape.build_library(checkout.context, backend, OPTIONS, engine=checkout.engine())


def fails(checkout: ApeCheckout, name: str = "cuda13") -> OpencotiError:
    with pytest.raises(OpencotiError) as caught:
        build(checkout, name)
    return caught.value


def patch(checkout: ApeCheckout, number: int, name: str, old: str, new: str) -> None:
    """Add a patch that changes one line of a file, with the lines around it as context."""
    lines = (checkout.tree / name).read_text().splitlines()
    at = lines.index(old)
    before, after = lines[max(0, at - 1) : at], lines[at + 1 : at + 2]
    size = len(before) + 1 + len(after)
    body = [*(f" {line}" for line in before), f"-{old}", f"+{new}", *(f" {line}" for line in after)]
    first = at + 1 - len(before)
    hunk = f"@@ -{first},{size} +{first},{size} @@\n" + "".join(f"{line}\n" for line in body)
    checkout.add_patch(f"{number:04}-change.patch", change(name, hunk))


@pytest.mark.parametrize(
    ("backend", "objects", "entry", "answer"),
    [
        ("cuda13", 6, "ggml_backend_cuda_init", 16),
        ("rocm", 6, "ggml_backend_cuda_init", 16),
        ("vulkan", 6, "ggml_backend_vk_get_device_count", 0),
    ],
)
def test_library_is_built_and_loads_alone(
    applied: ApeCheckout, backend: str, objects: int, entry: str, answer: int
) -> None:
    built = build(applied, backend)
    kind = load_table(applied.layout.table).backend(backend).kind
    assert (built.record.objects, built.path.name) == (objects, SCRIPTS[kind].library)
    assert built.folder == applied.layout.dist / "backends" / backend / "0.10.1"
    assert getattr(ctypes.CDLL(str(built.path)), entry)() == answer


def test_what_lies_in_the_home_folder_is_neither_used_nor_touched(applied: ApeCheckout, home: Path) -> None:
    """By upstream's defaults a library there shadows every build, and an object there is linked."""
    stale = home / "ggml-cuda.so"
    stale.write_bytes(b"of last year")
    objects = home / ".cache" / "llamafile-cuda-build"
    objects.mkdir(parents=True)
    (objects / "leftover.o").write_bytes(b"no object at all")
    built = build(applied)
    assert ctypes.CDLL(str(built.path)).ggml_backend_cuda_init() == 16
    assert stale.read_bytes() == b"of last year"
    assert sorted(path.name for path in objects.iterdir()) == ["leftover.o"]


def test_home_folder_of_a_run_begins_empty(applied: ApeCheckout) -> None:
    build(applied)
    home = applied.layout.build / "stages" / "host" / "ape-cuda13-x86_64" / "home"
    (home / ".cache" / "llamafile-cuda-build" / "leftover.o").write_bytes(b"no object at all")
    patch(applied, 1, CUDA, "int ggml_backend_cuda_reg(void) { return mmq_answer(); }", CHANGED)
    assert build(applied).record.objects == 6


CHANGED = "int ggml_backend_cuda_reg(void) { return 1 + mmq_answer(); }"


def test_a_compile_error_that_the_script_overlooked_fails_the_build(applied: ApeCheckout) -> None:
    """The link goes well: another object has all that the library must export."""
    backend = applied.tree / "llama.cpp/ggml/src/ggml-cuda/template-instances/mmq-instance-q4_0.cu"
    assert backend.is_file()
    applied.add_patch("0001-extra.patch", extra_source("int broken( { return 1; }"))
    error = fails(applied)
    assert (error.error_id, error.exit_code) == ("ape-script-errors", 5)
    assert "mmq-instance-extra.cu" in error.why
    assert "Successfully built" in log_of(applied)


def test_a_compile_that_failed_without_a_word_is_missed_by_number(applied: ApeCheckout) -> None:
    applied.add_patch("0001-extra.patch", extra_source("// fail without a word"))
    error = fails(applied)
    assert (error.error_id, error.exit_code) == ("ape-script-objects", 5)
    assert "7 sources (3 of ggml itself), 6 objects, 6 linked" in error.why
    assert "Successfully built" in log_of(applied)


def test_a_refused_library_is_refused_again(applied: ApeCheckout) -> None:
    """Nothing of it is kept as a finished stage, and nothing of it can be packaged."""
    applied.add_patch("0001-extra.patch", extra_source("// fail without a word"))
    assert [fails(applied).error_id for _ in range(2)] == ["ape-script-objects"] * 2
    assert not (applied.layout.dist / "backends" / "cuda13").exists()


def test_a_shader_that_was_dropped_is_missed(applied: ApeCheckout) -> None:
    patch(applied, 1, SHADER, LONE_LINE, "void main() {} // add, broken")
    error = fails(applied, "vulkan")
    assert error.error_id in ("ape-script-errors", "stage-failed")


def test_a_library_that_lacks_a_source_of_the_core_is_refused(applied: ApeCheckout) -> None:
    """What an engine would only say with --verbose: undefined symbol."""
    patch(applied, 1, "llama.cpp/ggml/src/ggml.c", CORE, CORE_WITH_MORE)
    error = fails(applied)
    assert (error.error_id, error.exit_code) == ("ape-library-unsound", 5)
    assert "nothing exports dequantize_row_turbo2" in error.why


CORE = "int ggml_type_size(int type) { return type + ggml_alloc_answer(); }"
CORE_WITH_MORE = "int dequantize_row_turbo2(void); int (*const t)(void) = dequantize_row_turbo2; " + CORE


def test_a_script_that_does_not_know_an_option_says_so(applied: ApeCheckout) -> None:
    patch(applied, 1, "llamafile/build-functions.sh", "            --clean) CLEAN=1 ;;", "            # no")
    error = fails(applied)
    assert error.error_id == "stage-failed"
    assert "Unknown option: --clean" in str(error.why) + error.what


def test_a_script_without_the_option_of_its_output_writes_to_its_own_home(
    applied: ApeCheckout, home: Path
) -> None:
    """The scripts of the first releases of 0.10 always write to $HOME."""
    name = "llamafile/build-functions.sh"
    patch(applied, 1, name, '            --output) shift; OUTPUT="$1" ;;', "            --quiet) ;;")
    assert ctypes.CDLL(str(build(applied).path)).ggml_backend_cuda_init() == 16
    assert not (home / "ggml-cuda.so").exists()


def test_engine_docker_is_refused_with_the_reason(applied: ApeCheckout) -> None:
    from dataclasses import replace

    backend = load_table(applied.layout.table).backend("cuda13")
    with pytest.raises(OpencotiError) as caught:
        ape.build_library(applied.context, backend, replace(OPTIONS, engine="docker"))
    assert (caught.value.error_id, caught.value.exit_code) == ("ape-engine-host-only", 4)


def test_all_backends_skip_what_cannot_be_built(applied: ApeCheckout, recorded: RecordedConsole) -> None:
    patch(applied, 1, SHADER, LONE_LINE, "void main() {} // add, broken")
    built, skipped = ape.build_libraries(applied.context, OPTIONS, engine=applied.engine())
    assert sorted(item.record.backend for item in built) == ["cuda12", "cuda13", "rocm"]
    assert list(skipped) == ["vulkan"]
    assert "backend vulkan is skipped" in recorded.text


def test_a_core_source_in_one_list_only_stops_before_anything_is_compiled(applied: ApeCheckout) -> None:
    text = creation("llama.cpp/ggml/src/ggml-turbo.c", "int ggml_turbo(void) { return 5; }")
    applied.add_patch("0001-turbo.patch", text)
    error = fails(applied)
    assert (error.error_id, error.exit_code) == ("core-source-places", 3)
    assert "llamafile/build-functions.sh" in error.why
    assert git(applied.tree, "status", "--porcelain") == ""


def extra_source(text: str) -> str:
    return creation("llama.cpp/ggml/src/ggml-cuda/template-instances/mmq-instance-extra.cu", text)


def log_of(checkout: ApeCheckout) -> str:
    return (checkout.layout.logs / "ape-cuda13-x86_64-host.log").read_text()
