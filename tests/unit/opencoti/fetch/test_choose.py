"""Which artifact suits a host, and the reason told for each."""

from __future__ import annotations

from typing import Any

import pytest

from opencoti.fetch.choose import Host, Wish, choose, parse_version
from opencoti.fetch.host import parse_glibc, this_host
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
