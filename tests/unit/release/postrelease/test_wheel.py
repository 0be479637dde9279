"""The wheel: built from what is committed, twice the same, and checked before it is handed over."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from opencoti import __version__
from opencoti.errors import OpencotiError
from release.planning.freeze import freeze
from release.postrelease.wheel import build_wheel, check_wheel, commit_time
from tests.conftest import ROOT
from tests.fakes.checkouts import Checkout

EPOCH = 1_700_000_000


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout that holds this package as it is here."""
    made = Checkout(tmp_path_factory.mktemp("wheel") / "checkout")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, made.root / name)
    shutil.copytree(ROOT / "opencoti", made.root / "opencoti", ignore=shutil.ignore_patterns("__pycache__"))
    made.commit_all()
    (made.root / "opencoti" / "left_behind.py").write_text("import os\n")
    return made


@pytest.fixture(scope="module")
def wheel(checkout: Checkout) -> Path:
    return build_wheel(checkout.root, checkout.root / "dist" / "wheel", epoch_s=EPOCH).path


def sources_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if name.startswith("opencoti/")}


def test_wheel_holds_the_committed_package_and_nothing_else(checkout: Checkout, wheel: Path) -> None:
    assert wheel.name == f"opencoti-{__version__}-py3-none-any.whl"
    committed = set(checkout.git("ls-files", "opencoti").split("\n"))
    assert sources_of(wheel) == {name for name in committed if name.startswith("opencoti/")}
    with zipfile.ZipFile(wheel) as archive:
        assert {item.date_time for item in archive.infolist()} == {(2023, 11, 14, 22, 13, 20)}
        assert {item.external_attr >> 16 & 0o777 for item in archive.infolist()} <= {0o644, 0o664}


def test_same_sources_give_the_same_bytes(checkout: Checkout, wheel: Path, tmp_path: Path) -> None:
    again = build_wheel(checkout.root, tmp_path, epoch_s=EPOCH, repeat=False)
    assert again.path.read_bytes() == wheel.read_bytes()


def test_frozen_source_gives_the_same_wheel(checkout: Checkout, wheel: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", checkout.root, clone], check=True, capture_output=True)
    with tarfile.open(freeze(clone, None, default_folder=tmp_path).path) as tar:
        tar.extractall(tmp_path / "frozen", filter="data")
    (frozen,) = (tmp_path / "frozen").iterdir()
    assert commit_time(frozen) == EPOCH
    again = build_wheel(frozen, tmp_path / "out", epoch_s=EPOCH, repeat=False)
    assert again.path.read_bytes() == wheel.read_bytes()


def test_time_is_that_of_the_commit(checkout: Checkout) -> None:
    assert commit_time(checkout.root) == EPOCH


def rewritten(wheel: Path, target: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return target


def _edit(members: dict[str, bytes]) -> None:
    members["opencoti/files.py"] += b"import os\n"


def _add(members: dict[str, bytes]) -> None:
    members["opencoti/evil.py"] = b""


def _add_beside(members: dict[str, bytes]) -> None:
    members["evil.pth"] = b"import os"


def _remove(members: dict[str, bytes]) -> None:
    del members["opencoti/fetch/pin.txt"]


def _rename(members: dict[str, bytes]) -> None:
    name = f"opencoti-{__version__}.dist-info/METADATA"
    members[name] = members[name].replace(b"Name: opencoti\n", b"Name: open-coti\n")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_edit, "RECORD does not say what opencoti/files.py is"),
        (_add, "opencoti/evil.py is foreign"),
        (_add_beside, "evil.pth is foreign"),
        (_remove, "opencoti/fetch/pin.txt is missing"),
        (_rename, "RECORD does not say what"),
    ],
)
def test_wheel_with_another_content_is_refused(
    wheel: Path, tmp_path: Path, change: Callable[[dict[str, bytes]], None], why: str
) -> None:
    changed = rewritten(wheel, tmp_path / wheel.name, change)
    with pytest.raises(OpencotiError) as caught:
        check_wheel(changed, sources_of(wheel))
    assert (caught.value.error_id, caught.value.exit_code) == ("wheel-content", 5)
    assert caught.value.why.startswith(why)


def test_package_that_does_not_build_is_told(checkout: Checkout, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    subprocess.run(["git", "clone", "--quiet", checkout.root, broken], check=True, capture_output=True)
    (broken / "pyproject.toml").write_text("[build-system\n")
    with pytest.raises(OpencotiError) as caught:
        build_wheel(broken, tmp_path / "out", epoch_s=EPOCH, repeat=False)
    assert caught.value.error_id == "wheel-failed"
    assert not (tmp_path / "out").exists()
