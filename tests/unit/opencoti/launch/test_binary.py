"""Where the engine is looked for, in which order, and what is said when there is none."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from opencoti.errors import MissingError, OpencotiError, UsageError, VerificationError
from opencoti.hashing import sha256_bytes
from opencoti.launch.binary import Search, find_binary
from tests.conftest import RecordedConsole


class Places:
    """Every place that may hold an engine, all empty."""

    def __init__(self, root: Path, console: RecordedConsole) -> None:
        self.root = root
        self.console = console
        self.bin = root / "bin"
        self.bin.mkdir()
        self.environ = {"OPENCOTI_CACHE_DIR": str(root / "cache"), "PATH": str(self.bin)}
        self.checkout = root / "checkout"
        self.pin = root / "my.pin"

    def put(self, path: Path, data: bytes = b"engine") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o755)
        return path

    def pin_to(self, data: bytes) -> None:
        self.pin.write_text(f"owner/repo v1 e.llamafile {sha256_bytes(data)}\n")

    def find(self, **words: object) -> tuple[Path, str]:
        given: dict[str, object] = {"environ": self.environ, "checkout": self.checkout} | words
        found = find_binary(Search(**given), self.console.console)  # type: ignore[arg-type]
        return found.path, found.named_by

    def fail(self, **words: object) -> OpencotiError:
        with pytest.raises(OpencotiError) as caught:
            self.find(**words)
        return caught.value


@pytest.fixture
def places(tmp_path: Path, recorded: RecordedConsole) -> Places:
    return Places(tmp_path, recorded)


def test_explicit_path_wins(places: Places) -> None:
    mine = places.put(places.root / "mine")
    places.environ["OPENCOTI_LLAMAFILE_LOCAL"] = str(places.put(places.root / "other"))
    assert places.find(explicit=mine) == (mine, "--binary")


def test_environment_comes_before_all_other_places(places: Places) -> None:
    local = places.put(places.root / "local")
    places.put(places.bin / "llama-server")
    places.environ["OPENCOTI_LLAMAFILE_LOCAL"] = str(local)
    assert places.find() == (local, "OPENCOTI_LLAMAFILE_LOCAL")
    assert "not verified" in places.console.text  # nothing has been released that it could be compared with


def test_environment_replaces_the_path_and_not_the_hash(places: Places) -> None:
    local = places.put(places.root / "local", b"mine")
    places.environ["OPENCOTI_LLAMAFILE_LOCAL"] = str(local)
    places.pin_to(b"mine")
    assert places.find(pin=places.pin) == (local, "OPENCOTI_LLAMAFILE_LOCAL")
    places.pin_to(b"another")
    error = places.fail(pin=places.pin)
    assert isinstance(error, VerificationError)
    assert error.error_id == "hash-mismatch"


def test_named_file_that_is_not_there_is_an_error_and_no_reason_to_go_on(places: Places) -> None:
    places.put(places.bin / "llama-server")
    places.environ["OPENCOTI_LLAMAFILE_LOCAL"] = "/nowhere/x"
    error = places.fail()
    assert isinstance(error, UsageError)
    assert error.error_id == "engine-path-wrong"
    assert places.fail(explicit=places.root).error_id == "engine-path-wrong"


def test_pinned_file_in_the_cache_comes_before_the_checkout(places: Places) -> None:
    places.pin_to(b"pinned")
    folder = places.root / "cache" / "artifacts" / sha256_bytes(b"pinned")[:12]
    cached = places.put(folder / "e.llamafile", b"pinned")
    places.put(
        places.checkout / "dist/llamafile" / f"opencoti-llamafile-1-linux-{platform.machine()}.llamafile"
    )
    assert places.find(pin=places.pin) == (cached, str(places.pin))
    cached.write_bytes(b"damaged")
    assert places.find(pin=places.pin)[1] == "the build of this checkout"


def test_newest_build_of_the_checkout_for_this_machine_is_taken(places: Places) -> None:
    folder = places.checkout / "dist" / "llamafile"
    for age, name in enumerate(("new", "old")):
        path = places.put(folder / f"opencoti-llamafile-{name}-linux-{platform.machine()}.llamafile")
        os.utime(path, (1000 - age, 1000 - age))
    places.put(folder / "opencoti-llamafile-newest-linux-riscv.llamafile")
    places.put(folder / f"opencoti-embedder-newest-linux-{platform.machine()}.llamafile")
    assert places.find()[0].name.startswith("opencoti-llamafile-new-linux-")


def test_path_is_the_last_place(places: Places) -> None:
    server = places.put(places.bin / "llama-server")
    assert places.find() == (server, "PATH")


def test_without_any_the_error_says_what_was_tried(places: Places) -> None:
    error = places.fail()
    assert isinstance(error, MissingError)
    assert error.error_id == "engine-not-found"
    for text in (
        "OPENCOTI_LLAMAFILE_LOCAL is not set",
        "no release yet",
        "no opencoti-llamafile for this machine",
        "on PATH",
    ):
        assert text in error.why
    # Before the first release a download would be a dead end.
    assert "opencoti.fetch" not in error.hint
    assert "OPENCOTI_LLAMAFILE_LOCAL" in error.hint


def test_malformed_pin_is_not_passed_over(places: Places) -> None:
    places.pin.write_text("nonsense\n")
    assert places.fail(pin=places.pin).error_id == "artifact-pin-malformed"
