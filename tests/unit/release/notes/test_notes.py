"""Release texts: what is generated, and what is left alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from opencoti.errors import OpencotiError
from opencoti.evidence import load_evidence
from opencoti.index import load_index
from opencoti.jsonio import render_json
from opencoti.manifest import Manifest, load_manifest
from release.keys import SecretKey
from release.notes.body import BEGIN, END, merge_body
from release.notes.make import Before, make_notes
from tests.fakes.checkouts import evidence_dict
from tests.unit.release.samples import ARTIFACT, MANIFEST, index_bytes, index_dict, trusted_root


def manifest(**changes: Any) -> Manifest:
    return load_manifest(render_json(json.loads(MANIFEST) | changes))


def before(**changes: Any) -> Before:
    entry = index_dict()["artifacts"][0]
    name = ARTIFACT.replace("-c1-", "-c0-").replace("g0c1e570", "g1111111")
    old = entry | {"name": name, "size": 400_000, "sha256": "1" * 64,
                   "manifest": {"name": f"{name}.MANIFEST.json", "sha256": "0" * 64}}  # fmt: skip
    index = load_index(index_bytes(tag="c0", sequence=4, artifacts=[old], evidence=[]))
    source = json.loads(MANIFEST)["sources"][0] | {"commit": "1" * 40, "tag": "0.4.9"}
    patches = [
        json.loads(MANIFEST)["patches"][0] | {"sha256": "9" * 64},
        json.loads(MANIFEST)["patches"][0] | {"name": "0009-gone.patch"},
    ]
    document = {"sources": [source], "patches": patches, "versionString": "opencoti-0.4.9-g1111111-c1"}
    return Before(index=index, manifests=(manifest(**document, **changes),))


def test_first_release_lists_files_backends_patches_and_how_to_verify() -> None:
    key = SecretKey.generate()
    text = make_notes(load_index(index_bytes()), [manifest()], keys=trusted_root(key))
    assert "- llama.cpp: 0.5.0 (`0c1e57098bba43ac29e6e3b677cdceebdd22334f`)" in text
    assert f"| `{ARTIFACT}` | linux x86\\_64, glibc 2.28 | 459524 | new |" in text
    assert f"| `{ARTIFACT}` | cpu | haswell |  | smoke |" in text
    assert "1. Report what was built (`0001-build-identity.patch`)\n" in text
    assert "- `bench-cpu`: no idle device" in text
    assert f"minisign -V -P {key.public.text} -m opencoti-release.json" in text
    assert "python -m opencoti.fetch get --repo mann1x/opencoti --tag c1" in text
    assert "c1.intoto.jsonl" in text


def test_next_release_is_compared_with_the_one_before() -> None:
    text = make_notes(load_index(index_bytes()), [manifest()], before=before())
    assert "- llama.cpp: from 0.4.9 (`" + "1" * 40 + "`) to 0.5.0" in text
    assert "`111111111111..0c1e57098bba`" in text
    assert "| 459524 | +59524 (+14.9 %) |" in text
    assert "(`0001-build-identity.patch`) **changed**" in text
    assert "No longer in it: `0009-gone.patch`." in text


def test_devices_that_were_tested_on_are_named() -> None:
    document = evidence_dict(b"", ARTIFACT, backend="cpu")
    document["artifact"]["sha256"] = json.loads(MANIFEST)["sha256"]
    document["device"] |= {"cpuModel": "A | processor", "driver": "580"}
    text = make_notes(
        load_index(index_bytes()), [manifest()], evidence=[load_evidence(render_json(document))]
    )
    assert "| A \\| processor, driver 580 (smoke) |" in text


def test_speed_is_shown_with_the_device_that_computed() -> None:
    document = evidence_dict(b"", ARTIFACT, backend="cpu", kind="bench")
    document["artifact"]["sha256"] = json.loads(MANIFEST)["sha256"]
    cpu = load_evidence(render_json(document))
    document["device"]["accelerators"] = [
        {"name": "A card", "isSoftware": False, "driver": "580"},
        {"name": "llvmpipe", "isSoftware": True, "driver": None},
    ]
    document["backend"] = "vulkan"
    document["measured"]["offload"] = {"device": "Vulkan0", "layers": 3, "splits": 2}
    text = make_notes(
        load_index(index_bytes()), [manifest()], evidence=[cpu, load_evidence(render_json(document))]
    )
    assert f"| `{ARTIFACT}` | cpu | A processor | 1024 | 100.0 |\n" in text
    assert f"| `{ARTIFACT}` | vulkan | A card, driver 580 and llvmpipe, in software | 1024 | 100.0 |" in text
    assert "| A processor (bench) |" in text
    assert "## Speed" not in make_notes(load_index(index_bytes()), [manifest()])


def test_backend_without_evidence_says_so() -> None:
    text = make_notes(load_index(index_bytes(evidence=[])), [manifest()])
    assert "| **not tested** |" in text


def test_text_from_elsewhere_stays_text() -> None:
    """A patch title or a device name is no markup, no mention and no marker."""
    title = f"fix @all <script> | `x` {END} #1"
    patch = json.loads(MANIFEST)["patches"][0] | {"title": title}
    text = make_notes(load_index(index_bytes()), [manifest(patches=[patch])])
    assert "fix \\@all &lt;script&gt; \\| \\`x\\`" in text
    assert END not in text
    assert BEGIN in merge_body("", text)


def test_only_the_generated_part_is_replaced() -> None:
    first = merge_body("", "one\n")
    assert first == f"{BEGIN}\none\n{END}\n"
    edited = f"Hello\r\n\r\n{first.strip()}\r\n\r\nbye"
    assert merge_body(edited, "two") == f"Hello\r\n\r\n{BEGIN}\ntwo\n{END}\r\n\r\nbye"
    assert merge_body(merge_body(edited, "two"), "two") == merge_body(edited, "two")
    assert merge_body("By hand.\n", "x") == f"By hand.\n\n{BEGIN}\nx\n{END}\n"


@pytest.mark.parametrize(
    ("existing", "generated"),
    [
        (BEGIN, "x"),
        (END, "x"),
        (f"{END}\n{BEGIN}", "x"),
        (f"{BEGIN}\n{END}\n{BEGIN}\n{END}", "x"),
        ("", f"x {END}"),
    ],
)
def test_broken_markers_are_refused(existing: str, generated: str) -> None:
    with pytest.raises(OpencotiError) as caught:
        merge_body(existing, generated)
    assert caught.value.error_id == "notes-markers-broken"


def test_text_longer_than_github_takes_is_refused() -> None:
    with pytest.raises(OpencotiError) as caught:
        merge_body("x" * 125_000, "y")
    assert caught.value.error_id == "notes-too-long"
