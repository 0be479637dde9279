"""A small checkout with something packaged in it. Imitates what the pipeline leaves in `dist/`.

A real git repository with a pin, a tag and a patch; manifests, chunk tables and evidence are real documents,
only the engine is made-up bytes.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ci.context import Context
from ci.paths import Layout
from opencoti.chunks import render_table
from opencoti.hashing import sha256_bytes
from opencoti.index import Waiver
from opencoti.jsonio import render_json
from release.planning.make import make_plan
from release.planning.model import Plan
from release.planning.remote_view import RemoteFacts
from release.planning.request import DEFAULT_KINDS, Request
from tests.conftest import RecordedConsole
from tests.integration.fetch.bench import table_of
from tests.unit.release.samples import MANIFEST, REPO

NAME = json.loads(MANIFEST)["name"]
SIZE = json.loads(MANIFEST)["size"]
CHUNK = 4096
NOW = datetime(2026, 6, 1, tzinfo=UTC)
PIN = "https://example.com/llama.cpp 0c1e57098bba43ac29e6e3b677cdceebdd22334f 0.5.0\n"
PATCH = (
    "Subject: [PATCH] add a file\n---\ndiff --git a/a b/a\nnew file mode 100644\n"
    "--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+a\n"
)
NO_RELEASES = RemoteFacts(where="nowhere", tag_state="none")


@dataclass
class Checkout:
    """One checkout; call `package` and `prove`, then plan and stage with `context`."""

    root: Path
    recorded: RecordedConsole = field(default_factory=RecordedConsole)

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True)
        self.write(".gitignore", "/dist/\n/build/\n/vendors/sources/*\n")
        self.write("vendors/pin/llama.cpp.txt", PIN)
        self.write("vendors/llamafile/OPENCOTI_TAG", "# the next cut\nc1\n")
        self.write("vendors/patches/llama.cpp/0001-a.patch", PATCH)
        self.write("tool.sh", "#!/bin/sh\n", mode=0o755)
        self.git("init", "--quiet", "--template=")
        self.commit_all()

    @property
    def context(self) -> Context:
        return Context(
            layout=Layout(root=self.root, cache=self.root.parent / "cache"), console=self.recorded.console
        )

    @property
    def artifacts(self) -> Path:
        return self.root / "dist" / "llamafile"

    @property
    def commit(self) -> str:
        return self.git("rev-parse", "HEAD")

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)

    def git(self, *words: str) -> str:
        identity = {f"GIT_{who}_{what}": "test@example.com"
                    for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}  # fmt: skip
        dates = {f"GIT_{who}_DATE": "1700000000 +0000" for who in ("AUTHOR", "COMMITTER")}
        return subprocess.run(
            ["git", "-c", "init.defaultBranch=main", *words],
            cwd=self.root, check=True, capture_output=True, text=True,
            env={"PATH": os.environ["PATH"], "HOME": str(self.root), **identity, **dates},
        ).stdout.strip()  # fmt: skip

    def commit_all(self) -> str:
        self.git("add", "-A")
        self.git("commit", "--quiet", "-m", "state")
        return self.commit

    def package(self, name: str = NAME, *, seed: int = 7, **changes: Any) -> bytes:
        """Write an artifact with its manifest and chunk table; return its bytes."""
        content = random.Random(seed).randbytes(SIZE)
        table = table_of(content, CHUNK)
        document = json.loads(MANIFEST) | {
            "name": name,
            "sha256": sha256_bytes(content),
            "gitCommit": self.commit,
            "skippedBackends": [],
            "chunks": {
                "file": f"{name}.chunks",
                "sha256": sha256_bytes(render_table(table)),
                "chunkSize": CHUNK,
                "count": table.count,
            },
        }
        files = {
            name: content,
            f"{name}.MANIFEST.json": render_json(document | changes),
            f"{name}.chunks": render_table(table),
        }
        self.artifacts.mkdir(parents=True, exist_ok=True)
        for path, data in files.items():
            (self.artifacts / path).unlink(missing_ok=True)
            (self.artifacts / path).write_bytes(data)
        return content

    def prove(
        self,
        content: bytes,
        name: str = NAME,
        *,
        backend: str = "cpu",
        kind: str = "smoke",
        is_passed: bool = True,
        **changes: Any,
    ) -> Path:
        """Write the evidence of one test of these bytes."""
        path = self.root / "dist" / "evidence" / f"{name}.{kind}-{backend}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        document = evidence_dict(content, name, backend=backend, kind=kind, is_passed=is_passed)
        path.write_bytes(render_json(document | changes))
        return path

    def prove_all(self, content: bytes, name: str = NAME, *, backend: str = "cpu") -> None:
        """Write every evidence that a release must have of one backend."""
        for kind in DEFAULT_KINDS:
            self.prove(content, name, backend=backend, kind=kind)

    def cut(self) -> bytes:
        """Package and prove the one artifact."""
        content = self.package()
        self.prove_all(content)
        return content

    def request(self, **changes: Any) -> Request:
        return replace(Request(repo=REPO, lane="elf", now=NOW), **changes)

    def plan(self, remote: RemoteFacts = NO_RELEASES, **changes: Any) -> Plan:
        return make_plan(self.context, self.request(**changes), remote)


def waive(name: str, reason: str = "no such device") -> tuple[Waiver, ...]:
    return (Waiver(name=name, reason=reason),)


def evidence_dict(
    content: bytes, name: str, *, backend: str, kind: str = "smoke", is_passed: bool = True
) -> dict[str, Any]:
    result = {
        "versionS": 0.1, "readyS": 0.5, "chatS": 0.1, "embeddingS": 0.1, "stopS": 0.1, "totalS": 1.0,
        "promptTokens": 14, "completionTokens": 16, "tokensPerSecond": 100.0, "textSha256": "a" * 64,
        "embeddingWidth": 64, "exitCode": 0,
    }  # fmt: skip
    measured = {
        "model": {"name": "tiny.gguf", "sha256": "b" * 64, "size": 1},
        "threads": 2, "promptTokens": 512, "completionTokens": 64, "cachedTokens": 0, "warmUps": 1,
        "samples": [{"promptS": 0.5, "completionS": 0.63, "wallS": 1.2}],
        "promptPerSecond": 1024.0, "completionPerSecond": 100.0,
        "offload": None if backend == "cpu" else {"device": "X0", "layers": 3, "splits": 2},
    }  # fmt: skip
    facts = {"smoke": ("result", result), "bench": ("measured", measured)}
    field_name, value = facts[kind]
    return {
        "schema": "opencoti.evidence/1",
        "kind": kind,
        "testVersion": 1,
        "artifact": {"name": name, "sha256": sha256_bytes(content), "size": len(content)},
        "device": {"cpuModel": "A processor", "kernel": "Linux 6", "driver": None},
        "backend": backend,
        "started": "2026-05-31T00:00:00Z",
        "passed": is_passed,
        field_name: value if is_passed else None,
        "failure": None if is_passed else {"error": "smoke-no-answer", "what": "it said nothing"},
    }
