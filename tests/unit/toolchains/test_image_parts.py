"""The parts of an image: Debian packages by hash, and a file system whose bytes depend on nothing else."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from ci import process
from ci.toolchains.debs import fetch_debs
from ci.toolchains.lockfile import LockedFile
from ci.toolchains.recipe import DebGroup
from ci.toolchains.rootfs import PlacedDeb, merged_name, write_context
from opencoti.errors import ConfigError, MissingError, NetworkError, VerificationError
from tests.conftest import RecordedConsole, require

# Imitates apt-get: offers the packages of the folder $OFFER and knows no others; `update` adds those of $NEW.
FAKE_APT = """#!/bin/sh
shift 2
echo "$@" >> "$CALLS"
case "$1" in
update) cp "$NEW"/*.deb "$OFFER"/ 2>/dev/null; exit 0 ;;
esac
shift 2
for word in "$@"; do
    name="${word%%:*}"; version="${word#*=}"; [ "$version" = "$word" ] && version='*'
    set -- "$OFFER/$name"_${version}_amd64.deb
    [ -e "$1" ] || { echo "E: Unable to locate $word" >&2; exit 100; }
    file="${1##*/}"
    cp "$1" .
    echo "'file:/pool/$file' $file 9 SHA256:00"
done
"""


class Machine:
    """A machine whose apt offers what the tests put into two folders."""

    def __init__(self, folder: Path, console: RecordedConsole) -> None:
        self.folder = folder
        self.recorded = console
        for name in ("offer", "new", "bin"):
            (folder / name).mkdir()

    def offer(self, name: str, version: str, data: bytes, where: str = "offer") -> LockedFile:
        (self.folder / where / f"{name}_{version}_amd64.deb").write_bytes(data)
        sha256 = hashlib.sha256(data).hexdigest()
        return LockedFile(
            name=name, version=version, arch="amd64", suite="old", sha256=sha256, size=len(data)
        )

    def fetch(self, *locked: LockedFile, is_strict: bool = False) -> list[tuple[str, bool, bytes]]:
        debs = fetch_debs(
            (DebGroup(suite="old", names=("libc6",)),),
            locked,
            arch="amd64",
            downloads=self.folder / "downloads",
            apt_folder=self.folder / "apt",
            console=self.recorded.console,
            is_strict=is_strict,
        )
        return [(deb.package.version, deb.locked, deb.path.read_bytes()) for deb in debs]

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def machine(tmp_path: Path, recorded: RecordedConsole, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path, recorded)
    for name in ("apt-get", "dpkg-deb"):
        (tmp_path / "bin" / name).write_text(FAKE_APT)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OPENCOTI_DEBIAN_MIRROR", "https://debian.invalid/debian")
    for variable, name in (("OFFER", "offer"), ("NEW", "new"), ("CALLS", "calls")):
        monkeypatch.setenv(variable, str(tmp_path / name))
    return made


def test_the_locked_version_is_taken_and_next_time_needs_no_apt(machine: Machine) -> None:
    locked = machine.offer("libc6", "2.36", b"old")
    assert machine.fetch(locked) == [("2.36", True, b"old")]
    calls = len(machine.calls)
    assert machine.fetch(locked) == [("2.36", True, b"old")]
    assert len(machine.calls) == calls
    assert "WARN" not in machine.recorded.text


def test_package_lists_that_are_too_old_are_read_again(machine: Machine) -> None:
    locked = machine.offer("libc6", "2.36", b"old", where="new")
    assert machine.fetch(locked) == [("2.36", True, b"old")]
    assert "update" in machine.calls


def test_a_version_that_vanished_is_replaced_with_a_warning_or_refused(machine: Machine) -> None:
    """case B12"""
    locked = LockedFile(name="libc6", version="2.36", arch="amd64", suite="old", sha256="0" * 64, size=1)
    machine.offer("libc6", "2.37", b"new")
    with pytest.raises(ConfigError) as caught:
        machine.fetch(locked, is_strict=True)
    assert caught.value.error_id == "deb-lock-drift"
    assert "libc6=2.36" in caught.value.why
    assert machine.fetch(locked) == [("2.37", False, b"new")]
    assert "libc6 2.37 is used instead of 2.36 of the lock" in machine.recorded.text


def test_a_locked_version_with_other_bytes_is_refused(machine: Machine) -> None:
    machine.offer("libc6", "2.36", b"evil")
    locked = LockedFile(name="libc6", version="2.36", arch="amd64", suite="old", sha256="0" * 64, size=4)
    with pytest.raises(VerificationError) as caught:
        machine.fetch(locked)
    assert caught.value.error_id == "deb-hash-mismatch"


def test_packages_that_apt_cannot_get_are_a_network_failure(machine: Machine) -> None:
    with pytest.raises(NetworkError) as caught:
        machine.fetch()
    assert "Unable to locate" in caught.value.why
    assert "--engine host" in caught.value.hint


def test_a_mirror_that_does_not_answer_is_not_taken_for_drift(machine: Machine) -> None:
    """case B12"""
    locked = LockedFile(name="libc6", version="2.36", arch="amd64", suite="old", sha256="0" * 64, size=1)
    with pytest.raises(NetworkError) as caught:
        machine.fetch(locked, is_strict=True)
    assert (caught.value.error_id, caught.value.exit_code) == ("deb-fetch-failed", 7)
    assert "Unable to locate" in caught.value.why


def test_a_machine_without_apt_is_told_what_to_do(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(machine.folder / "new"))
    with pytest.raises(MissingError) as caught:
        machine.fetch()
    assert caught.value.error_id == "apt-missing"
    assert "--engine host" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("./lib/x86_64-linux-gnu/libc.so.6", "usr/lib/x86_64-linux-gnu/libc.so.6"),
        ("./lib64/ld-linux-x86-64.so.2", "usr/lib64/ld-linux-x86-64.so.2"),
        ("./usr/bin/dash", "usr/bin/dash"),
        ("./lib", "lib"),
        ("./", ""),
    ],
)
def test_packages_of_old_and_new_releases_get_one_form(name: str, place: str) -> None:
    assert merged_name(name) == place


def test_a_package_member_that_leads_out_is_refused() -> None:
    with pytest.raises(VerificationError):
        merged_name("./lib/../../etc/passwd")


def make_deb(folder: Path, path: Path, *, is_new: bool = True) -> Path:
    """Build a package of `folder`, which gets a few files first unless they are there already."""
    (folder / "DEBIAN").mkdir(parents=True)
    (folder / "DEBIAN/control").write_text(
        "Package: dash\nVersion: 1\nArchitecture: all\nMaintainer: A <a@example.org>\nDescription: a test\n"
    )
    names = ("bin/dash", "usr/share/man/dash.1", "usr/share/doc/dash/copyright", "usr/share/doc/dash/NEWS")
    for name in names if is_new else ():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "bin/dash").chmod(0o755)
    done = process.run(["dpkg-deb", "--root-owner-group", "--build", folder, path])
    assert done.is_ok, done.error_text
    return path


def rootfs_members(path: Path) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    """Return every member of the file system in a build context, with the bytes of plain files."""
    with tarfile.open(path) as outer:
        inner = outer.extractfile("rootfs.tar")
        assert inner is not None
        found = {}
        with tarfile.open(fileobj=inner) as rootfs:
            for member in rootfs:
                content = rootfs.extractfile(member) if member.isreg() else None
                assert member.name not in found, f"{member.name} stands twice"
                found[member.name] = (member, content.read() if content else b"")
    return found


def test_packages_go_below_their_folder_and_the_later_one_wins(tmp_path: Path) -> None:
    require(shutil.which("dpkg-deb") is not None, "dpkg-deb is not there")
    first = make_deb(tmp_path / "first", tmp_path / "first.deb")
    (tmp_path / "second").mkdir()
    shutil.copytree(tmp_path / "first", tmp_path / "second", dirs_exist_ok=True)
    (tmp_path / "second/bin/dash").write_text("the second")
    (tmp_path / "second/lib").mkdir()
    os.symlink("/bin/dash", tmp_path / "second/lib/sh")
    os.link(tmp_path / "second/bin/dash", tmp_path / "second/bin/zash")
    shutil.rmtree(tmp_path / "second/DEBIAN")
    second = make_deb(tmp_path / "second", tmp_path / "second.deb", is_new=False)
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    (tmp_path / "tools/bin").mkdir(parents=True)
    write_context(
        tmp_path / "context.tar",
        dockerfile=tmp_path / "Dockerfile",
        debs=[
            PlacedDeb(path=first),
            PlacedDeb(path=second),
            PlacedDeb(path=second, target="opt/old", drop=("usr/share/doc/",), keep=("usr/share/man/*.1",)),
        ],
        toolchain=tmp_path / "tools",
    )
    found = rootfs_members(tmp_path / "context.tar")
    assert found["usr/bin/dash"][1] == b"the second"
    assert found["usr/bin/zash"][0].linkname == "usr/bin/dash"
    assert found["usr/lib/sh"][0].linkname == "/bin/dash"
    assert found["opt/old/usr/lib/sh"][0].linkname == "/opt/old/bin/dash"
    assert found["opt/old/usr/bin/zash"][0].linkname == "opt/old/usr/bin/dash"
    assert found["opt/old/lib"][0].linkname == "usr/lib"
    assert "opt/old/usr/share/man/dash.1" in found
    assert "opt/old/usr/share/doc/dash/copyright" not in found
    assert "usr/share/man/dash.1" not in found


def test_a_damaged_package_is_named(tmp_path: Path) -> None:
    require(shutil.which("dpkg-deb") is not None, "dpkg-deb is not there")
    (tmp_path / "broken.deb").write_bytes(b"!<arch>\nno package")
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    with pytest.raises(VerificationError, match=r"broken\.deb") as caught:
        write_context(
            tmp_path / "context.tar",
            dockerfile=tmp_path / "Dockerfile",
            debs=[PlacedDeb(path=tmp_path / "broken.deb")],
            toolchain=tmp_path,
        )
    assert caught.value.error_id == "deb-unreadable"


def test_the_context_depends_on_content_alone(tmp_path: Path) -> None:
    require(shutil.which("dpkg-deb") is not None, "dpkg-deb is not there")
    deb = make_deb(tmp_path / "deb", tmp_path / "dash.deb")
    (tmp_path / "Dockerfile").write_text("FROM scratch\nADD rootfs.tar /\n")
    contexts = []
    for number, mode in enumerate((0o700, 0o775)):
        toolchain = tmp_path / f"toolchain{number}"
        (toolchain / "bin").mkdir(parents=True)
        for name in ("cc", "ar")[:: 1 if number else -1]:
            (toolchain / "bin" / name).write_text("#!/bin/sh\n")
            (toolchain / "bin" / name).chmod(mode)
        (toolchain / ".opencoti-toolchain.json").write_text(str(number))
        os.utime(toolchain / "bin/cc", (number, number))
        path = tmp_path / f"context{number}.tar"
        write_context(
            path, dockerfile=tmp_path / "Dockerfile", debs=[PlacedDeb(path=deb)], toolchain=toolchain
        )
        contexts.append(path.read_bytes())
    assert contexts[0] == contexts[1]
    with tarfile.open(fileobj=io.BytesIO(contexts[0])) as outer:
        assert outer.getnames() == ["Dockerfile", "rootfs.tar"]
        inner = outer.extractfile("rootfs.tar")
        assert inner is not None
        with tarfile.open(fileobj=inner) as rootfs:
            members = {member.name: member for member in rootfs}
    assert members["usr/bin/dash"].mode == 0o755
    assert members["bin"].linkname == "usr/bin"
    assert members["usr/bin/sh"].linkname == "dash"
    assert members["opt/toolchain/bin/cc"].mode == 0o755
    assert "usr/share/doc/dash/copyright" in members
    assert not {
        "usr/share/man/dash.1",
        "usr/share/doc/dash/NEWS",
        "opt/toolchain/.opencoti-toolchain.json",
    } & set(members)
    assert {(member.uid, member.gid, member.mtime) for member in members.values()} == {(0, 0, 0)}
