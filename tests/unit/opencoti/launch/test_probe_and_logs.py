"""Questions to a server that is not trusted, and reading a log that is cut meanwhile."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from opencoti.launch import failures
from opencoti.launch.failures import start_error
from opencoti.launch.logs import follow_log, last_lines
from opencoti.launch.probe import Address, NoAnswerError, ask
from opencoti.launch.ready import as_told, is_same_file


@contextmanager
def server(answer: bytes, *, keep_open: bool = False) -> Iterator[Address]:
    """Give one raw answer to one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                try:
                    connection.sendall(answer)
                except OSError:
                    return
                if keep_open:
                    done.wait(20)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Address(host="127.0.0.1", port=listener.getsockname()[1])
        done.set()
        thread.join()


def test_answer_is_read_to_its_promised_length() -> None:
    raw = b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"a": 1}'
    with server(raw, keep_open=True) as address:
        answer = ask(address, "/", timeout_s=10)
    assert (answer.status, answer.field("a")) == (200, 1)


def test_answer_without_length_ends_with_the_connection() -> None:
    with server(b'HTTP/1.0 503 Loading\r\n\r\n{"a": 2}') as address:
        assert ask(address, "/", timeout_s=10).status == 503


def test_half_a_document_is_no_document() -> None:
    with server(b'HTTP/1.0 200 OK\r\n\r\n{"a": ') as address:
        assert ask(address, "/", timeout_s=10).document is None


@pytest.mark.parametrize("raw", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1\r\n\r\n", b"\x00\x01\x02"])
def test_what_is_no_http_is_no_answer(raw: bytes) -> None:
    with server(raw) as address, pytest.raises(NoAnswerError, match="HTTP"):
        ask(address, "/", timeout_s=10)


def test_silence_ends_at_the_deadline() -> None:
    with (
        server(b"HTTP/1.1 200 OK\r\n", keep_open=True) as address,
        pytest.raises(NoAnswerError, match="no answer"),
    ):
        ask(address, "/", timeout_s=0.2)


def test_endless_answer_is_cut_off() -> None:
    endless = b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (5 << 20)
    with server(endless) as address, pytest.raises(NoAnswerError, match="longer"):
        ask(address, "/", timeout_s=10)


def test_last_lines_go_on_in_the_older_part(tmp_path: Path) -> None:
    (tmp_path / "x.log.1").write_bytes(b"1\n2\n3\n")
    (tmp_path / "x.log").write_bytes(b"4\n\xff5\n")
    assert last_lines(tmp_path / "x.log", 3) == ["3", "4", "\ufffd5"]
    assert last_lines(tmp_path / "x.log", 0) == []
    assert last_lines(tmp_path / "none", 3) == []


def test_following_survives_that_the_log_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"old\n")
    script = iter([b"a\nb", b"\nc\n", None, b"d\n"])
    alive = iter([True] * 4 + [False])

    def pause(seconds: float) -> None:
        data = next(script)
        if data is None:
            log.write_bytes(b"")
        else:
            with open(log, "ab") as file:
                file.write(data)

    assert list(follow_log(log, lambda: next(alive), pause=pause)) == ["a", "b", "c", "d"]


def test_tail_of_a_log_is_printable(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"\x1b[31mred\n\xff\xfe\n" + b"x" * 1000)
    assert failures.tail_lines(log) == ["?[31mred", "\ufffd\ufffd", "x" * 300]


@pytest.mark.parametrize(
    ("mode", "has_no_programs", "error_id"),
    [
        (0o755, True, "engine-on-noexec"),
        (0o644, True, "engine-on-noexec"),  # the bit alone would not help there
        (0o644, False, "engine-not-executable"),
        (0o755, False, "engine-not-permitted"),
    ],
)
def test_refused_file_says_whether_bit_or_file_system_is_to_blame_case_b51(
    tmp_path: Path, mode: int, has_no_programs: bool, error_id: str
) -> None:
    artifact = tmp_path / "engine"
    artifact.write_bytes(b"MZ")
    artifact.chmod(mode)
    error = start_error(errno.EACCES, artifact, has_no_programs=lambda path: has_no_programs)
    assert (error.error_id, error.exit_code) == (error_id, 8)


@pytest.mark.parametrize("served", ["", "a\0b", "\ud800", "/" + "x" * 300, "/nowhere/m.gguf"])
def test_what_no_path_can_be_is_another_model_and_no_crash_case_b45(tmp_path: Path, served: str) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    assert not is_same_file(served, model)
    assert is_same_file(str(tmp_path / "." / "m.gguf"), model)


def test_names_of_an_engine_are_written_down_and_printed_safely() -> None:
    assert as_told("Gemma ü") == "Gemma ü"
    assert as_told("a\0\ud800\x1b[2J\n") == "a???[2J?"
    assert len(as_told("x" * 10_000_000)) == 1024


def test_rules_for_windows_programs_are_named(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("enabled\n")
    (tmp_path / "wine").write_text("enabled\ninterpreter /usr/bin/wine\nflags: \noffset 0\nmagic 4d5a\n")
    (tmp_path / "off").write_text("disabled\ninterpreter /usr/bin/mono\noffset 0\nmagic 4d5a\n")
    (tmp_path / "ape").write_text("enabled\ninterpreter /usr/bin/ape\noffset 0\nmagic 4d5a714650443d27\n")
    assert failures.hijacker_names(tmp_path) == "/usr/bin/wine"
    assert "Wine" in failures.hijacker_names(tmp_path / "none")
