"""A staged, signed release of a few kilobytes. Imitates what `stage`, `sign` and `sums --sign` leave.

Every document is a real one, made and signed by the product's own code; only the engine's bytes are made up.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opencoti.hashing import sha256_bytes, sha256_file
from opencoti.jsonio import render_json
from opencoti.trust.comment import INDEX_NAME
from release.keys import SecretKey
from release.sums import SUMS_NAME, write_sums
from tests.fakes.releases import CHUNK, manifest_of, sidecars
from tests.unit.release.samples import REPO, VERSION, comment_of, index_dict, sign

COMMIT = "c0ffee" + "1234567890" * 3 + "abcd"
ENGINE = "engine.llamafile"
NOTES = "<!-- opencoti:notes:begin -->\nWhat is new.\n<!-- opencoti:notes:end -->\n"


@dataclass
class StagedRelease:
    """Writes itself into `folder`. Change the fields before `write`, or the files after it.

    Attributes:
        part_bytes: cut the engine into parts of this size; 0 leaves it whole.
        documents: changes of the index, plan and manifest, by name.
    """

    folder: Path
    key: SecretKey = field(default_factory=SecretKey.generate)
    tag: str = "c7"
    sequence: int = 5
    commit: str = COMMIT
    engine: bytes = field(default_factory=lambda: random.Random(3).randbytes(6 * CHUNK + 100))
    part_bytes: int = 4 * CHUNK
    index_changes: dict[str, Any] = field(default_factory=dict)
    plan_changes: dict[str, Any] = field(default_factory=dict)
    manifest_changes: dict[str, Any] = field(default_factory=dict)

    def write(self) -> StagedRelease:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, data in self._files().items():
            (self.folder / name).write_bytes(data)
        self.sum()
        return self

    def sum(self) -> None:
        """Write SHA256SUMS anew and sign it."""
        write_sums(self.folder)
        data = (self.folder / SUMS_NAME).read_bytes()
        (self.folder / f"{SUMS_NAME}.minisig").write_bytes(sign(data, self.key, self._comment(SUMS_NAME)))

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of everything that is to be published, by name."""
        return {path.name: sha256_file(path) for path in self.folder.iterdir() if path.name != "NOTES.md"}

    def _files(self) -> dict[str, bytes]:
        plan = render_json(self._plan())
        manifest = render_json(
            json.loads(manifest_of(ENGINE, self.engine)) | {"gitCommit": self.commit} | self.manifest_changes
        )
        evidence = render_json(self._evidence())
        document = self._index(plan, manifest, evidence)
        index = render_json(document)
        name = f"{ENGINE}.MANIFEST.json"
        return {
            **self._pieces(),
            f"{ENGINE}.chunks": sidecars(ENGINE, self.engine)[f"{ENGINE}.chunks"],
            name: manifest,
            f"{name}.minisig": sign(manifest, self.key, self._comment(name)),
            "plan.json": plan,
            "engine.smoke-cpu.json": evidence,
            f"{self.tag}.intoto.jsonl": b"{}\n",
            INDEX_NAME: index,
            f"{INDEX_NAME}.minisig": sign(index, self.key, comment_of(document)),
            "NOTES.md": NOTES.encode(),
        }

    def _pieces(self) -> dict[str, bytes]:
        if not self.part_bytes:
            return {ENGINE: self.engine}
        starts = range(0, len(self.engine), self.part_bytes)
        return {
            f"{ENGINE}.part{number:03d}": self.engine[start : start + self.part_bytes]
            for number, start in enumerate(starts, 1)
        }

    def _index(self, plan: bytes, manifest: bytes, evidence: bytes) -> dict[str, Any]:
        sha256 = sha256_bytes(self.engine)
        parts = [
            {"name": name, "size": len(data), "sha256": sha256_bytes(data)}
            for name, data in self._pieces().items()
        ]
        artifact = {
            "name": ENGINE,
            "size": len(self.engine),
            "sha256": sha256,
            "manifest": {"name": f"{ENGINE}.MANIFEST.json", "sha256": sha256_bytes(manifest)},
            "flavor": None,
            "parts": parts if self.part_bytes else [],
            "requires": {"os": "any", "arch": "any", "backends": [{"backend": "cpu", "archs": []}]},
        }
        proof = {
            "name": "engine.smoke-cpu.json",
            "sha256": sha256_bytes(evidence),
            "kind": "smoke",
            "backend": "cpu",
            "artifactSha256": sha256,
        }
        return (
            index_dict(
                tag=self.tag,
                sequence=self.sequence,
                expires="2100-01-01T00:00:00Z",
                planSha256=hashlib.sha256(plan).hexdigest(),
                artifacts=[artifact],
                evidence=[proof],
                waivers=[],
            )
            | self.index_changes
        )

    def _plan(self) -> dict[str, Any]:
        return {
            "schema": "opencoti.plan/1",
            "product": "opencoti",
            "repo": REPO,
            "tag": self.tag,
            "versionString": VERSION,
            "opencotiTag": self.tag,
            "lane": "elf",
            "sequence": self.sequence,
            "created": "2026-05-01T00:00:00Z",
            "expires": "2100-01-01T00:00:00Z",
            "source": {"commit": self.commit, "isDirty": False, "isFrozen": False},
            "pins": [
                {
                    "name": "llama.cpp",
                    "origin": "sdist",
                    "commit": "2" * 40,
                    "tag": "0.5.0",
                    "tree": None,
                    "pinSha256": "3" * 64,
                    "patchSetHash": "4" * 64,
                }
            ],
            "backends": [],
            "artifacts": [
                {
                    "name": ENGINE,
                    "product": "llamafile",
                    "arch": "x86_64",
                    "flavor": None,
                    "backends": ["cpu"],
                    "state": "packaged",
                }
            ],
            "assets": [],
            "requiredEvidence": ["smoke"],
            "limits": {"assetMaxBytes": (1 << 31) - 1, "partBytes": 1 << 30, "maxAssets": 999},
            "remote": {"where": "none", "highestSequence": self.sequence - 1, "tagState": "none"},
            "phases": [],
        } | self.plan_changes

    def _evidence(self) -> dict[str, Any]:
        times = dict.fromkeys(("versionS", "readyS", "chatS", "embeddingS", "stopS", "totalS"), 1.0)
        counts = {"promptTokens": 1, "completionTokens": 1, "embeddingWidth": 1, "exitCode": 0}
        hashes = {"textSha256": "5" * 64, "embeddingSha256": "6" * 64}
        artifact = {"name": ENGINE, "sha256": sha256_bytes(self.engine), "size": len(self.engine)}
        return {
            "schema": "opencoti.evidence/1",
            "kind": "smoke",
            "artifact": artifact,
            "device": {"cpuModel": "made up", "kernel": "Linux"},
            "backend": "cpu",
            "started": "2026-05-01T00:00:00Z",
            "passed": True,
            "result": {**times, **counts, **hashes},
            "failure": None,
        }

    def _comment(self, name: str) -> str:
        return f"product=opencoti repo={REPO} tag={self.tag} version={VERSION} file={name}"
