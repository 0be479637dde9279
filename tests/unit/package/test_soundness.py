"""What may not be packaged: products for another processor or system than the artifact (cases B13, B17)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ci.dso.elf import ElfFacts, VersionNeed
from ci.package.command import require_sound
from opencoti.errors import BuildError

NAME = "libggml-cpu-armv8.2_2.so"
GOOD = ElfFacts(
    path=Path(NAME),
    kind="dso",
    is_static=False,
    arch="aarch64",
    needed=("ld-linux-aarch64.so.1", "libc.so.6", "libggml-base.so.0"),
    rpath=(),
    runpath=("$ORIGIN",),
    soname=None,
    version_needs=(VersionNeed(family="GLIBC", version="2.27", library="libm.so.6", symbol="expf"),),
    private_versions=(),
    exports=frozenset({"ggml_backend_init", "ggml_backend_score"}),
    undefined=(),
    has_executable_stack=False,
    has_writable_code=False,
    has_debug_info=False,
    build_paths=(),
    page_size_max=1 << 16,
)


def test_products_of_the_right_processor_pass() -> None:
    require_sound({NAME: GOOD}, "aarch64")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"arch": "x86_64"}, "it is for x86_64, not aarch64"),
        ({"page_size_max": 1 << 12}, "it cannot be loaded with pages of more than 4096 bytes"),
        (
            {"version_needs": (VersionNeed(family="GLIBC", version="2.38", library="l", symbol="f"),)},
            "it needs GLIBC 2.38, more than 2.28",
        ),
    ],
)
def test_others_are_named_with_the_reason(change: dict[str, object], why: str) -> None:
    with pytest.raises(BuildError) as caught:
        require_sound({NAME: dataclasses.replace(GOOD, **change)}, "aarch64")  # type: ignore[arg-type]
    assert caught.value.error_id == "product-unsound"
    assert f"{NAME}: {why}" in caught.value.why
