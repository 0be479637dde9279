"""What is read from real ELF files, compiled here and found on this machine."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from ci.dso.elf import ElfFacts, VersionNeed, inspect_elf, version_key
from opencoti.errors import ConfigError, StorageError
from tests.unit.dso.conftest import BASE, PROGRAM, CompileElf


def test_a_backend_shows_what_it_needs_and_offers(backend: Path) -> None:
    facts = inspect_elf(backend)
    assert (facts.kind, facts.arch, facts.is_static) == ("dso", "x86_64", False)
    assert "libm.so.6" in facts.needed
    assert list(facts.needed) == sorted(facts.needed)
    assert facts.init_symbols == ("ggml_backend_init", "ggml_backend_score")
    assert facts.undefined == ("ggml_from_base",)
    assert not facts.has_executable_stack
    assert not facts.has_writable_code
    assert not facts.has_debug_info
    assert facts.libstdcxx_floor is None


def test_the_glibc_floor_is_the_highest_version_and_names_its_symbol(backend: Path) -> None:
    # pow got a new version in glibc 2.29; the other symbols are from 2.2.5.
    assert inspect_elf(backend).need("GLIBC") == VersionNeed(
        family="GLIBC", version="2.29", library="libm.so.6", symbol="pow"
    )


def test_an_older_target_gives_a_lower_floor(compile_elf: CompileElf) -> None:
    text = "#include <math.h>\ndouble f(double x) { return pow(x, x); }"
    assert inspect_elf(compile_elf("old.so", text, "-lm", "-g0")).glibc_floor == "2.2.5"


def test_soname_and_search_path_are_read(compile_elf: CompileElf) -> None:
    facts = inspect_elf(
        compile_elf("named.so", BASE, "-Wl,-soname,libnamed.so.3", "-Wl,-rpath,$ORIGIN:/opt/lib", "-g0")
    )
    assert facts.soname == "libnamed.so.3"
    assert (*facts.rpath, *facts.runpath) == ("$ORIGIN", "/opt/lib")


@pytest.mark.parametrize(
    ("target", "words", "kind", "is_static"),
    [
        ("x86_64-linux-gnu.2.28", ("-pie",), "pie", False),
        ("x86_64-linux-gnu.2.28", ("-no-pie",), "executable", False),
        ("x86_64-linux-musl", ("-static", "-no-pie"), "executable", True),
    ],
)
def test_kinds_of_programs(
    compile_elf: CompileElf, target: str, words: tuple[str, ...], kind: str, is_static: bool
) -> None:
    facts = inspect_elf(compile_elf("program", PROGRAM, "-g0", "-s", *words, target=target, shared=False))
    assert (facts.kind, facts.is_static) == (kind, is_static)
    assert bool(facts.needed) is not is_static


def test_an_object_for_another_machine(compile_elf: CompileElf) -> None:
    facts = inspect_elf(compile_elf("x.o", BASE, "-c", target="aarch64-linux-gnu.2.28", shared=False))
    assert (facts.kind, facts.arch) == ("object", "aarch64")


def test_debug_information_and_build_paths_are_noticed(compile_elf: CompileElf) -> None:
    path = compile_elf("debug.so", 'const char *where = "/srv/job-17/src/x.c";', "-g")
    facts = inspect_elf(path, build_prefixes=("/srv/job-17",))
    assert facts.has_debug_info
    assert facts.build_paths == ("/srv/job-17/src/x.c",)
    assert inspect_elf(path, build_prefixes=()).build_paths == ()


def test_only_paths_that_begin_there_count(compile_elf: CompileElf) -> None:
    text = (
        'const char *a = "/home/ann/src/x.c"; const char *b = "/srv/home/ann/y.c"; const char *c = "~/tmp/z";'
    )
    assert inspect_elf(compile_elf("paths.so", text, "-g0", "-s")).build_paths == ("/home/ann/src/x.c",)


@pytest.mark.parametrize(
    ("words", "expected"), [(("-Wl,-z,execstack",), True), (("-Wl,-z,noexecstack",), False)]
)
def test_an_executable_stack_is_noticed(
    compile_elf: CompileElf, words: tuple[str, ...], expected: bool
) -> None:
    path = compile_elf("stack.so", BASE, "-g0")
    data = bytearray(path.read_bytes())
    if expected:
        _set_stack_flags(data, 7)
        path.write_bytes(data)
    assert inspect_elf(path).has_executable_stack is expected


def _set_stack_flags(data: bytearray, flags: int) -> None:
    """Change PT_GNU_STACK in place: not every linker takes `-z execstack`."""
    start, count = int.from_bytes(data[32:40], "little"), int.from_bytes(data[56:58], "little")
    for at in range(start, start + 56 * count, 56):
        if data[at : at + 4] == (0x6474E551).to_bytes(4, "little"):
            data[at + 4 : at + 8] = flags.to_bytes(4, "little")
            return
    raise AssertionError("there is no PT_GNU_STACK")


def test_the_c_library_of_this_machine_is_a_library() -> None:
    path = next(iter(Path("/lib").glob("*-linux-gnu/libc.so.6")), None)
    if path is None:
        pytest.skip("no glibc in the usual place")
    facts = inspect_elf(path)
    assert (facts.kind, facts.soname) == ("dso", "libc.so.6")
    assert "malloc" in facts.exports
    assert facts.private_versions == ("GLIBC_PRIVATE",)


def test_versions_compare_as_numbers() -> None:
    assert version_key("2.9") < version_key("2.28") < version_key("2.28.1")


def test_what_is_no_elf_file_is_refused(tmp_path: Path) -> None:
    for name, data in {"empty": b"", "text": b"hello", "pe": b"MZqFpD='\n"}.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(ConfigError) as caught:
            inspect_elf(path)
        assert caught.value.error_id == "not-elf"


def test_a_missing_file_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        inspect_elf(tmp_path / "nothing")


def test_every_truncation_is_refused(backend: Path, tmp_path: Path) -> None:
    data = backend.read_bytes()
    path = tmp_path / "cut.so"
    for size in range(4, len(data), max(1, len(data) // 150)):
        path.write_bytes(data[:size])
        with pytest.raises(ConfigError) as caught:
            inspect_elf(path)
        assert caught.value.error_id == "elf-malformed"


@pytest.mark.parametrize("seed", range(8))
def test_changed_bytes_give_facts_or_one_clear_error(backend: Path, tmp_path: Path, seed: int) -> None:
    """Fuzz by mutation: headers are hit more often than code, since that is where the reader looks."""
    original, chance = backend.read_bytes(), random.Random(seed)
    path = tmp_path / "changed.so"
    for _ in range(60):
        data = bytearray(original)
        for _ in range(chance.choice((1, 2, 8))):
            at = chance.randrange(len(data) if chance.random() < 0.5 else 1024)
            data[at] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
        path.write_bytes(data)
        assert _outcome(path) in ("facts", "elf-malformed", "not-elf")


def _outcome(path: Path) -> str:
    try:
        facts = inspect_elf(path)
    except ConfigError as error:
        return error.error_id
    assert isinstance(facts, ElfFacts)
    return "facts"


def test_a_version_table_that_points_at_itself_ends(backend: Path, tmp_path: Path) -> None:
    """`vn_next` 0 with a count of four billion would be read for hours."""
    from elftools.elf.elffile import ELFFile

    with open(backend, "rb") as file:
        elf = ELFFile(file)
        index, section = next(
            (number, item)
            for number, item in enumerate(elf.iter_sections())
            if item["sh_type"] == "SHT_GNU_verneed"
        )
        header = elf["e_shoff"] + index * elf["e_shentsize"]
        table = section["sh_offset"]
    data = bytearray(backend.read_bytes())
    data[header + 44 : header + 48] = b"\xff\xff\xff\xff"  # sh_info: number of entries
    data[table + 12 : table + 16] = b"\0\0\0\0"  # vn_next
    path = tmp_path / "loop.so"
    path.write_bytes(data)
    assert _outcome(path) in ("facts", "elf-malformed")


def test_facts_agree_with_readelf(backend: Path) -> None:
    """A second opinion, where binutils is installed."""
    import shutil
    import subprocess

    if shutil.which("readelf") is None:
        pytest.skip("no readelf")
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    text = subprocess.run(
        ["readelf", "-dVW", str(backend)], env=environment, check=True, capture_output=True, text=True
    ).stdout
    facts = inspect_elf(backend)
    shown = sorted(line.split("[")[1].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line)
    assert list(facts.needed) == shown
    assert f"GLIBC_{facts.glibc_floor}" in text


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "libggml-x.so"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError) as caught:
        inspect_elf(pipe)
    assert caught.value.error_id == "not-elf"
