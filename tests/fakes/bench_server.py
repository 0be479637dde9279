"""A stand-in for the two servers of a bench, as a program. Imitates what `perf.sides` sees of llama-server.

Tokens are words. A stock one remembers the last prompt only, as a slot that everybody is thrown onto does;
one with sessions remembers each session, forks what it shares, and finds sessions again after a restart.
`write_server` makes the program; it runs in a process of its own and tells one lie if asked to.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

Kind = Literal[
    "stock",
    "sessions",
    "counts-cached",  # cached tokens are counted as computed as well
    "ends-early",
    "knows-too-much",  # says that the first prompt ever was cached
    "fast-clock",  # says that it took longer than the request did
    "rewrites",  # its template changes the history
    "other-pin",
    "no-help",
]
COMMIT = "c0ffee" + "0" * 34
ROOT = Path(__file__).resolve().parent.parent.parent


def write_server(path: Path, kind: Kind) -> Path:
    """Write the program; with this Python, and nothing from the environment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        f"from tests.fakes.bench_server import main\nmain({kind!r})\n"
    )
    path.chmod(0o755)
    return path


class _Handler(BaseHTTPRequestHandler):
    kind: ClassVar[str]
    saved: ClassVar[Path | None] = None
    known: ClassVar[dict[str, list[str]]] = {}
    lock: ClassVar[threading.Lock] = threading.Lock()
    is_busy: ClassVar[bool] = False
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/slots":
            # Busy, and idle when asked again: the prompt was given up meanwhile.
            _Handler.is_busy = not self.is_busy
        commit = "1" * 40 if self.kind == "other-pin" else COMMIT
        answers: dict[str, Any] = {
            "/health": {"status": "ok"},
            "/props": {
                "opencoti": {"upstream_commit": commit, "patch_set": self.kind, "version_string": "x1"}
            },
            "/slots": [{"is_processing": self.is_busy, "n_prompt_tokens_processed": 1_000_000}],
        }
        self._send(answers[self.path])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        words = [word for message in body["messages"] for word in message["content"].split()]
        if self.path == "/apply-template":
            prefix = f"{len(words)} " if self.kind == "rewrites" else ""
            self._send({"prompt": prefix + " ".join(words)})
            return
        with self.lock:
            self._send(self._chat(words, body))

    def _chat(self, words: list[str], body: dict[str, Any]) -> dict[str, Any]:
        cached = self._remember(words, body.get("session_id", ""))
        made = 1 if self.kind == "ends-early" else body["max_tokens"]
        return {
            "choices": [{"message": {"content": "ok " * made}}],
            "usage": {"prompt_tokens": len(words)},
            "timings": {
                "cache_n": len(words) if self.kind == "knows-too-much" else cached,
                "prompt_n": 0
                if self.kind == "knows-too-much"
                else len(words) - (0 if self.kind == "counts-cached" else cached),
                "prompt_ms": 1e6 if self.kind == "fast-clock" else 0.01,
                "predicted_n": made,
                "predicted_ms": 0.01,
            },
        }

    def _remember(self, words: list[str], session: str) -> int:
        has_sessions = self.kind == "sessions"
        best = max((_common(words, other) for other in self.known.values()), default=0)
        self.known[session if has_sessions else ""] = words
        if self.saved is not None:
            (self.saved / "sessions.json").write_text(json.dumps(self.known))
        return best

    def _send(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


def _common(one: list[str], other: list[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def main(kind: str) -> None:
    """Serve until SIGTERM."""
    assert kind in get_args(Kind)
    if "--help" in sys.argv:
        options = "--session-save-path DIR\n" if kind == "sessions" else ""
        sys.stdout.write(f"--model FNAME\n{options}")
        sys.exit(3 if kind == "no-help" else 0)
    parser = argparse.ArgumentParser()
    parser.add_argument("--session-save-path", type=Path, default=None)
    args, _ = parser.parse_known_args()
    _Handler.kind, _Handler.saved = kind, args.session_save_path
    if args.session_save_path and (args.session_save_path / "sessions.json").is_file():
        _Handler.known = json.loads((args.session_save_path / "sessions.json").read_text())
    ThreadingHTTPServer(("127.0.0.1", 0), _Handler).serve_forever()
