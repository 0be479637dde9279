"""Which artifact suits a host, and the reason told for each."""

from __future__ import annotations

from typing import Any

import pytest

from opencoti.fetch.choose import Host, Wish, asks_for_devices, choose, parse_version
from opencoti.fetch.host import parse_glibc, this_host
from opencoti.hardware import Gpu, Hardware, Memory
from opencoti.index import BackendRequirement, ManifestReference, ReleasedArtifact, Requirements

HOST = Host(os="linux", arch="x86_64", glibc="2.36")


def artifact(name: str, *backends: str, flavor: str | None = None, **requires: Any) -> ReleasedArtifact:
    return ReleasedArtifact(
        name=name,
        size=1,
        sha256="0" * 64,
        manifest=ManifestReference(name=f"{name}.MANIFEST.json", sha256="1" * 64),
        flavor=flavor,
        requires=Requirements(
            **{"os": "linux", "arch": "x86_64", "glibc": "2.28", **requires},
            backends=tuple(BackendRequirement(backend=backend) for backend in backends),
        ),
    )


def reasons(*artifacts: ReleasedArtifact, host: Host = HOST, wish: Wish | None = None) -> dict[str, str]:
    choice = choose(artifacts, host, wish or Wish())
    assert [verdict.name for verdict in choice.verdicts] == [item.name for item in artifacts]
    assert [v.name for v in choice.verdicts if v.is_taken] == ([choice.taken.name] if choice.taken else [])
    return {verdict.name: ("+" if verdict.is_taken else "-") + verdict.reason for verdict in choice.verdicts}


@pytest.mark.parametrize(
    ("requires", "host", "reason"),
    [
        ({"os": "windows"}, HOST, "-it is for windows, this is linux"),
        ({"arch": "aarch64"}, HOST, "-it is for aarch64, this is x86_64"),
        ({"glibc": "2.100"}, HOST, "-it needs glibc 2.100, this host has 2.36"),
        (
            {},
            Host(os="linux", arch="x86_64", glibc=None),
            "-it needs glibc 2.28, this host has another C library",
        ),
        (
            {"glibc": None},
            Host(os="linux", arch="x86_64", glibc=None),
            "+it fits linux-x86_64; backends: cpu",
        ),
        ({"os": "any", "arch": "any"}, HOST, "+it fits linux-x86_64; backends: cpu"),
        ({"glibc": "2.36"}, HOST, "+it fits linux-x86_64; backends: cpu"),
    ],
)
def test_what_the_host_must_have(requires: dict[str, Any], host: Host, reason: str) -> None:
    assert reasons(artifact("a", "cpu", **requires), host=host) == {"a": reason}


def test_no_flavor_is_preferred_then_more_backends_then_the_name() -> None:
    assert reasons(
        artifact("cuda12", "cpu", "cuda12", "vulkan", "rocm", flavor="cuda12"),
        artifact("small", "cpu"),
        artifact("b", "cpu", "cuda13"),
        artifact("a", "cpu", "vulkan"),
    ) == {
        "cuda12": "-it fits, but a is preferred (no flavor was asked for)",
        "small": "-it fits, but a is preferred (it has more backends)",
        "b": "-it fits, but a is preferred (first by name)",
        "a": "+it fits linux-x86_64; backends: cpu, vulkan",
    }


def test_what_the_user_asked_for_decides() -> None:
    both = (artifact("main", "cpu", "cuda13"), artifact("old", "cpu", "cuda12", flavor="cuda12"))
    assert reasons(*both, wish=Wish(backend="cuda12")) == {
        "main": "-backend cuda12 was asked for, this has cpu, cuda13",
        "old": "+it fits linux-x86_64; backends: cpu, cuda12",
    }
    assert reasons(*both, wish=Wish(flavor="cuda12"))["main"] == "-flavor cuda12 was asked for, this has none"
    assert choose(both, HOST, Wish(backend="rocm")).taken is None


def gpu_artifact(name: str, backend: str, *, driver: str, flavor: str | None = None) -> ReleasedArtifact:
    need = BackendRequirement(backend=backend, archs=("sm_80", "compute_80"), min_driver=driver)
    plain = artifact(name, flavor=flavor)
    needs = plain.requires.model_copy(update={"backends": (BackendRequirement(backend="cpu"), need)})
    return plain.model_copy(update={"requires": needs})


BOTH = (
    gpu_artifact("main", "cuda13", driver="580.65"),
    gpu_artifact("old", "cuda12", driver="525.60", flavor="cuda12"),
)


def hardware(driver: str) -> Hardware:
    gpu = Gpu(
        vendor="nvidia",
        name="A100",
        total_bytes=1,
        free_bytes=1,
        architecture="8.0",
        driver=driver,
        seen_by="nvml",
    )
    return Hardware(gpus=(gpu,), memory=Memory(total_bytes=1, available_bytes=1), notes=())


@pytest.mark.parametrize(
    ("driver", "taken", "why_not"),
    [
        ("590.1", "main", "it fits, but main is preferred (no flavor was asked for)"),
        ("550.54", "old", "it fits, but old is preferred (its cuda12 can be used here)"),
        ("470.1", "main", "it fits, but main is preferred (no flavor was asked for)"),
    ],
)
def test_artifact_whose_backend_the_driver_can_run_is_preferred(
    driver: str, taken: str, why_not: str
) -> None:
    choice = choose(BOTH, HOST, Wish(), hardware(driver))
    assert choice.taken is not None
    assert choice.taken.name == taken
    assert [verdict.reason for verdict in choice.verdicts if not verdict.is_taken] == [why_not]
    assert choice.verdicts[0].uses[0].rank == (2 if driver == "590.1" else 0)


def test_backend_that_was_asked_for_is_taken_whether_it_can_be_used_or_not() -> None:
    choice = choose(BOTH, HOST, Wish(backend="cuda13"), hardware("550.54"))
    assert choice.taken is not None
    assert choice.taken.name == "main"
    assert choice.verdicts[0].uses[0].reason == "it needs driver 580.65, A100 has 550.54"


def test_gpus_matter_only_where_something_is_for_them() -> None:
    assert asks_for_devices(BOTH)
    assert not asks_for_devices([artifact("a", "cpu"), artifact("b")])


@pytest.mark.parametrize(
    ("text", "expected"), [("2.28", (2, 28)), ("2.100", (2, 100)), ("2", (2,)), ("2.0", (2,))]
)
def test_versions_compare_as_numbers(text: str, expected: tuple[int, ...]) -> None:
    assert parse_version(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("glibc 2.36", "2.36"), ("glibc 2.3.4\n", "2.3.4"), ("musl 1.2", None), ("", None), (None, None)],
)
def test_c_library_of_the_host(text: str | None, expected: str | None) -> None:
    assert parse_glibc(text) == expected


def test_this_host_speaks_the_words_of_the_manifest() -> None:
    host = this_host()
    assert host.os in ("linux", "macos", "windows")
    assert host.arch not in ("amd64", "arm64")
