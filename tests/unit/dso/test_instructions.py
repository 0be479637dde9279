"""Extensions of x86-64 in code, put together by hand and compiled here."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.dso.elf import inspect_elf
from ci.dso.instructions import FeatureUse, InstructionFacts, read_instructions
from tests.fakes.gpu_files import elf_file
from tests.unit.dso.conftest import CompileElf

NOP = "90"
# One instruction each.
VADDPS_ZMM = "62 f1 74 48 58 c2"
VADDPS_XMM16 = "62 b1 74 00 58 c0"
VADDPS_YMM = "c5 f4 58 c2"
VPADDD_YMM = "c5 f5 fe c2"
PMINSD = "66 0f 38 39 c1"
POPCNT = "f3 0f b8 c1"
TZCNT = "f3 0f bc c1"
LZCNT = "f3 0f bd c1"
XGETBV = "0f 01 d0"
ANDN = "c4 e2 70 f2 c2"
PEXT = "c4 e2 72 f5 c2"
TDPBSSD = "c4 e2 73 5e c2"
ADDPS = "0f 58 c1"
NO_INSTRUCTION = "06"

FUNCTIONS = """
#define LOOP { for (int i = 0; i < n; i++) x[i] = x[i] * y[i] + 1.0f; }
void for_all(float *x, float *y, int n) LOOP
__attribute__((target("avx2,fma"))) void for_some(float *x, float *y, int n) LOOP
typedef float sixteen __attribute__((vector_size(64)));
__attribute__((target("avx512f"))) void for_few(sixteen *x, sixteen *y) { *x = *x + *y; }
"""


def _read(tmp_path: Path, *codes: str, machine: int = 62) -> InstructionFacts | None:
    path = tmp_path / "code.so"
    path.write_bytes(elf_file({".text": bytes.fromhex("".join(codes))}, machine=machine))
    return read_instructions(path)


@pytest.mark.parametrize(
    ("code", "feature"),
    [
        (VADDPS_ZMM, "AVX512"),
        (VADDPS_XMM16, "AVX512"),
        (VADDPS_YMM, "AVX"),
        (VPADDD_YMM, "AVX2"),
        (PMINSD, "SSE42"),
        (POPCNT, "SSE42"),
        (ANDN, "BMI1"),
        (PEXT, "BMI2"),
        (TDPBSSD, "AMX_INT8"),
    ],
)
def test_an_extension_is_found_where_it_stands(tmp_path: Path, code: str, feature: str) -> None:
    facts = _read(tmp_path, NOP, ADDPS, code, NOP, code)
    assert facts == InstructionFacts(
        total=5, unknown=0, uses=(FeatureUse(feature=feature, count=2, functions=("0x1004",)),)
    )


@pytest.mark.parametrize("code", [NOP, ADDPS, TZCNT, LZCNT, XGETBV])
def test_what_every_processor_runs_is_no_extension(tmp_path: Path, code: str) -> None:
    assert _read(tmp_path, code, code) == InstructionFacts(total=2, uses=(), unknown=0)


def test_bytes_inside_another_instruction_do_not_count(tmp_path: Path) -> None:
    """`mov rax, imm64` whose number is the bytes of an AVX-512 instruction."""
    assert _read(tmp_path, "48 b8", VADDPS_ZMM, "90 90", NOP) == InstructionFacts(total=2, uses=(), unknown=0)


def test_bytes_that_are_no_instruction_are_counted(tmp_path: Path) -> None:
    facts = _read(tmp_path, NOP, NO_INSTRUCTION, NOP)
    assert facts is not None
    assert facts.unknown == 1


def test_another_processor_is_not_decoded(tmp_path: Path) -> None:
    assert _read(tmp_path, VADDPS_ZMM, machine=183) is None


def test_compiled_code_and_the_functions_that_use_it(compile_elf: CompileElf) -> None:
    path = compile_elf("functions.so", FUNCTIONS, "-O3", "-g0", "-s")
    assert inspect_elf(path).instructions is None
    facts = inspect_elf(path, with_instructions=True).instructions
    assert facts is not None
    assert facts.unknown == 0
    functions = {use.feature: set(use.functions) for use in facts.uses}
    assert functions["AVX512"] == {"for_few"}
    assert functions["FMA"] == {"for_some"}
    assert functions["AVX"] <= {"for_few", "for_some"}
