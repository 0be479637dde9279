"""The build folder: kept when that is safe, emptied when it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.stages.folder import prepare_folder, stage_fingerprint, step_marker
from ci.stages.model import Stage, Step
from tests.conftest import RecordedConsole

CONFIGURE = Step(title="configure", argv=("{tools}/cmake", "-S", "."))
COMPILE = Step(title="compile", argv=("{tools}/ninja",))


class Killed(BaseException):
    """Stands for the end of this process in the middle of a step."""


@pytest.fixture
def used(tmp_path: Path, recorded: RecordedConsole) -> Path:
    out = tmp_path / "stages" / "cpu"
    prepare_folder(out, "one", recorded.console)
    (out / "object.o").write_text("x")
    return out


def is_kept(
    out: Path, recorded: RecordedConsole, fingerprint: str = "one", *, is_fresh: bool = False
) -> bool:
    prepare_folder(out, fingerprint, recorded.console, is_fresh=is_fresh)
    return (out / "object.o").exists()


def test_the_same_configuration_keeps_the_folder(used: Path, recorded: RecordedConsole) -> None:
    with step_marker(used, CONFIGURE):
        pass
    assert is_kept(used, recorded)


def test_another_toolchain_or_configuration_empties_the_folder(used: Path, recorded: RecordedConsole) -> None:
    assert not is_kept(used, recorded, "two")
    assert "the toolchain or the configuration changed" in recorded.text


def test_asking_for_a_build_from_scratch_empties_the_folder(used: Path, recorded: RecordedConsole) -> None:
    assert not is_kept(used, recorded, is_fresh=True)


@pytest.mark.parametrize(("step", "kept"), [(CONFIGURE, False), (COMPILE, True)])
def test_a_half_done_configuration_is_thrown_away_and_a_half_done_compilation_is_not(
    step: Step, kept: bool, used: Path, recorded: RecordedConsole
) -> None:
    with pytest.raises(Killed), step_marker(used, step):
        raise Killed
    assert is_kept(used, recorded) is kept


def test_a_cut_state_file_empties_the_folder(used: Path, recorded: RecordedConsole) -> None:
    used.with_name("cpu.state.json").write_text('{"finger')
    assert not is_kept(used, recorded)


def test_another_label_keeps_the_build_folder_and_any_other_word_does_not(tmp_path: Path) -> None:
    """One changed patch changes the name of the product: that must not compile everything again."""

    def fingerprint(*words: str, labels: tuple[str, ...] = ()) -> str:
        stage = Stage(
            name="cpu",
            toolchain="zig",
            steps=(Step(title="configure", argv=words),),
            env={},
            source_tree="0" * 40,
            inputs={},
            outputs=("a",),
            labels=labels,
        )
        return stage_fingerprint(stage, "t", tmp_path / "src", tmp_path / "out")

    one = fingerprint("cmake", "-DNAME=one", "-DFAST=ON", labels=("-DNAME=one",))
    assert fingerprint("cmake", "-DNAME=two", "-DFAST=ON", labels=("-DNAME=two",)) == one
    assert fingerprint("cmake", "-DNAME=one", "-DFAST=OFF", labels=("-DNAME=one",)) != one
