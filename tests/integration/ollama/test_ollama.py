"""The command, and the real engine on a blob without an extension."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ci.paths import Layout
from opencoti.client.requests import Sampling
from opencoti.client.sync import Client
from opencoti.launch.engine import launch
from opencoti.ollama.importing import import_model
from opencoti.ollama.store import Store
from tests.conftest import ROOT, RecordedConsole
from tests.fakes.ollama_store import FakeStore
from tests.integration.launch.real import real_options


def run_cli(*words: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("OPENCOTI_", "OLLAMA_"))
    }
    return subprocess.run(
        [sys.executable, "-m", "opencoti.ollama", *map(str, words)],
        env={**kept, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def fake(tmp_path: Path) -> FakeStore:
    fake = FakeStore(tmp_path / "models")
    fake.add("registry.ollama.ai/library/llama3/latest", params={"num_ctx": 2048})
    fake.add("hf.co/org/repo-GGUF/Q4_K_M")
    return fake


def test_list_and_import_print_names_and_a_path(fake: FakeStore) -> None:
    listed = json.loads(run_cli("list", "--json", OLLAMA_MODELS=str(fake.root)).stdout)
    assert {row["name"]: row["state"] for row in listed} == {
        "hf.co/org/repo-GGUF:Q4_K_M": "here",
        "llama3:latest": "here",
    }
    done = run_cli("import", "llama3", "--store", fake.root)
    assert (done.returncode, Path(done.stdout.strip()).parent) == (0, fake.root / "blobs")
    assert "--ctx-size 2048" in done.stderr
    data = json.loads(run_cli("import", "llama3", "--store", fake.root, "--json").stdout)
    assert data["model"]["is_verified"] is True


def test_errors_have_their_codes(fake: FakeStore, tmp_path: Path) -> None:
    assert run_cli("import", "a/../b", "--store", fake.root).returncode == 2
    assert run_cli("import", "nothing", "--store", fake.root).returncode == 4
    assert run_cli("list", "--store", tmp_path / "absent").returncode == 4
    fake.manifest_path("hf.co/org/repo-GGUF/Q4_K_M").write_text("")
    listed = json.loads(run_cli("list", "--json", "--store", fake.root).stdout)
    assert [row["state"] for row in listed] == ["it is empty", "here"]
    assert run_cli("import", "hf.co/org/repo-GGUF:Q4_K_M", "--store", fake.root).returncode == 3


def test_case_b52_a_folder_that_may_not_be_read_is_said_to_be_so(fake: FakeStore) -> None:
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from opencoti.errors import OpencotiError\n"
        "from opencoti.ollama.store import Store, open_stores\n"
        "import opencoti.ollama.manifest\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setuid(65534)\n"  # root may read everything
        "try: open_stores((Store(root=Path(sys.argv[1]), reason='test'),))\n"
        "except OpencotiError as error: print(error.error_id)\n"
    )
    for folder in (fake.root, fake.root / "manifests"):
        folder.chmod(0o000)
        done = subprocess.run(
            [sys.executable, "-c", program, str(fake.root)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd="/",
            capture_output=True,
            text=True,
        )
        folder.chmod(0o755)
        assert done.stdout == "ollama-store-unreadable\n", done.stderr


@pytest.mark.engine
def test_real_engine_loads_a_blob_without_an_extension(tmp_path: Path, real_layout: Layout) -> None:
    options = real_options(real_layout)
    assert options.model is not None
    fake = FakeStore(tmp_path / "models")
    digest = fake.add_linked("registry.ollama.ai/library/tiny/latest", options.model)
    stores = (Store(root=fake.root, reason="test"),)
    done = import_model("tiny", stores, RecordedConsole().console)
    assert done.model.path.name == f"sha256-{digest}"
    environ = {**os.environ, "OPENCOTI_CACHE_DIR": str(tmp_path / "cache")}
    wanted = replace(options, model=done.model.path, alias=str(done.reference))
    with launch(wanted, environ=environ) as engine, Client(engine.url) as client:
        assert engine.state.model == str(done.model.path)
        answer = client.complete("once", Sampling(max_tokens=4))
        assert client.models() == ("tiny:latest",)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 4
    assert os.path.samefile(done.model.path, options.model)
