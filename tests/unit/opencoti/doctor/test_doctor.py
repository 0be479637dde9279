"""Findings about libraries, folders, rules and the processor."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opencoti.doctor.examination import Examination, examine
from opencoti.doctor.finding import Finding
from opencoti.doctor.host import BinfmtRule, _libc, binfmt_rules, examine_binfmt, x86_level
from opencoti.doctor.libraries import EngineFacts, examine_libraries, search_places
from opencoti.doctor.surroundings import examine_folders, examine_network, examine_variables, without_password
from opencoti.hardware import Hardware, Memory

NO_GPU = Hardware(gpus=(), memory=Memory(total_bytes=64 << 30, available_bytes=60 << 30), notes=("none",))
GOOD, STALE = b"the artifact's own", b"of an older build"


class Bench:
    """A home, a working folder and an engine."""

    def __init__(self, root: Path, *, is_ape: bool) -> None:
        self.home, self.cwd = root / "home", root / "work"
        self.engine = root / "bin" / "engine.llamafile"
        self.own = self.home / ".llamafile" / "v" / "opencoti-1-abc"
        for folder in (self.home, self.cwd, self.engine.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self.engine.write_bytes(b"engine")
        self.facts = EngineFacts(
            path=self.engine,
            is_ape=is_ape,
            members={"ggml-cuda.so": hashlib.sha256(GOOD).hexdigest()},
            own_folder=self.own,
        )
        self.environ = {"HOME": str(self.home)}

    def put(self, folder: Path, data: bytes, name: str = "ggml-cuda.so") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        return folder / name

    def findings(self) -> dict[str, Finding]:
        return {item.name: item for item in examine_libraries(self.facts, self.environ, self.cwd)}


@pytest.fixture
def elf(tmp_path: Path) -> Bench:
    return Bench(tmp_path, is_ape=False)


@pytest.fixture
def ape(tmp_path: Path) -> Bench:
    return Bench(tmp_path, is_ape=True)


def test_nothing_lies_around(elf: Bench) -> None:
    found = elf.findings()
    assert (found["own folder"].status, found["strays"].status) == ("ok", "ok")
    assert "first start" in found["own folder"].found


def test_what_the_engine_unpacked_wins_and_is_named_with_its_hash(elf: Bench) -> None:
    path = elf.put(elf.own, GOOD)
    found = elf.findings()["own folder"]
    assert found.status == "ok"
    assert found.data["wins"] == {
        "ggml-cuda.so": {"path": str(path), "sha256": hashlib.sha256(GOOD).hexdigest()}
    }


@pytest.mark.parametrize("where", ["home", "dot", "cwd", "beside", "LD_LIBRARY_PATH", "GGML_BACKEND_PATH"])
def test_a_stale_library_is_called_out_wherever_it_lies(elf: Bench, tmp_path: Path, where: str) -> None:
    folders = {
        "home": elf.home,
        "dot": elf.home / ".llamafile",
        "cwd": elf.cwd,
        "beside": elf.engine.parent,
    }
    path = elf.put(folders.get(where, tmp_path / "other"), STALE)
    if where.isupper():
        elf.environ[where] = str(path if where == "GGML_BACKEND_PATH" else path.parent)
    stale = elf.findings()["stale"]
    assert stale.status == "warn"
    assert str(path) in stale.found
    assert hashlib.sha256(STALE).hexdigest()[:12] in stale.found
    assert stale.data["wins"] is False
    assert f"remove or rename {path}" in stale.advice


@pytest.mark.parametrize("where", ["home", "beside"])
def test_where_a_stale_library_would_win_the_engine_is_unusable(ape: Bench, where: str) -> None:
    path = ape.put(ape.home if where == "home" else ape.engine.parent, STALE)
    shadow = ape.findings()["shadow"]
    assert (shadow.status, shadow.exit_code, shadow.data["wins"]) == ("fail", 6, True)
    assert str(path) in shadow.found


def test_without_a_home_the_working_folder_counts_as_one(ape: Bench) -> None:
    ape.put(ape.cwd, STALE)
    assert ape.findings()["stale"].data["wins"] is False
    del ape.environ["HOME"]
    assert ape.findings()["shadow"].exit_code == 6


def test_libraries_beside_an_engine_without_an_index_are_its_own(elf: Bench) -> None:
    elf.put(elf.engine.parent, STALE, name="libggml-base.so")
    elf.facts = replace(elf.facts, members=None, own_folder=None)
    assert elf.findings()["beside"].status == "note"


def test_a_copy_of_the_right_library_is_no_harm(ape: Bench) -> None:
    ape.put(ape.home, GOOD)
    found = ape.findings()
    assert found["copy"].status == "note"
    assert "shadow" not in found


def test_changed_library_in_the_engines_own_folder_is_put_right_by_the_next_start(elf: Bench) -> None:
    elf.put(elf.own, STALE)
    assert elf.findings()["own folder"].status == "warn"


def test_library_that_a_thin_engine_would_pick_up_is_a_failure(ape: Bench) -> None:
    ape.put(ape.own, STALE)
    assert ape.findings()["own folder"].status == "warn"  # it is bundled, so it is extracted again
    ape.put(ape.own, STALE, name="ggml-rocm.so")
    assert ape.findings()["own folder"].exit_code == 6


def test_folders_of_older_engines_are_listed_and_harmless(elf: Bench) -> None:
    elf.put(elf.home / ".llamafile" / "v" / "0.9.3", STALE)
    found = elf.findings()
    assert (found["older engines"].status, found["strays"].status) == ("note", "ok")
    assert "remove" in found["older engines"].advice


def test_nothing_is_advised_to_be_removed_without_an_engine_to_compare_with(elf: Bench) -> None:
    elf.put(elf.own, STALE)
    environ = {"HOME": str(elf.home)}
    found = {item.name: item for item in examine_libraries(None, environ, elf.cwd)}
    assert (found["older engines"].status, found["older engines"].advice) == ("note", "")


def test_each_folder_is_looked_into_once(elf: Bench) -> None:
    places = search_places(elf.facts, {"HOME": str(elf.cwd), "LD_LIBRARY_PATH": str(elf.cwd)}, elf.cwd)
    assert [place.folder for place in places].count(elf.cwd) == 1


def test_links_in_circles_and_unreadable_names_do_no_harm(elf: Bench) -> None:
    os.symlink("ggml-cuda.so", elf.cwd / "ggml-cuda.so")
    (elf.cwd / "ggml-vulkan.so").mkdir()
    os.mkfifo(elf.cwd / "ggml-rocm.so")
    assert elf.findings()["strays"].status == "ok"


RULES = (BinfmtRule(name="wine", magic="4d5a", interpreter="/usr/bin/wine"),)
APE = BinfmtRule(name="APE", magic="4d5a71467044", interpreter="/usr/bin/ape")


@pytest.mark.parametrize(
    ("rules", "is_ape", "status"),
    [
        (None, True, "ok"),
        ((), True, "ok"),
        (RULES, True, "warn"),
        (RULES, False, "note"),
        ((*RULES, APE), True, "ok"),
    ],
)
def test_case_b51_who_takes_the_engine(rules: Any, is_ape: bool, status: str) -> None:
    found = examine_binfmt(rules, is_ape=is_ape)
    assert found.status == status
    if status == "warn":
        assert "/usr/bin/wine" in found.found


def test_case_b51_rules_are_read_as_the_kernel_prints_them(tmp_path: Path) -> None:
    assert binfmt_rules(tmp_path) is None
    (tmp_path / "status").write_text("enabled\n")
    (tmp_path / "register").write_text("")
    (tmp_path / "WSLInterop").write_text("enabled\ninterpreter /init\nflags: PF\noffset 0\nmagic 4d5a\n")
    (tmp_path / "off").write_text("disabled\ninterpreter /x\noffset 0\nmagic 4d5a\n")
    (tmp_path / "jar").write_text("enabled\ninterpreter /usr/bin/jexec\nflags:\nextension .jar\n")
    rules = binfmt_rules(tmp_path)
    assert rules == (BinfmtRule(name="WSLInterop", magic="4d5a", interpreter="/init"),)


def test_levels_of_processors() -> None:
    v2 = {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}
    v3 = v2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}
    assert [x86_level(flags) for flags in (set(), v2, v3, v3 - {"popcnt"})] == [
        "x86-64",
        "x86-64-v2",
        "x86-64-v3",
        "x86-64",
    ]


@pytest.mark.parametrize(
    ("found", "status", "code"), [("2.36", "ok", 0), ("2.9", "fail", 4), (None, "fail", 4), ("2.27", "ok", 0)]
)
def test_c_library_is_compared_as_numbers(found: str | None, status: str, code: int) -> None:
    finding = _libc(found, "2.27")
    assert (finding.status, finding.exit_code) == (status, code)


def test_folder_that_cannot_be_used_has_the_code_of_the_table(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environ = {"HOME": str(tmp_path), "OPENCOTI_CACHE_DIR": str(tmp_path / "file" / "cache")}
    found = {item.name: item for item in examine_folders(environ)}
    assert (found["cache"].status, found["cache"].exit_code) == ("fail", 8)
    assert found["unpacking"].status == "ok"
    relative = {item.name: item for item in examine_folders({**environ, "OPENCOTI_EXTRACT_DIR": "some"})}
    assert (relative["unpacking"].status, relative["unpacking"].exit_code) == ("fail", 8)


def test_passwords_of_proxies_are_not_shown() -> None:
    environ = {"https_proxy": "http://user:secret@proxy:3128", "NO_PROXY": "localhost", "HOME": "/nowhere"}
    found = {item.name: item for item in examine_network(environ)}["proxies"]
    assert "secret" not in found.found
    assert "http://***@proxy:3128" in found.found
    assert without_password("proxy:3128") == "proxy:3128"
    assert without_password("http://[bad") == "(not an address)"


def test_variables_that_are_held_back_are_named_without_their_values() -> None:
    environ = {"LLAMA_ARG_HOST": "0.0.0.0", "OPENCOTI_SIGNING_KEY": "secret", "OPENCOTI_OFFLINE": "1"}
    text = "\n".join(item.found for item in examine_variables(environ))
    assert "LLAMA_ARG_HOST" in text
    assert "OPENCOTI_OFFLINE=1" in text
    assert "secret" not in text
    assert "0.0.0.0" not in text


def test_a_variable_that_names_no_engine_is_wrong_usage_and_nothing_is_used(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "PATH": str(tmp_path), "OPENCOTI_LLAMAFILE_LOCAL": str(tmp_path / "x")}
    result = examine(environ, cwd=tmp_path, hardware=NO_GPU)
    assert result.exit_code == 2  # a variable names a file that is not there
    assert dict(result.would_use) == {}
    assert "OPENCOTI_LLAMAFILE_LOCAL" in result.as_text()


def test_report_ends_with_what_would_be_used_and_what_to_fix() -> None:
    fail = Finding(topic="t", name="bad", status="fail", found="x", advice="mend it", exit_code=8)
    warn = Finding(topic="t", name="meh", status="warn", found="y")
    result = Examination(findings=(warn, fail), would_use={"engine": "/e"})
    assert [item.name for item in result.to_fix] == ["bad", "meh"]
    assert result.exit_code == 8
    lines = result.as_text().splitlines()
    assert lines[-5:] == [
        "would use",
        "       engine         /e",
        "to fix",
        "  1. bad: x; mend it",
        "  2. meh: y",
    ]
    assert result.as_dict()["is_usable"] is False
