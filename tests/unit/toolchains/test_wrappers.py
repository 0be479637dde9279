"""The compiler wrappers, run by a real `sh` against programs that print what they are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci import process
from ci.toolchains.wrappers import wrapper_scripts


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A toolchain whose zig prints its words, one a line, at a place with a space in its name."""
    folder = tmp_path / "tool chain"
    for name in ("bin", "zig"):
        (folder / name).mkdir(parents=True)
    scripts = {f"bin/{name}": text for name, text in wrapper_scripts().items()}
    scripts["zig/zig"] = '#!/bin/sh\nprintf "%s\\n" "$@"\n'
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def words(program: Path, *arguments: str, cwd: Path | None = None, **env: str) -> list[str]:
    done = process.run([program, *arguments], env=env, cwd=cwd)
    assert done.is_ok, done.error_text
    return done.text.splitlines()


def test_a_compiler_gets_the_target_and_fixed_names_for_every_folder(root: Path) -> None:
    shown = words(root / "bin/cc", "-c", "a b.c", OPENCOTI_SRC="/my source", OPENCOTI_OUT="/my source/out")
    assert shown[:3] == ["cc", "-target", "x86_64-linux-gnu.2.28"]
    # The last map that fits wins, so the longer of two nested folders must not come first in effect.
    assert shown[3:] == [
        "-ffile-prefix-map=/my source=.",
        "-ffile-prefix-map=/my source/out=./build",
        f"-ffile-prefix-map={root}=/toolchain",
        "-c",
        "a b.c",
    ]


def test_a_stage_chooses_the_target(root: Path) -> None:
    assert words(root / "bin/c++", OPENCOTI_TARGET="x86_64-linux-musl")[:3] == [
        "c++",
        "-target",
        "x86_64-linux-musl",
    ]


def test_a_compiler_does_not_tell_what_it_links_by_itself(root: Path) -> None:
    assert words(root / "bin/c++", "-v", "a.o", "-verbose", "-v")[-2:] == ["a.o", "-verbose"]


def test_a_wrapper_works_by_relative_path_too(root: Path) -> None:
    assert words(Path("bin/ar"), "qc", "x.a", cwd=root) == ["ar", "qc", "x.a"]


def test_the_machine_is_described_without_its_kernel(root: Path) -> None:
    shown = [words(root / "bin/uname", option) for option in ("-s", "-r", "-m")]
    assert shown == [["Linux"], ["0"], ["x86_64"]]


def test_the_machine_is_the_one_that_is_built_for(root: Path) -> None:
    assert words(root / "bin/uname", "-m", OPENCOTI_TARGET="aarch64-linux-gnu.2.28") == ["aarch64"]


@pytest.mark.parametrize(
    ("march", "mcpu"),
    [
        ("armv8-a", "generic+v8a"),
        ("armv8.2-a+dotprod", "generic+v8_2a+dotprod"),
        ("armv8.2-a+dotprod+fp16+sve", "generic+v8_2a+dotprod+fullfp16+sve"),
        ("armv9.2-a+fp16+sve+i8mm+sve2+sme", "generic+v9_2a+fullfp16+sve+i8mm+sve2+sme"),
        ("armv8.6-a+nosve+nofp16", "generic+v8_6a-sve-fullfp16"),
    ],
)
def test_zig_is_told_the_processor_in_its_own_words(root: Path, march: str, mcpu: str) -> None:
    shown = words(root / "bin/cc", "-O2", f"-march={march}", "-c", "a b.c")
    assert shown[-4:] == ["-O2", f"-mcpu={mcpu}", "-c", "a b.c"]


def test_other_processors_keep_their_words(root: Path) -> None:
    assert words(root / "bin/c++", "-march=x86-64-v3", "-msse4.2")[-2:] == ["-march=x86-64-v3", "-msse4.2"]


def test_a_launcher_starts_the_compilers_and_nothing_else(root: Path, tmp_path: Path) -> None:
    launcher = tmp_path / "launcher"
    launcher.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    launcher.chmod(0o755)
    given = f"{launcher} --quick"
    shown = words(root / "bin/cc", "-c", "a.c", OPENCOTI_LAUNCHER=given)
    assert shown[:3] == ["--quick", str(root / "zig/zig"), "cc"]
    assert words(root / "bin/ar", "qc", "x.a", OPENCOTI_LAUNCHER=given) == ["ar", "qc", "x.a"]
