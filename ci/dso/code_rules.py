"""What the code inside a product may be: for which GPUs, and for which processors. Pure.

The lists of GPUs come from the caller, who has them from the table of toolchains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ci.dso.elf import ElfFacts
from ci.dso.problem import Problem

PLAIN_X86_64: Final[frozenset[str]] = frozenset()
_SANDYBRIDGE: Final = frozenset({"SSE42", "AVX"})
_IVYBRIDGE: Final = _SANDYBRIDGE | {"F16C"}
_HASWELL: Final = _IVYBRIDGE | {"FMA", "AVX2", "BMI1", "BMI2"}
_SKYLAKEX: Final = _HASWELL | {"AVX512"}
_ICELAKE: Final = _SKYLAKEX | {"AVX512_VBMI", "AVX512_VNNI"}
_ZEN4: Final = _ICELAKE | {"AVX512_BF16"}

# What each CPU variant may use, by the names of `FeatureUse`: the features that upstream's CMake file gives
# it (ggml/src/CMakeLists.txt), which are also what its `ggml_backend_score` asks the processor for. BMI1 is
# added where BMI2 is: no processor has the second alone.
VARIANT_FEATURES: Final[Mapping[str, frozenset[str]]] = {
    "x64": PLAIN_X86_64,
    "sse42": frozenset({"SSE42"}),
    "sandybridge": _SANDYBRIDGE,
    "ivybridge": _IVYBRIDGE,
    "piledriver": _IVYBRIDGE | {"FMA"},
    "haswell": _HASWELL,
    "alderlake": _HASWELL | {"AVX_VNNI"},
    "skylakex": _SKYLAKEX,
    "cannonlake": _SKYLAKEX | {"AVX512_VBMI"},
    "cascadelake": _SKYLAKEX | {"AVX512_VNNI"},
    "cooperlake": _SKYLAKEX | {"AVX512_VNNI", "AVX512_BF16"},
    "icelake": _ICELAKE,
    "zen4": _ZEN4,
    "sapphirerapids": _ZEN4 | {"AMX_TILE", "AMX_INT8"},
}
_PTX_SUFFIX: Final = "+ptx"
_GFX_PREFIX: Final = "gfx"


@dataclass(frozen=True, kw_only=True)
class ExpectedTargets:
    """For which GPUs a library must hold code."""

    sass: frozenset[str] = frozenset()
    ptx: frozenset[str] = frozenset()
    gfx: frozenset[str] = frozenset()

    @classmethod
    def of(cls, targets: Iterable[str]) -> ExpectedTargets:
        """Read the words of the table: `75`, `120f`, `90+ptx` (both kinds), `gfx90a`."""
        words = tuple(targets)
        cuda = [word for word in words if not word.startswith(_GFX_PREFIX)]
        return cls(
            sass=frozenset(word.removesuffix(_PTX_SUFFIX) for word in cuda),
            ptx=frozenset(word.removesuffix(_PTX_SUFFIX) for word in cuda if word.endswith(_PTX_SUFFIX)),
            gfx=frozenset(word for word in words if word.startswith(_GFX_PREFIX)),
        )


def target_problems(facts: ElfFacts, expected: ExpectedTargets) -> list[Problem]:
    """Return the GPUs that are missing, and those that nobody asked for."""
    wanted = {
        *(f"sm_{arch}" for arch in expected.sass),
        *(f"compute_{arch}" for arch in expected.ptx),
        *expected.gfx,
    }
    found = frozenset(facts.gpu_targets)
    return [
        *(
            _problem(facts, "target-missing", f"it holds no code for {name}")
            for name in sorted(wanted - found)
        ),
        *(
            _problem(facts, "target-surplus", f"it holds code for {name}, which is not in the table")
            for name in sorted(found - wanted)
        ),
    ]


def instruction_problems(facts: ElfFacts, allowed: frozenset[str]) -> list[Problem]:
    """Return the extensions that processors it is meant for may lack; nothing where code was not decoded."""
    if facts.instructions is None:
        return []
    found = [
        _problem(
            facts,
            "instructions-leaked",
            f"{use.count} instructions need {use.feature}: {', '.join(use.functions)}",
        )
        for use in facts.instructions.uses
        if use.feature not in allowed
    ]
    if facts.instructions.unknown:
        detail = f"its code holds {facts.instructions.unknown} places that are no known instruction"
        found.append(_problem(facts, "instructions-unknown", detail))
    return found


def _problem(facts: ElfFacts, problem_id: str, detail: str) -> Problem:
    return Problem(problem_id=problem_id, file=facts.path.name, detail=detail)
