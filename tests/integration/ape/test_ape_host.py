"""The engine of the ape lane: header dependencies, fat objects and the compiler cache, all for real."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ci.ape import build as ape
from ci.ape.stages import HOST_OUTPUT
from ci.context import Context
from ci.patches.apply import apply
from ci.paths import Layout
from opencoti.errors import OpencotiError
from tests.conftest import RecordedConsole
from tests.fakes.ape_checkout import OPTIONS, SCRIPTS, STAND_IN, ApeCheckout, make_ape_checkout

CONTEXT = "llama.cpp/src/llama-context.h"
ARM = "llama.cpp/src/llama-arm.h"
LLAMA = "llama.cpp/src/llama.c"
OBJECT = "tree/o/llama.cpp/src/llama.c.o"
TWIN = "tree/o/llama.cpp/src/.aarch64/llama.c.o"


def make(checkout: ApeCheckout) -> Path:
    """Build incrementally; return the engine."""
    result = ape.make(checkout.context, OPTIONS, engine=checkout.engine())
    return result.folder / HOST_OUTPUT


def say(engine: Path) -> str:
    return subprocess.run([engine], check=True, capture_output=True, text=True).stdout


def compiled(checkout: ApeCheckout) -> list[str]:
    """Return which sources the compiler was called for since the last question."""
    lines = checkout.calls.read_text().splitlines() if checkout.calls.exists() else []
    checkout.calls.unlink(missing_ok=True)
    calls = [line.split() for line in lines if " -c " in line]
    return sorted(next(word for word in words if word.endswith(".c")) for words in calls)


def edit(checkout: ApeCheckout, name: str, old: str, new: str) -> None:
    path = checkout.tree / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def arm_code(checkout: ApeCheckout) -> str:
    """Return the instructions of the half for aarch64."""
    return subprocess.run(
        ["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", checkout.build_folder / TWIN],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def start(checkout: ApeCheckout) -> None:
    assert say(make(checkout)) == "upstream-patched 4097 4 6\n"
    assert len(compiled(checkout)) == 4


def test_full_build_gives_an_engine_and_both_halves(applied: ApeCheckout) -> None:
    built = ape.build_host(applied.context, OPTIONS, engine=applied.engine())
    assert say(built.folder / "llamafile") == "upstream-patched 4097 4 6\n"
    assert built.version_string == "opencoti-0.10.1-c1"
    assert (applied.build_folder / TWIN).is_file()
    assert "objects and archives, each with both halves" in built.result.log.read_text()


def test_without_the_patch_a_changed_header_gives_a_stale_engine(context: Context) -> None:
    """The fault of upstream's that patch 0007 mends."""
    checkout = make_ape_checkout(context, with_header_patch=False)
    apply(checkout.layout, context.console, lane="ape")
    start(checkout)
    edit(checkout, CONTEXT, "4096", "8192")
    assert say(make(checkout)) == "upstream-patched 4097 4 6\n"
    assert compiled(checkout) == []


def test_with_the_patch_a_changed_header_compiles_what_includes_it_and_nothing_else(
    applied: ApeCheckout,
) -> None:
    start(applied)
    edit(applied, CONTEXT, "4096", "8192")
    assert say(make(applied)) == "upstream-patched 8193 4 6\n"
    assert compiled(applied) == [LLAMA]
    assert say(make(applied)) == "upstream-patched 8193 4 6\n"
    assert compiled(applied) == []


def test_a_header_that_only_the_half_for_aarch64_includes_counts(applied: ApeCheckout) -> None:
    start(applied)
    before = arm_code(applied)
    edit(applied, ARM, "64", "1024")
    make(applied)
    assert compiled(applied) == [LLAMA]
    assert arm_code(applied) != before


def test_a_header_that_nothing_includes_any_more_may_go(applied: ApeCheckout) -> None:
    start(applied)
    edit(applied, LLAMA, '#include "llama-arm.h"\n', "#define LLAMA_ARM_EXTRA 1\n")
    (applied.tree / ARM).unlink()
    make(applied)
    assert compiled(applied) == [LLAMA]


def test_a_change_between_ifdefs_is_seen_by_the_cache(applied: ApeCheckout) -> None:
    """cosmocc preprocesses for no machine: a cache that goes by that text would give the old objects."""
    start(applied)
    edit(applied, LLAMA, "return 1;", "return 2;")
    assert say(make(applied)) == "upstream-patched 4098 4 6\n"
    before = arm_code(applied)
    edit(applied, LLAMA, "return LLAMA_ARM_EXTRA;", "return LLAMA_ARM_EXTRA * 3;")
    make(applied)
    assert compiled(applied) == [LLAMA, LLAMA]
    assert arm_code(applied) != before


def test_a_hit_after_a_change_was_taken_back_brings_the_old_half_too(applied: ApeCheckout) -> None:
    """The half for aarch64 is on disk then, and is of the change: a hit of one half alone would leave it."""
    start(applied)
    before = (applied.build_folder / OBJECT).read_bytes(), (applied.build_folder / TWIN).read_bytes()
    edit(applied, CONTEXT, "4096", "8192")
    make(applied)
    assert compiled(applied) == [LLAMA]
    assert (applied.build_folder / TWIN).read_bytes() != before[1]
    edit(applied, CONTEXT, "8192", "4096")
    shutil.rmtree(applied.layout.stages)
    assert say(make(applied)) == "upstream-patched 4097 4 6\n"
    assert compiled(applied) == []
    after = (applied.build_folder / OBJECT).read_bytes(), (applied.build_folder / TWIN).read_bytes()
    assert after == before


def test_an_empty_build_folder_is_filled_from_the_cache_with_both_halves(
    applied: ApeCheckout, recorded: RecordedConsole
) -> None:
    start(applied)
    shutil.rmtree(applied.build_folder.parent)
    shutil.rmtree(applied.layout.stages)
    assert say(make(applied)) == "upstream-patched 4097 4 6\n"
    assert compiled(applied) == []
    assert "compiler cache: 4 of 4 calls were hits (100%)" in recorded.text
    assert (applied.build_folder / TWIN).is_file()
    # The list of headers came from the cache too, with that of the half for aarch64.
    edit(applied, ARM, "64", "1024")
    make(applied)
    assert compiled(applied) == [LLAMA]


def test_a_full_build_reads_nothing_from_the_cache_and_writes_it(applied: ApeCheckout) -> None:
    start(applied)
    shutil.rmtree(applied.layout.stages)
    ape.build_host(applied.context, OPTIONS, engine=applied.engine())
    assert len(compiled(applied)) == 4
    shutil.rmtree(applied.build_folder.parent)
    shutil.rmtree(applied.layout.stages)
    make(applied)
    assert compiled(applied) == []


def test_make_goes_on_where_a_full_build_ended(applied: ApeCheckout) -> None:
    ape.build_host(applied.context, OPTIONS, engine=applied.engine())
    compiled(applied)
    edit(applied, "llamafile/main.c", '"--server"', '"--serve!"')
    make(applied)
    assert compiled(applied) == ["llamafile/main.c"]


def test_a_failed_compile_leaves_a_folder_that_the_next_one_goes_on_in(applied: ApeCheckout) -> None:
    start(applied)
    edit(applied, LLAMA, "return 1;", "return 1 oops;")
    with pytest.raises(OpencotiError) as caught:
        make(applied)
    assert caught.value.error_id == "stage-failed"
    compiled(applied)
    edit(applied, LLAMA, "return 1 oops;", "return 3;")
    assert say(make(applied)) == "upstream-patched 4099 4 6\n"
    assert compiled(applied) == [LLAMA]


def test_a_source_added_to_the_rules_is_linked(applied: ApeCheckout) -> None:
    """Upstream's make does not link the engine again when a list of objects grows."""
    start(applied)
    (applied.tree / "llama.cpp" / "ggml" / "src" / "ggml-turbo.c").write_text(
        "int ggml_turbo(void) { return 5; }\n"
    )
    edit(applied, "llama.cpp/BUILD.mk", "ggml-alloc.c\n", "ggml-alloc.c llama.cpp/ggml/src/ggml-turbo.c\n")
    edit(
        applied, "llama.cpp/ggml/src/ggml.c", '#include "ggml.h"', '#include "ggml.h"\nint ggml_turbo(void);'
    )
    edit(applied, "llama.cpp/ggml/src/ggml.c", "ggml_alloc_answer()", "ggml_turbo()")
    assert say(make(applied)) == "upstream-patched 4097 6 6\n"


def test_a_removed_file_is_removed_from_the_copy(applied: ApeCheckout) -> None:
    start(applied)
    (applied.tree / "llama.cpp" / "ggml" / "CMakeLists.txt").unlink()
    make(applied)
    copy = applied.build_folder / "tree"
    assert not (copy / "llama.cpp" / "ggml" / "CMakeLists.txt").exists()
    assert (copy / "o").is_dir()


def test_an_older_file_in_place_of_a_newer_one_is_compiled(applied: ApeCheckout) -> None:
    start(applied)
    path = applied.tree / LLAMA
    path.write_text(path.read_text().replace("return 1;", "return 7;"))
    os.utime(path, (1_000_000_000, 1_000_000_000))
    assert say(make(applied)) == "upstream-patched 4103 4 6\n"


def test_objects_hold_no_path_of_the_build(applied: ApeCheckout) -> None:
    start(applied)
    place = str(applied.layout.root).encode()
    assert place not in (applied.build_folder / OBJECT).read_bytes()
    assert place not in (applied.build_folder / TWIN).read_bytes()


def test_a_missing_half_fails_the_stage(applied: ApeCheckout) -> None:
    start(applied)
    done = subprocess.run(
        [SCRIPTS / "twins", applied.build_folder / "tree" / "o"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "5 objects and archives" in done.stdout) == (0, True)
    (applied.build_folder / TWIN).unlink()
    done = subprocess.run(
        [SCRIPTS / "twins", applied.build_folder / "tree" / "o"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "llama.c.o has no half for aarch64" in done.stdout


def plain_ccache(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Compile with ccache in front of the driver itself, as upstream's users would."""
    cosmocc = STAND_IN / "cosmocc" / "bin" / "cosmocc"
    full = {"PATH": os.environ["PATH"], "CCACHE_DIR": str(folder / "ccache"), "HOME": str(folder), **env}
    return subprocess.run(
        ["ccache", cosmocc, *words, "-c", "a.c", "-o", "a.o"],
        cwd=folder, env=full, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_plain_ccache_leaves_the_half_for_aarch64_behind(tmp_path: Path) -> None:
    """The fault that `fatcc` is for: ccache knows one output of a call."""
    (tmp_path / "a.c").write_text("int a(void) { return 1; }\n")
    assert plain_ccache(tmp_path).returncode == 0
    assert (tmp_path / ".aarch64" / "a.o").is_file()
    shutil.rmtree(tmp_path / ".aarch64")
    (tmp_path / "a.o").unlink()
    assert plain_ccache(tmp_path).returncode == 0
    assert (tmp_path / "a.o").is_file()
    assert not (tmp_path / ".aarch64" / "a.o").exists()


def test_plain_ccache_leaves_a_half_of_another_version(tmp_path: Path) -> None:
    """A change that is taken back: the twin on disk is of the change, and the link would take it."""
    twin = tmp_path / ".aarch64" / "a.o"
    halves = []
    for number in (1, 2, 1):
        (tmp_path / "a.c").write_text(f"int a(void) {{ return {number}; }}\n")
        assert plain_ccache(tmp_path).returncode == 0
        halves.append(((tmp_path / "a.o").read_bytes(), twin.read_bytes()))
    assert halves[2][0] == halves[0][0]
    assert halves[2][1] == halves[1][1] != halves[0][1]


def test_plain_ccache_gives_the_old_object_for_a_change_between_ifdefs(tmp_path: Path) -> None:
    """The other fault: a twin that is there is not the right one, and neither is the object itself."""
    text = "#ifdef __x86_64__\nint a(void) { return 1; }\n#endif\n"
    (tmp_path / "a.c").write_text(text)
    assert plain_ccache(tmp_path).returncode == 0
    old = (tmp_path / "a.o").read_bytes()
    (tmp_path / "a.c").write_text(text.replace("return 1", "return 2"))
    assert plain_ccache(tmp_path).returncode == 0
    assert (tmp_path / "a.o").read_bytes() == old


def test_plain_ccache_needs_the_name_of_the_dependency_file(tmp_path: Path) -> None:
    """cosmocc writes a.o.d, ccache looks for a.d: it caches nothing unless -MF says the name."""

    def hits(*words: str) -> int:
        log = tmp_path / "stats"
        log.unlink(missing_ok=True)
        for _ in range(2):
            plain_ccache(tmp_path, *words, CCACHE_STATSLOG=str(log))
        return log.read_text().count("cache_hit")

    (tmp_path / "a.c").write_text("int a(void) { return 1; }\n")
    assert hits("-MMD") == 0
    assert hits("-MMD", "-MF", "a.o.d") == 1


def test_a_place_with_a_space_is_refused(applied: ApeCheckout, tmp_path: Path) -> None:
    root = tmp_path / "a place"
    shutil.copytree(applied.layout.root, root)
    layout = Layout(root=root, cache=applied.layout.cache)
    with pytest.raises(OpencotiError) as caught:
        ape.build_host(Context(layout=layout, console=applied.context.console), OPTIONS)
    assert (caught.value.error_id, caught.value.exit_code) == ("ape-path-space", 3)
