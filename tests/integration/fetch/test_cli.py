"""The command as users and scripts call it, in processes of their own."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from tests.fakes.http_faults import Fault, serving
from tests.fakes.releases import sidecars
from tests.integration.fetch.bench import CONTENT, SHA, cli_env, cli_words, run_cli

ENGINE = "opencoti-llamafile-0.1-c1-{}.llamafile".format(
    "-".join(["linux", os.uname().machine]) if os.name == "posix" else "x"
)


def pin_file(folder: Path, line: str) -> Path:
    path = folder / "some.pin"
    path.write_text(f"# a pin\n{line}\n")
    return path


def local_engine(folder: Path, script: str) -> tuple[Path, Path]:
    """Write an engine that is a script, and a pin for it."""
    engine = folder / "built.llamafile"
    engine.write_text(script)
    sha = hashlib.sha256(engine.read_bytes()).hexdigest()
    return engine, pin_file(folder, f"file:{engine} c1 {ENGINE} {sha}")


def test_without_a_release_the_message_says_what_to_do(tmp_path: Path) -> None:
    done = run_cli(env={"OPENCOTI_CACHE_DIR": str(tmp_path)})
    assert (done.returncode, done.stdout) == (3, "")
    assert "no release yet" in done.stderr
    assert "./noxw -s quickstart" in done.stderr


def test_file_pin_is_copied_made_executable_and_only_its_path_is_on_stdout(tmp_path: Path) -> None:
    _, pin = local_engine(tmp_path, "#!/bin/sh\necho version 1\n")
    done = run_cli("get", "--pin", pin, "--dest", tmp_path / "d")
    target = tmp_path / "d" / ENGINE
    assert (done.returncode, done.stdout) == (0, f"{target}\n")
    assert stat.S_IMODE(target.stat().st_mode) == 0o755
    assert target.read_text() == "#!/bin/sh\necho version 1\n"
    again = run_cli("--pin", pin, "--dest", tmp_path / "d", "--json")
    assert json.loads(again.stdout)["action"] == "already-there"


def test_default_place_is_the_cache_under_the_hash(tmp_path: Path) -> None:
    engine, pin = local_engine(tmp_path, "#!/bin/sh\n")
    sha = hashlib.sha256(engine.read_bytes()).hexdigest()
    done = run_cli("--pin", pin, "--quiet", env={"OPENCOTI_CACHE_DIR": str(tmp_path / "c")})
    assert done.stdout == f"{tmp_path}/c/artifacts/{sha[:12]}/{ENGINE}\n"
    assert done.stderr == ""
    listed = run_cli("list", "--json", env={"OPENCOTI_CACHE_DIR": str(tmp_path / "c")})
    assert json.loads(listed.stdout) == [
        {"path": done.stdout.strip(), "size": len("#!/bin/sh\n"), "is_complete": True}
    ]


def test_engine_that_does_not_start_replaces_nothing_and_no_try_takes_it(tmp_path: Path) -> None:
    _, pin = local_engine(tmp_path, "#!/bin/sh\necho no AVX here >&2; exit 3\n")
    target = tmp_path / "d" / ENGINE
    target.parent.mkdir()
    target.write_text("old")
    done = run_cli("--pin", pin, "--dest", tmp_path / "d")
    assert (done.returncode, done.stdout) == (4, "")
    assert "engine-unusable" in done.stderr
    assert "ended with code 3: no AVX here" in done.stderr
    assert target.read_text() == "old"
    taken = run_cli("--pin", pin, "--dest", tmp_path / "d", "--no-try")
    assert taken.returncode == 0
    assert target.read_text().endswith("exit 3\n")


def test_engine_is_tried_in_a_home_of_its_own_and_through_sh_where_needed(tmp_path: Path) -> None:
    # The first line is that of an APE, which the kernel refuses and `sh` runs.
    ape = "MZqFpD='\\n'\ncase \"$HOME\" in *opencoti-try-*) exit 0;; esac; exit 1\n"
    _, pin = local_engine(tmp_path, ape)
    done = run_cli("--pin", pin, "--dest", tmp_path / "d")
    assert done.returncode == 0, done.stderr


def test_a_damaged_engine_is_never_read_as_a_shell_script(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    _, pin = local_engine(tmp_path, f"touch {witness}\n")
    done = run_cli("--pin", pin, "--dest", tmp_path / "d")
    assert (done.returncode, "engine-unusable" in done.stderr) == (4, True)
    assert not witness.exists()


def test_variable_replaces_the_path_and_the_hash_still_decides(tmp_path: Path) -> None:
    engine, pin = local_engine(tmp_path, "#!/bin/sh\n")
    moved = engine.rename(tmp_path / "elsewhere")
    done = run_cli("--pin", pin, "--dest", tmp_path / "d")
    assert (done.returncode, "local-file-missing" in done.stderr) == (3, True)
    env = {"OPENCOTI_LLAMAFILE_LOCAL": str(moved)}
    assert run_cli("--pin", pin, "--dest", tmp_path / "d", env=env).returncode == 0
    moved.write_text("#!/bin/sh\n# other\n")
    wrong = run_cli("--pin", pin, "--dest", tmp_path / "e", env=env)
    assert (wrong.returncode, wrong.stdout) == (6, "")
    assert "OPENCOTI_LLAMAFILE_LOCAL" in wrong.stderr
    assert sorted(os.listdir(tmp_path / "e")) == [f".{ENGINE}.lock"]


def test_github_form_goes_to_the_mirror(tmp_path: Path) -> None:
    pin = pin_file(tmp_path, f"mann1x/opencoti c1 engine.bin {SHA}")
    with serving(CONTENT) as server:
        env = {"OPENCOTI_MIRROR": f"http://127.0.0.1:{server.port}", "OPENCOTI_CACHE_DIR": str(tmp_path)}
        done = run_cli("--pin", pin, "--json", env=env)
        base = "/mann1x/opencoti/releases/download/c1/engine.bin"
        assert [request.path for request in server.seen] == [f"{base}.MANIFEST.json", base]
    assert "its manifest is of no use" in done.stderr
    data = json.loads(done.stdout)
    assert (data["action"], data["transferred_bytes"], data["sha256"]) == ("downloaded", 50_000, SHA)


def test_verify_path_repair_and_explain_tell_right_from_wrong(tmp_path: Path) -> None:
    engine, pin = local_engine(tmp_path, "#!/bin/sh\n")
    words = ("--pin", pin, "--dest", tmp_path / "d")
    assert [run_cli(verb, *words).returncode for verb in ("verify", "path", "explain")] == [4, 4, 0]
    assert run_cli("get", *words).returncode == 0
    target = tmp_path / "d" / ENGINE
    assert run_cli("path", *words).stdout == run_cli("verify", *words).stdout == f"{target}\n"
    target.write_text("damaged")
    assert run_cli("verify", *words).returncode == 6
    told = json.loads(run_cli("explain", *words, "--json").stdout)
    assert (told["needs_network"], told["plan"]) == (False, "copy, verify, put in place")
    assert told["source"] == str(engine)
    assert run_cli("repair", *words).returncode == 0
    assert run_cli("verify", *words).returncode == 0


def test_errors_are_data_with_json(tmp_path: Path) -> None:
    with serving(CONTENT, Fault(kind="garbage")) as server:
        done = run_cli("--url", server.url(), "--sha256", SHA, "--dest", tmp_path / "d", "--json")
    data = json.loads(done.stdout)
    assert (done.returncode, data["error"], data["exit_code"]) == (6, "hash-mismatch", 6)


def test_read_only_target_is_said_before_any_download(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with serving(CONTENT) as server:
        done = run_cli("--url", server.url(), "--sha256", SHA, "--dest", tmp_path / "file" / "d")
        assert (done.returncode, server.seen) == (8, [])


@pytest.mark.parametrize("name", ["../../x", "/abs", "a\\b", "CON", "..", "n" * 300])
def test_case_b44_nothing_is_created_for_an_unsafe_name(tmp_path: Path, name: str) -> None:
    pin = pin_file(tmp_path, f"file:/etc/hostname c1 {name} {SHA}")
    done = run_cli("--pin", pin, "--dest", tmp_path / "d")
    assert (done.returncode, os.listdir(tmp_path)) == (6, ["some.pin"])


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_case_b41_signal_during_a_stall_ends_at_once_and_the_next_run_goes_on(
    tmp_path: Path, sent: signal.Signals, code: int
) -> None:
    with serving(CONTENT, Fault(kind="stall", at=30_000)) as server:
        words = ("--url", server.url(), "--sha256", SHA, "--dest", tmp_path / "d")
        process = subprocess.Popen(cli_words(*words), env=cli_env(), stderr=subprocess.PIPE)
        assert server.stalling.wait(30)
        part = tmp_path / "d" / "engine.bin.part"
        while not part.exists() or part.stat().st_size < 30_000:
            os.sched_yield()
        process.send_signal(sent)
        process.communicate(timeout=25)  # below the stall limit of 30 s
        assert process.returncode == code
        done = run_cli(*words, "--json")
        assert json.loads(done.stdout)["resumed_from"] == 30_000
        assert server.ranges == ["", "bytes=30000-"]


def test_case_b41_signal_during_a_ranged_stall_ends_at_once_and_keeps_the_chunks(tmp_path: Path) -> None:
    for name, data in sidecars("engine.bin", CONTENT).items():
        (tmp_path / name).write_bytes(data)
    with serving(CONTENT, Fault(kind="stall", at=30_000)) as server:
        words: tuple[str | Path, ...] = ("--url", server.url(), "--sha256", SHA, "--dest", tmp_path / "d")
        words = (*words, "--manifest", tmp_path / "engine.bin.MANIFEST.json")
        process = subprocess.Popen(cli_words(*words), env=cli_env(), stderr=subprocess.PIPE)
        assert server.stalling.wait(30)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=25)  # below the stall limit of 30 s
        assert process.returncode == 130
        done = json.loads(run_cli(*words, "--json").stdout)
        assert done["transferred_bytes"] + done["resumed_from"] == len(CONTENT)
        assert done["sha256"] == SHA


def test_many_at_once_fetch_once(tmp_path: Path) -> None:
    with serving(CONTENT, Fault(kind="stall", at=1000)) as server:
        words = ("--url", server.url(), "--sha256", SHA, "--dest", tmp_path / "d", "--json")
        pipe = subprocess.PIPE
        first = subprocess.Popen(cli_words(*words), env=cli_env(), stdout=pipe, stderr=pipe, text=True)
        assert server.stalling.wait(30)
        others = [
            subprocess.Popen(cli_words(*words), env=cli_env(), stdout=pipe, stderr=pipe, text=True)
            for _ in range(3)
        ]
        for other in others:
            assert other.stderr is not None
            assert f"process {first.pid} is fetching it; waiting" in other.stderr.readline()
        server.released.set()
        results = [json.loads(process.communicate(timeout=30)[0]) for process in (first, *others)]
        assert [result["action"] for result in results] == ["downloaded", *["already-there"] * 3]
        assert server.ranges == ["", "bytes=1000-"]


def test_killed_holder_blocks_nobody(tmp_path: Path) -> None:
    with serving(CONTENT, Fault(kind="stall", at=1000)) as server:
        words = ("--url", server.url(), "--sha256", SHA, "--dest", tmp_path / "d", "--json")
        first = subprocess.Popen(cli_words(*words), env=cli_env(), stderr=subprocess.DEVNULL)
        assert server.stalling.wait(30)
        first.kill()
        first.wait()
        assert json.loads(run_cli(*words).stdout)["action"] == "downloaded"
