"""The command, and downloads from a server on loopback."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from opencoti.models.table import load_table
from tests.conftest import ROOT
from tests.fakes.http_faults import Fault, serving
from tests.fakes.ollama_store import tiny_gguf

MODEL = tiny_gguf(tensors=2000)
SHA = hashlib.sha256(MODEL).hexdigest()


def run_cli(*words: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENCOTI_")}
    return subprocess.run(
        [sys.executable, "-m", "opencoti.models", *map(str, words)],
        env={**kept, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


@contextmanager
def announcing(value: str, target: str, status: int = 302) -> Iterator[str]:
    """A host that keeps large files elsewhere, by their hash."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.send_header("Location", target)
            self.send_header("X-Linked-ETag", value)
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/m/model.gguf"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_list_and_recommend_are_data() -> None:
    table = json.loads(run_cli("list", "--json").stdout)
    assert [quant["name"] for quant in table["quants"]][:2] == ["IQ2_S", "IQ3_M"]
    found = json.loads(run_cli("recommend", "--vram", "16", "--json").stdout)
    assert (found["quant"], found["where"]) == ("Q4_K_S", "gpu")
    text = run_cli("recommend", "--vram", "16").stdout
    assert text.startswith("Q4_K_S (16 GB cards, good headroom)")
    refused = run_cli("recommend", "--vram", "16", "--cache-type-v", "q8_0")
    assert (refused.returncode, "cache-needs-flash-attention" in refused.stderr) == (2, True)


def test_inspect_reads_any_name_and_refuses_what_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "sha256-abc"
    path.write_bytes(MODEL)
    data = json.loads(run_cli("inspect", path, "--json", "--context", "4096").stdout)
    assert data["cache"]["total_bytes"] == 2 * 2 * 16 * 2 * 2 * 4096
    path.write_bytes(MODEL[:-100])
    refused = run_cli("inspect", path)
    assert (refused.returncode, "it is cut off" in refused.stderr) == (3, True)
    assert "Traceback" not in refused.stderr


def test_download_is_verified_resumed_and_put_where_gc_leaves_it(tmp_path: Path) -> None:
    environ = {"OPENCOTI_CACHE_DIR": str(tmp_path), "OPENCOTI_TIMEOUT_S": "5"}
    with serving(MODEL, Fault(kind="close", at=20_000)) as server:
        words = ("download", "--url", server.url(), "--sha256", SHA, "--name", "m.gguf")
        done = run_cli(*words, **environ)
        assert done.returncode == 0, done.stderr
        path = Path(done.stdout.strip())
        assert path == tmp_path / "models" / SHA[:12] / "m.gguf"
        assert path.read_bytes() == MODEL
        assert server.ranges == ["", "bytes=20000-"]
        again = json.loads(run_cli(*words, "--json", **environ).stdout)
        assert again["action"] == "already-there"
    swept = subprocess.run(
        [sys.executable, "-m", "opencoti.fetch", "gc", "--keep", "0"],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
    )
    assert swept.returncode == 0, swept.stderr
    assert path.exists()


def test_wrong_bytes_and_right_bytes_that_are_no_model_are_refused(tmp_path: Path) -> None:
    environ = {"OPENCOTI_CACHE_DIR": str(tmp_path)}
    with serving(MODEL, Fault(kind="garbage")) as server:
        words = ("download", "--url", server.url(), "--sha256", SHA)
        assert run_cli(*words, **environ).returncode == 6
    page = b"<html>log in first</html>"
    with serving(page) as server:
        words = ("download", "--url", server.url(), "--sha256", hashlib.sha256(page).hexdigest())
        refused = run_cli(*words, **environ)
        assert (refused.returncode, "gguf-malformed" in refused.stderr) == (3, True)


def test_without_a_hash_nobody_is_asked(tmp_path: Path) -> None:
    with serving(MODEL) as server:
        refused = run_cli("download", "--url", server.url(), OPENCOTI_CACHE_DIR=str(tmp_path))
        assert (refused.returncode, "model-hash-unknown" in refused.stderr) == (2, True)
        assert server.seen == []
    assert run_cli("download", "IQ3_M", OPENCOTI_CACHE_DIR=str(tmp_path)).returncode == 2


def test_a_hash_that_the_host_announces_counts_where_the_user_says_so(tmp_path: Path) -> None:
    environ = {"OPENCOTI_CACHE_DIR": str(tmp_path)}
    with serving(MODEL) as server, announcing(f'"{SHA}"', server.url()) as url:
        done = run_cli("download", "--url", url, "--trust-host", **environ)
        assert done.returncode == 0, done.stderr
        assert Path(done.stdout.strip()).read_bytes() == MODEL
        assert "nobody else says so" in done.stderr
        assert run_cli("download", "--url", url, "--trust-host", OPENCOTI_OFFLINE="1").returncode == 7
    with serving(MODEL) as server, announcing(f'"{"0" * 64}"', server.url()) as url:
        assert run_cli("download", "--url", url, "--trust-host", **environ).returncode == 6
    with serving(MODEL) as server, announcing("an etag", server.url()) as url:
        refused = run_cli("download", "--url", url, "--trust-host", **environ)
        assert (refused.returncode, "model-hash-not-announced" in refused.stderr) == (6, True)
    with announcing("", "", status=401) as url:
        assert run_cli("download", "--url", url, "--trust-host", **environ).returncode == 7


def test_a_table_of_the_user_brings_address_and_hash(tmp_path: Path) -> None:
    document = load_table().model_dump(mode="json", by_alias=True)
    with serving(MODEL) as server:
        for quant in document["quants"]:
            quant |= {"url": server.url(), "sha256": SHA}
        (tmp_path / "quants.json").write_text(json.dumps(document))
        done = run_cli(
            "download", "IQ2_S", "--table", tmp_path / "quants.json", OPENCOTI_CACHE_DIR=str(tmp_path)
        )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [("--help",), ("recommend", "--help")])
def test_help_is_quick_to_load(words: tuple[str, ...]) -> None:
    code = (
        "import sys\nsys.argv = ['x', *sys.argv[1:]]\n"
        "import opencoti.models.cli as cli\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
        "print([m for m in ('httpx', 'pydantic', 'rich', 'cryptography') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
