"""A running server of the real engine, for tests: its log line by line, its memory, and requests to it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

WORKS: Final = "slot launch_slot_: id +0 .*processing task"
"""What the log says when the first slot begins with a request."""
_START_S: Final = 120.0
_REQUEST_S: Final = 240.0
_MAPPING: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+\s*(.*)$")
_LISTENING: Final = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back: the status, and the JSON object."""

    status: int
    data: Mapping[str, Any]


@dataclass(kw_only=True)
class _Block:
    """Neighbouring mappings of one kind."""

    start: int
    end: int = 0
    is_file: bool
    kib: int = 0


class Running:
    """A server process. `spawned` makes it and ends it."""

    def __init__(self, child: subprocess.Popen[str], *, kill: Callable[[], object] | None = None) -> None:
        self._child = child
        self._kill = kill or child.kill
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._has_ended = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self._port = 0

    def _read(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    @property
    def log(self) -> str:
        """What the server wrote so far."""
        with self._changed:
            return "".join(self._lines)

    def wait_for(self, pattern: str, *, timeout_s: float = _START_S, count: int = 1) -> list[re.Match[str]]:
        """Return the first `count` places of the log that match, as soon as they are there."""
        wanted = re.compile(pattern)

        def found() -> list[re.Match[str]]:
            return [match for line in self._lines if (match := wanted.search(line))]

        with self._changed:
            done = self._changed.wait_for(lambda: len(found()) >= count or self._has_ended, timeout=timeout_s)
            assert done, f"no {pattern!r} in the log: {''.join(self._lines[-20:])}"
            assert len(found()) >= count, f"the server ended: {''.join(self._lines[-20:])}"
            return found()[:count]

    def wait_until_ready(self) -> None:
        """Wait until it listens."""
        self._port = int(self.wait_for(_LISTENING.pattern)[0][1])

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    def ask_to_end(self) -> None:
        """Have it end in good order, in its own time."""
        self._child.terminate()

    def wait_for_end(self) -> int:
        """Wait until it ends by itself; return its exit code."""
        code = self._child.wait(timeout=_START_S)
        self._reader.join()
        return code

    def ask(
        self, path: str, body: Mapping[str, object] | None = None, *, method: str | None = None
    ) -> Answer:
        """POST a JSON object, or GET without one, unless another method is given."""
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=_REQUEST_S) as answer:
                return Answer(status=answer.status, data=json.load(answer))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(status=error.code, data=json.load(error))

    def complete(self, prompt: Sequence[int], count: int, **more: object) -> Answer:
        """Ask for the most likely tokens after those of `prompt`."""
        body = {"prompt": list(prompt), "n_predict": count, "temperature": 0, "return_tokens": True}
        return self.ask("/completion", body | more)

    def slots(self, query: str = "") -> list[dict[str, Any]]:
        """Ask what its slots do; a router, those of a model."""
        with urllib.request.urlopen(self.url + "/slots" + query, timeout=_REQUEST_S) as answer:
            return list(json.load(answer))

    @property
    def largest_block_mib(self) -> float:
        """What is backed of the largest stretch of anonymous memory: a KV cache of many tokens."""
        blocks: list[_Block] = []
        for line in Path(f"/proc/{self._child.pid}/smaps").read_text().splitlines():
            if header := _MAPPING.match(line):
                start, end = int(header[1], 16), int(header[2], 16)
                # A stretch is cut where advice to the kernel differs.
                if header[3] or not blocks or blocks[-1].end != start or blocks[-1].is_file:
                    blocks.append(_Block(start=start, is_file=bool(header[3])))
                blocks[-1].end = end
            elif line.startswith("Rss:"):
                blocks[-1].kib += int(line.split()[1])
        anonymous = [block for block in blocks if not block.is_file]
        return max(anonymous, key=lambda block: block.end - block.start).kib / 1024

    @property
    def mapped_files(self) -> list[str]:
        """Paths of the files that are mapped for reading and shared with the file."""
        maps = Path(f"/proc/{self._child.pid}/maps").read_text().splitlines()
        return [line.split(maxsplit=5)[5] for line in maps if " r--s " in line and "/" in line]

    def end(self) -> None:
        """End it and its thread."""
        self._kill()
        self._child.wait()
        self._reader.join()
        assert self._child.stderr is not None
        self._child.stderr.close()


def _start(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    )


@contextmanager
def spawned(
    engine: Path, *words: str, home: Path, variables: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """Start a server on a free port; it may still end by itself."""
    command = [str(engine), "--host", "127.0.0.1", "--port", "0", *words]
    child = _start(command, env={"PATH": os.environ["PATH"], "HOME": str(home)} | dict(variables or {}))
    server = Running(child)
    try:
        yield server
    finally:
        server.end()


@contextmanager
def started(
    engine: Path, *words: str, home: Path, variables: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """Start a server and wait until it answers."""
    with spawned(engine, *words, home=home, variables=variables) as server:
        server.wait_until_ready()
        yield server


@contextmanager
def contained(
    image: str, engine: Path, *words: str, home: Path, files: Sequence[Path], variables: Sequence[str] = ()
) -> Iterator[Running]:
    """Start a server in a container with the device in software, and wait until it answers."""
    name = f"opencoti-test-{uuid.uuid4().hex[:12]}"
    mounts = [f"{path}:{path}:ro" for path in (engine, *files)] + [f"{home}:{home}"]
    variables = (f"HOME={home}", "GGML_VK_VISIBLE_DEVICES=0", *variables)
    child = _start(
        [
            *("docker", "run", "--rm", "--name", name, "--network", "host"),
            *("--user", f"{os.getuid()}:{os.getgid()}"),
            *(word for mount in mounts for word in ("-v", mount)),
            *(word for variable in variables for word in ("-e", variable)),
            *(image, str(engine), "--host", "127.0.0.1", "--port", "0"),
            *("--device", "Vulkan0", "-ngl", "all", "--fit", "off", *words),
        ]
    )

    def kill() -> None:
        subprocess.run(["docker", "kill", name], check=False, capture_output=True)

    server = Running(child, kill=kill)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.end()
