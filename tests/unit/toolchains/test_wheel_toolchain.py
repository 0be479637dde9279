"""A toolchain from wheels: fetched by hash, unpacked whole, repaired when damaged."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path

import pytest

from ci.toolchains import host
from ci.toolchains.expiry import remove_unused
from ci.toolchains.host import SystemToolchain, WheelToolchain, find_toolchain, is_intact
from ci.toolchains.recipe import WheelRule
from ci.toolchains.wheels import platform_tags, unpack_wheel
from opencoti.errors import ConfigError, MissingError, NetworkError, StorageError, VerificationError
from tests.conftest import RecordedConsole
from tests.unit.toolchains.conftest import TinyToolchain

RULE = WheelRule(name="x", version="1", source="x/", target="x/", executables=(), drop=("doc/",))


def prepare(tiny: TinyToolchain, recorded: RecordedConsole) -> Path:
    return WheelToolchain(tiny.recipe(), tiny.layout).prepare(recorded.console).parent


def test_only_the_needed_parts_are_unpacked_and_programs_can_run(
    tiny: TinyToolchain, recorded: RecordedConsole
) -> None:
    folder = prepare(tiny, recorded)
    assert folder == tiny.layout.toolchains / tiny.recipe().id[:16]
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"tinycc/tiny", "tinycc/lib/used.h", "bin/cc", "bin/c++", "bin/ar", "bin/ranlib"} < files
    assert not any("unused" in name or "doc" in name for name in files)
    assert (folder / "tinycc/tiny").stat().st_mode & 0o777 == 0o755


def test_a_second_preparation_fetches_and_unpacks_nothing(
    tiny: TinyToolchain, recorded: RecordedConsole
) -> None:
    folder = prepare(tiny, recorded)
    tiny.wheel.unlink()
    before = folder.stat().st_ino
    assert prepare(tiny, recorded).stat().st_ino == before
    assert recorded.text.count("unpacking") == 1


@pytest.mark.parametrize("damage", ["file gone", "file cut", "file added", "stamp gone"])
def test_a_damaged_toolchain_is_unpacked_again_from_the_download_cache(
    damage: str, tiny: TinyToolchain, recorded: RecordedConsole
) -> None:
    folder = prepare(tiny, recorded)
    tiny.wheel.unlink()
    match damage:
        case "file gone":
            (folder / "tinycc/lib/used.h").unlink()
        case "file cut":
            (folder / "tinycc/tiny").write_text("#!")
        case "file added":
            (folder / "tinycc/lib/more.h").touch()
        case _:
            (folder / ".opencoti-toolchain.json").unlink()
    assert not is_intact(folder)
    assert is_intact(prepare(tiny, recorded))
    assert "incomplete or damaged" in recorded.text
    assert "fetching" not in recorded.text.split("damaged")[1]


def test_a_toolchain_that_nobody_used_for_a_month_does_not_go_while_it_is_prepared(
    tiny: TinyToolchain, recorded: RecordedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepare(tiny, recorded)
    mark = folder.with_name(f".last-used-{folder.name}")
    os.utime(mark, (mark.stat().st_mtime - 31 * 86400,) * 2)
    removed: list[str] = []

    def look_while_another_command_sweeps(looked_at: Path) -> bool:
        answer = is_intact(looked_at)
        removed.extend(remove_unused(looked_at.parent))
        return answer

    monkeypatch.setattr(host, "is_intact", look_while_another_command_sweeps)
    assert is_intact(prepare(tiny, recorded))
    assert removed == []
    assert recorded.text.count("unpacking") == 1


def test_a_wheel_with_other_bytes_is_refused(tiny: TinyToolchain, recorded: RecordedConsole) -> None:
    tiny.write_lock("0" * 64)
    with pytest.raises(VerificationError) as caught:
        prepare(tiny, recorded)
    assert caught.value.error_id == "wheel-hash-mismatch"
    assert not list(tiny.layout.toolchains.glob("*/"))
    assert not list(tiny.layout.downloads.glob("*"))


def test_a_wheel_that_no_index_has_is_a_network_failure(
    tiny: TinyToolchain, recorded: RecordedConsole
) -> None:
    tiny.wheel.unlink()
    with pytest.raises(NetworkError) as caught:
        prepare(tiny, recorded)
    assert caught.value.error_id == "wheel-fetch-failed"
    assert "tinycc-1.0" in caught.value.what


def test_a_disk_without_room_for_a_wheel_is_told_before_pip_starts(
    tiny: TinyToolchain, recorded: RecordedConsole
) -> None:
    lock = tiny.folder / "wheels.lock"
    lock.write_text(re.sub(r"size = \d+", f"size = {1 << 60}", lock.read_text()))
    with pytest.raises(StorageError) as caught:
        prepare(tiny, recorded)
    assert (caught.value.error_id, caught.value.exit_code) == ("wheel-disk-low", 8)
    assert "tinycc-1.0" in caught.value.what
    assert not list(tiny.layout.downloads.glob("*"))


def test_a_cache_that_cannot_be_written_is_a_storage_failure(
    tiny: TinyToolchain, recorded: RecordedConsole
) -> None:
    tiny.layout.cache.write_text("in the way")
    with pytest.raises(StorageError):
        prepare(tiny, recorded)


@pytest.mark.parametrize("name", ["x/../../evil", "x//etc/passwd", "x/a\\b", "x/a/./b/../c"])
def test_a_member_that_leads_out_of_its_folder_is_refused(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as bundle:
        bundle.writestr(name, "evil")
    with pytest.raises(VerificationError) as caught:
        unpack_wheel(tmp_path / "w.whl", RULE, tmp_path / "target")
    assert caught.value.error_id == "wheel-unsafe-member"


def test_a_member_that_is_a_link_is_refused(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("x/link")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as bundle:
        bundle.writestr(info, "/etc/passwd")
    with pytest.raises(VerificationError):
        unpack_wheel(tmp_path / "w.whl", RULE, tmp_path / "target")


def test_platform_tags_are_read_from_the_name() -> None:
    name = "cmake-4.4.5-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
    assert platform_tags(name) == ["manylinux2014_x86_64", "manylinux_2_17_x86_64"]


def test_an_unknown_toolchain_lists_the_known_ones(tiny: TinyToolchain) -> None:
    with pytest.raises(ConfigError) as caught:
        find_toolchain("zug", tiny.layout)
    assert caught.value.error_id == "toolchain-unknown"
    assert "tiny" in caught.value.hint


class TestSystemToolchain:
    """`--toolchain system`."""

    @pytest.fixture
    def programs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = tmp_path / "bin of the machine"
        folder.mkdir()
        for name in ("cmake", "ninja", "cc", "c++", "ar", "ranlib"):
            (folder / name).write_text(f'#!/bin/sh\necho {name} 1.0 "$@"\n')
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        return folder

    def test_its_id_changes_with_a_version(self, programs: Path, tiny: TinyToolchain) -> None:
        before = SystemToolchain(tiny.layout).id
        assert SystemToolchain(tiny.layout).id == before
        (programs / "cc").write_text("#!/bin/sh\necho cc 2.0\n")
        assert SystemToolchain(tiny.layout).id != before

    def test_its_wrappers_call_the_machines_programs(
        self, programs: Path, tiny: TinyToolchain, recorded: RecordedConsole
    ) -> None:
        folder = SystemToolchain(tiny.layout).prepare(recorded.console)
        from ci import process

        environment = {"OPENCOTI_SRC": "/a b", "OPENCOTI_OUT": "/o"}
        shown = process.run([folder / "cc", "-c"], env=environment).text
        assert shown == "cc 1.0 -ffile-prefix-map=/a b=. -ffile-prefix-map=/o=./build -c"
        assert process.run([folder / "ar", "x"], env={}).text == "ar 1.0 x"

    def test_a_missing_program_is_named_before_anything_runs(
        self, programs: Path, tiny: TinyToolchain
    ) -> None:
        (programs / "ranlib").unlink()
        with pytest.raises(MissingError) as caught:
            _ = SystemToolchain(tiny.layout).id
        assert caught.value.error_id == "toolchain-program-missing"
        assert "ranlib" in caught.value.what
