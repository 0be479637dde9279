"""The machine's C++ compiler beside nvcc."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.toolchains.hostcc import Accepted, find_host_compiler
from ci.toolchains.machine import Machine
from opencoti.errors import MissingError
from tests.fakes.toolkits import compiler, write_file, write_program


def look(tools: Path, accepted: Accepted) -> str:
    computer = Machine(environ={"PATH": str(tools)}, prefix=tools)
    return str(find_host_compiler(computer, accepted, wanted_by="nvcc 12.4"))


def test_nvccs_own_header_says_what_it_takes(tmp_path: Path) -> None:
    header = write_file(
        tmp_path / "host_config.h",
        "#if __GNUC__ > 13\n#endif\n#if (__clang_major__ >= 18) || (__clang_major__ < 3)\n",
    )
    assert Accepted.read(header) == Accepted(gcc=13, clang=17)
    assert Accepted.read(tmp_path / "none.h") == Accepted()


def test_the_default_compiler_is_taken_when_it_fits(tmp_path: Path) -> None:
    compiler(tmp_path, "12.2.0", names=("c++", "cc"))
    compiler(tmp_path, "11.4.0", suffix="-11")
    assert look(tmp_path, Accepted(gcc=13)) == f"gcc 12.2.0 ({tmp_path}/c++)"


def test_the_newest_that_nvcc_takes_stands_in_for_one_that_is_too_new(tmp_path: Path) -> None:
    compiler(tmp_path, "15.1.0")
    for number in (14, 12, 11):
        compiler(tmp_path, f"{number}.1.0", suffix=f"-{number}")
    assert look(tmp_path, Accepted(gcc=13)) == f"gcc 12.1.0 ({tmp_path}/g++-12)"


def test_one_that_is_too_new_alone_is_refused_with_both_numbers(tmp_path: Path) -> None:
    compiler(tmp_path, "14.2.0")
    with pytest.raises(MissingError) as caught:
        look(tmp_path, Accepted(gcc=13))
    assert caught.value.error_id == "host-compiler-unaccepted"
    assert caught.value.why == f"it takes gcc 9 to 13; found gcc 14.2.0 ({tmp_path}/g++)"


def test_a_c_compiler_of_another_version_is_no_pair(tmp_path: Path) -> None:
    compiler(tmp_path, "12.2.0", names=("g++",))
    compiler(tmp_path, "11.2.0", names=("gcc",))
    with pytest.raises(MissingError) as caught:
        look(tmp_path, Accepted(gcc=13))
    assert caught.value.error_id == "host-compiler-missing"


def test_clang_is_measured_by_its_own_range(tmp_path: Path) -> None:
    for name in ("c++", "cc"):
        write_program(
            tmp_path / name,
            "printf '#define %s\\n' '__GNUC__ 4' '__clang_major__ 18' '__clang_minor__ 1'\n",
        )
    assert look(tmp_path, Accepted(gcc=13, clang=19)).startswith("clang 18.1 ")
    with pytest.raises(MissingError):
        look(tmp_path, Accepted(gcc=13, clang=17))
