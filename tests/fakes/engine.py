"""A stand-in engine that misbehaves on request. Imitates what the smoke test sees of llama-server.

`write_artifact` makes an executable file that starts this program with a mode; the program then takes the
words of the real server (`--version`, `--model`, `--alias`, `--host`, `--port`), answers its paths over real
sockets, and does one thing wrong. Run by tests only, in a process of its own.
"""

# ruff: noqa: T201 (a program of its own: its output is what is tested)
from __future__ import annotations

import argparse
import json
import math
import mmap
import os
import shutil
import signal
import socketserver
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

Mode = Literal[
    "good",
    "wrong-model",  # healthy, but serves another model: what a lying or foreign server looks like
    "wrong-path",  # our alias, another file
    "waits-for-port",  # never binds, stays alive
    "bind-fails",  # ends with exit code 1, as the real one does when the port is taken
    "spam",  # 1 MiB of log, not UTF-8, before and after it is ready
    "dies-at-start",
    "dies-loading",  # listens, says 503, then ends
    "dies-answering",
    "never-ready",  # 503 for ever
    "early-200",  # healthy at once, but everything else says 503 for a while
    "early-200-for-ever",
    "half-json",  # its description of itself ends in the middle
    "endless-props",
    "endless-token",  # the first answer never ends
    "huge-error",  # an error with a body of a gigabyte
    "never-listens",
    "endless-body",
    "slow-body",  # one byte at a time
    "huge-body",
    "no-json",
    "error-500",
    "empty-text",
    "no-finish",
    "no-tokens",
    "random-text",
    "nan-vector",
    "short-vector",
    "same-vectors",
    "ignores-sigterm",
    "aborts-at-end",
    "leaves-child",
    "leaves-detached-child",  # a child in a session of its own
    "open-to-all",
    "no-identity",
    "unidentified",
    "other-build",
    "props-without-identity",
    "opens-planted",  # opens and closes the library of the working folder
    "maps-planted",
    "maps-outside",  # maps a backend library that lies outside HOME
    "replaces-mapped",  # another file takes the name of the mapped one
    "prints-environment",
    "wine",
    "detectors",
    "version-fails",
    "version-hangs",
    "takes-from-cache",  # a part of the prompt was computed before
    "does-less",  # fewer tokens than were asked for
    "stops-the-clock",  # its times are longer than the request was
    "no-timings",
    "gpu",  # lists a device and computes on it
    "gpu-falls-back",  # lists a device, loads its library, and computes on the CPU without a word
    "gpu-without-library",  # says that it computes on a device whose library it never loaded
]

VERSION_STRING = "opencoti-0.5.0-g0123456-c1"
PATCH_SET = "ab" * 32
COMMIT = "0123456789" * 4
WIDTH = 64
LIBRARY = b"\x7fELF stand-in for a backend library"
GPU_LIBRARY = "libggml-vulkan.so"
GPU_NAME = "A card"
LAYERS = 3  # the output is one of them
SPAM_BYTES = 1 << 20


def write_artifact(
    path: Path, mode: Mode, *, first_line: str = "#!/bin/sh", notes: Path | None = None
) -> Path:
    """Write an executable file that runs the stand-in; `notes` is where it writes down its process id."""
    note = f"FAKE_ENGINE_NOTES='{notes}' " if notes else ""
    command = f"{note}exec '{sys.executable}' -I '{Path(__file__).resolve()}' {mode} \"$@\""
    path.write_text(f"{first_line}\n{command.replace('exec', 'exec env') if note else command}\n")
    path.chmod(0o755)
    return path


class Engine(socketserver.ThreadingTCPServer):
    """The server and its state."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, mode: Mode, args: argparse.Namespace) -> None:
        self.mode = mode
        self.args = args
        self.health_requests = 0
        self.texts = 0
        self.questions = 0
        host = "0.0.0.0" if mode == "open-to-all" else args.host
        super().__init__((host, args.port), Handler)


class Handler(BaseHTTPRequestHandler):
    """The paths that the smoke test asks for."""

    protocol_version = "HTTP/1.1"
    timeout = 30
    server: Engine

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        print(format % args, file=sys.stderr, flush=True)

    def do_GET(self) -> None:
        if self.path == "/health":
            self._health()
        elif self._is_early():
            self._send({"error": {"message": "Loading model", "code": 503}}, status=503)
        elif self.path == "/props" and self.server.mode == "half-json":
            self._send_bytes(b'{"model_path": "', 200)
        elif self.path == "/props" and self.server.mode == "endless-props":
            self._send_without_end("huge-body")
        elif self.path == "/v1/models":
            name = "somebody-else" if self.server.mode == "wrong-model" else self.server.args.alias
            self._send({"object": "list", "data": [{"id": name}]})
        elif self.path == "/props":
            self._send(self._props())
        else:
            self._send({"error": "not found"}, status=404)

    def do_POST(self) -> None:
        started = time.perf_counter()
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.server.mode == "dies-answering":
            os._exit(7)
        if self._is_early():
            self._send({"error": {"message": "Loading model", "code": 503}}, status=503)
        elif self.server.mode == "endless-token":
            self._send_without_end("huge-body")
        elif self.server.mode == "huge-error":
            self._send_without_end("huge-body", status=500, most_bytes=1 << 30)
        elif self.path == "/completion":
            self._complete(json.loads(body), started)
        elif self.path == "/v1/chat/completions":
            self._chat()
        elif self.path == "/v1/completions":
            tokens = 0 if self.server.mode == "no-tokens" else 1
            self._send({"choices": [{"text": "a"}], "usage": {"completion_tokens": tokens}})
        else:
            self._embedding()

    def _is_early(self) -> bool:
        """Tell whether what was said about its health is not true yet."""
        self.server.questions += 1
        early = {"early-200": 12, "early-200-for-ever": 1 << 30}
        return self.server.questions < early.get(self.server.mode, 0)

    def _health(self) -> None:
        mode = self.server.mode
        if mode.startswith("early-200"):
            self._send({"status": "ok"})
            return
        self.server.health_requests += 1
        if mode == "dies-loading" and self.server.health_requests > 1:
            print("error: tensor 'blk.0' is out of bounds", file=sys.stderr, flush=True)
            os._exit(3)
        loading = mode in ("never-ready", "dies-loading") or self.server.health_requests < 2
        if mode == "spam" and not loading:
            _spam()
        self._send({"status": "loading" if loading else "ok"}, status=503 if loading else 200)

    def _props(self) -> dict[str, Any]:
        mode = self.server.mode
        props: dict[str, Any] = {"model_alias": self.server.args.alias, "model_path": self.server.args.model}
        if mode == "wrong-path":
            props["model_path"] = "/models/other.gguf"
        if mode not in ("no-identity", "props-without-identity"):
            props["opencoti"] = dict(
                zip(("version_string", "patch_set", "upstream_commit"), _identity(mode), strict=True)
            )
        return props

    def _chat(self) -> None:
        mode = self.server.mode
        self.server.texts += 1
        if mode in ("endless-body", "slow-body", "huge-body"):
            self._send_without_end(mode)
            return
        if mode == "no-json":
            self._send_bytes(b"<html>proxy</html>", 200)
            return
        if mode == "error-500":
            self._send({"error": {"message": "compute failed"}}, status=500)
            return
        text = "" if mode == "empty-text" else "waves and salt"
        if mode == "random-text":
            text += str(self.server.texts)
        tokens = 0 if mode == "no-tokens" else 3
        self._send(
            {
                "choices": [
                    {
                        "finish_reason": None if mode == "no-finish" else "length",
                        "message": {"role": "assistant", "content": text},
                    }
                ],
                "usage": {"prompt_tokens": 9, "completion_tokens": tokens},
                "timings": {"predicted_per_second": 120.5},
            }
        )

    def _complete(self, asked: dict[str, Any], started: float) -> None:
        """Answer with the times of work that took no time: half of what went by since it was asked."""
        mode, prompt, count = self.server.mode, len(asked["prompt"]), asked["n_predict"]
        cached = 8 if mode == "takes-from-cache" else 0
        share_ms = (time.perf_counter() - started) * 250
        timings = {
            "cache_n": cached,
            "prompt_n": prompt - cached,
            "prompt_ms": 1e6 if mode == "stops-the-clock" else share_ms,
            "predicted_n": count - 1 if mode == "does-less" else count,
            "predicted_ms": share_ms,
        }
        self._send({"content": "waves", "timings": None if mode == "no-timings" else timings})

    def _embedding(self) -> None:
        mode = self.server.mode
        first = [0.5] * (WIDTH - (mode == "short-vector"))
        second = first if mode == "same-vectors" else [0.25] * WIDTH
        body = json.dumps({"data": [{"embedding": first}, {"embedding": second}]})
        if mode == "nan-vector":
            body = body.replace("0.25", "null", 1)
        self._send_bytes(body.encode(), 200)

    def _send_without_end(self, mode: Mode, *, status: int = 200, most_bytes: float = math.inf) -> None:
        self.send_response(status)
        self.send_header("Connection", "close")
        self.end_headers()
        sent = 0
        block = b" " if mode == "slow-body" else b" " * (1 << 20 if mode == "huge-body" else 1024)
        try:
            while sent < most_bytes:
                self.wfile.write(block)
                sent += len(block)
                if mode != "huge-body":
                    time.sleep(0.02)
        except OSError:
            self.close_connection = True

    def _send(self, document: dict[str, Any], *, status: int = 200) -> None:
        self._send_bytes(json.dumps(document).encode(), status)

    def _send_bytes(self, body: bytes, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _identity(mode: Mode) -> tuple[str, str, str]:
    if mode == "unidentified":
        return ("unidentified",) * 3
    return (VERSION_STRING, PATCH_SET, "f" * 40 if mode == "other-build" else COMMIT)


def _spam() -> None:
    sys.stderr.buffer.write(b"\xff\xfe spam\n" * (SPAM_BYTES // 8))
    sys.stderr.buffer.flush()


def _extract() -> Path:
    """Do what the loader does: put the libraries below HOME."""
    folder = Path(os.environ["HOME"]) / ".llamafile" / "v" / "fake"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libggml-cpu-fake.so"
    library.write_bytes(LIBRARY)
    return library


class Held:
    """Memory maps and children that live as long as the process."""

    things: ClassVar[list[Any]] = []


def _map(path: Path) -> None:
    with open(path, "rb") as file:
        Held.things.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _load_libraries(mode: Mode, library: Path) -> None:
    planted = Path.cwd() / "libggml-cpu-evil.so"
    if mode == "opens-planted":
        planted.read_bytes()
    elif mode == "maps-planted":
        _map(planted)
    elif mode == "maps-outside":
        outside = Path(os.environ["TMPDIR"]) / "libggml-cpu-stale.so"
        shutil.copyfile(library, outside)
        _map(outside)
        return
    _map(library)
    if mode == "replaces-mapped":
        other = library.with_name("new")
        other.write_bytes(LIBRARY + b" of another build")
        other.replace(library)


def _load_gpu(mode: Mode, library: Path) -> None:
    """Do what the engine does at its most talkative: load a backend, and say where each layer is."""
    if not mode.startswith("gpu"):
        return
    if mode != "gpu-without-library":
        own = library.with_name(GPU_LIBRARY)
        own.write_bytes(LIBRARY)
        _map(own)
    device = "CPU" if mode == "gpu-falls-back" else "Vulkan0"
    for layer in range(LAYERS):
        print(f"load_tensors: layer {layer:3} assigned to device {device}, is_swa = 0", file=sys.stderr)
    print(f"llama_kv_cache: {device:>10} KV buffer size =     0.12 MiB", file=sys.stderr)
    print("sched_reserve: graph: nodes = 77, splits = 2, took 1 ms", file=sys.stderr, flush=True)


def _version(mode: Mode) -> int:
    if mode == "version-hangs":
        signal.pause()
    if mode == "version-fails":
        os.abort()
    print("version: 0.5.0-dev (build 0, commit 0123456)", file=sys.stderr)
    if mode != "no-identity":
        version, patches, commit = _identity(mode)
        print(f"opencoti: {version}\npatch set: {patches}\nupstream commit: {commit}", file=sys.stderr)
    return 0


def _start_children(mode: Mode) -> None:
    if mode in ("leaves-child", "leaves-detached-child"):
        is_detached = mode == "leaves-detached-child"
        line = [
            sys.executable,
            "-c",
            "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()",
        ]
        child = subprocess.Popen(line, stdout=subprocess.PIPE, start_new_session=is_detached)
        assert child.stdout is not None
        child.stdout.readline()
        Held.things.append(child)


def _prepare_end(mode: Mode) -> None:
    def end(signum: int, frame: object) -> None:
        if mode == "aborts-at-end":
            print("free(): invalid pointer", file=sys.stderr, flush=True)
            os.abort()
        os._exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "ignores-sigterm" else end)


def _fail_early(mode: Mode) -> None:
    texts = {
        "dies-at-start": (1, "error: unknown argument"),
        "bind-fails": (1, "couldn't bind HTTP server socket"),
        "wine": (1, "wine: could not load kernel32.dll, status c0000135"),
        "detectors": (1, "run-detectors: unable to find an interpreter for artifact"),
    }
    if mode in texts:
        code, text = texts[mode]
        print(text, file=sys.stderr, flush=True)
        os._exit(code)
    if mode in ("waits-for-port", "never-listens"):
        signal.pause()


def main(argv: list[str]) -> int:
    """Be the engine."""
    mode: Mode = next(item for item in get_args(Mode) if item == argv[0])
    if notes := os.environ.get("FAKE_ENGINE_NOTES"):
        Path(notes).write_text(f"{os.getpid()}\n")
    if "--version" in argv:
        _extract()
        return _version(mode)
    if "--list-devices" in argv:
        print(f"Available devices:\n  Vulkan0: {GPU_NAME} (8192 MiB, 8000 MiB free)", flush=True)
        return 0
    parser = argparse.ArgumentParser()
    for name in ("--model", "--alias", "--host"):
        parser.add_argument(name, required=True)
    parser.add_argument("--port", type=int, required=True)
    args, _ = parser.parse_known_args(argv[1:])
    _prepare_end(mode)
    _fail_early(mode)
    if mode == "prints-environment":
        print("environment:", json.dumps(dict(os.environ)), flush=True)
    if mode == "spam":
        _spam()
    library = _extract()
    _load_libraries(mode, library)
    _load_gpu(mode, library)
    _start_children(mode)
    with Engine(mode, args) as engine:
        engine.serve_forever(poll_interval=0.05)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
