"""The pinned compilers for aarch64: the flags of every CPU variant, and a program under QEMU (B13, B17)."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from ci.dso.elf import inspect_elf, version_key
from ci.dso.rules import GLIBC_CEILING
from ci.smoke.emulation import Emulator, find_emulator
from ci.stages.elf import CPU_VARIANTS, target_environment
from tests.conftest import require

ARCH = "aarch64"
# What upstream's CMake passes for each variant, and what the compiler must then have.
FLAGS = {
    "armv8.0_1": ("armv8-a", ()),
    "armv8.2_1": ("armv8.2-a+dotprod", ("DOTPROD",)),
    "armv8.2_2": ("armv8.2-a+dotprod+fp16", ("DOTPROD", "FP16")),
    "armv8.2_3": ("armv8.2-a+dotprod+fp16+sve", ("DOTPROD", "FP16", "SVE")),
    "armv8.6_1": ("armv8.6-a+dotprod+fp16+sve+i8mm", ("DOTPROD", "FP16", "SVE", "I8MM")),
    "armv8.6_2": ("armv8.6-a+dotprod+fp16+sve+i8mm+sve2", ("DOTPROD", "FP16", "SVE", "I8MM", "SVE2")),
    "armv9.2_1": ("armv9.2-a+dotprod+fp16+sve+i8mm+sme", ("DOTPROD", "FP16", "SVE", "I8MM", "SVE2", "SME")),
    "armv9.2_2": (
        "armv9.2-a+dotprod+fp16+sve+i8mm+sve2+sme",
        ("DOTPROD", "FP16", "SVE", "I8MM", "SVE2", "SME"),
    ),
}
FEATURES = {
    "DOTPROD": "__ARM_FEATURE_DOTPROD",
    "FP16": "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC",
    "SVE": "__ARM_FEATURE_SVE",
    "I8MM": "__ARM_FEATURE_MATMUL_INT8",
    "SVE2": "__ARM_FEATURE_SVE2",
    "SME": "__ARM_FEATURE_SME",
}
MARKS = "".join(
    f'#ifdef {macro}\nconst char has_{name}[] = "has:{name}.";\n#endif\n' for name, macro in FEATURES.items()
)
DOT = """
#include <arm_neon.h>
#include <math.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    int8x16_t a = vdupq_n_s8((int8_t)(argc + 2)), b = vdupq_n_s8(-5);
#ifdef __ARM_FEATURE_DOTPROD
    int32x4_t sum = vdotq_s32(vdupq_n_s32(0), a, b);
#else
    int32x4_t sum = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
    sum = vaddq_s32(sum, vpaddlq_s16(vmull_high_s8(a, b)));
#endif
    printf("%d %.3f\\n", vaddvq_s32(sum), exp2(argc));
}
"""


@pytest.fixture(scope="module")
def compiler(zig: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wrapper of the pinned compiler, found beside it."""
    wrapper = zig.parent.parent / "bin" / "cc"
    require(wrapper.is_file(), "the tests need the pinned toolchain with its wrappers")
    return wrapper


def compile_c(compiler: Path, source: str, out: Path, *words: str) -> Path:
    from ci.paths import Layout

    cache = str(Layout.find().cache / "tool-cache" / "loader")
    source_file = out.with_suffix(".c")
    source_file.write_text(source)
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "ZIG_GLOBAL_CACHE_DIR": cache,
        "ZIG_LOCAL_CACHE_DIR": cache,
        **target_environment(ARCH),
    }
    subprocess.run(
        [compiler, "-O1", "-g0", *words, "-o", out, source_file], env=environment, check=True, timeout=300
    )
    return out


@pytest.mark.parametrize("variant", CPU_VARIANTS[ARCH])
def test_upstreams_flags_of_each_variant_reach_the_compiler(
    compiler: Path, tmp_path: Path, variant: str
) -> None:
    march, wanted = FLAGS[variant]
    code = compile_c(compiler, MARKS, tmp_path / "marks.o", f"-march={march}", "-c").read_bytes()
    assert tuple(name for name in FEATURES if f"has:{name}.".encode() in code) == wanted


@pytest.mark.skipif(platform.machine() == ARCH, reason="here it is no foreign architecture")
@pytest.mark.parametrize(("variant", "cpu"), [("armv8.0_1", "cortex-a57"), ("armv8.2_3", "max")])
def test_what_it_links_runs_under_an_emulator(compiler: Path, tmp_path: Path, variant: str, cpu: str) -> None:
    program = compile_c(compiler, DOT, tmp_path / "dot", f"-march={FLAGS[variant][0]}", "-lm", "-s")
    facts = inspect_elf(program)
    assert facts.arch == ARCH
    assert version_key(facts.glibc_floor or "0") <= version_key(GLIBC_CEILING)
    assert facts.page_size_max == 1 << 16
    emulator = required_emulator(program, cpu)
    shown = subprocess.run(
        [*emulator.prefix, program], env=emulator.variables, capture_output=True, check=True
    )
    assert shown.stdout == b"-240 2.000\n"


def required_emulator(program: Path, cpu: str) -> Emulator:
    require(shutil.which(f"qemu-{ARCH}-static") is not None, "apt-get install qemu-user-static")
    require(Path(f"/usr/{ARCH}-linux-gnu/lib").is_dir(), "apt-get install libc6-arm64-cross")
    found = find_emulator(program, {"PATH": os.environ["PATH"], "QEMU_CPU": cpu})
    assert found is not None
    assert found.device().glibc is not None
    return found
