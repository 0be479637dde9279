"""The bench of the loader makes artifacts that are in order, and compares what belongs together."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.package.artifact import assemble
from ci.package.index import INDEX_NAME, parse_index
from ci.package.zipreader import check_own_layout, read_archive
from opencoti.console import Console
from perf.loader import _Bare
from perf.measure import Case, Sample, median_difference, median_ratio, time_in_turns
from tests.unit.package.samples import LOADER, make_inputs


@pytest.mark.parametrize(
    ("is_part", "new"), [(False, {"libextra-0.so": (2, False)}), (True, {"model.gguf": (2, True)})]
)
def test_artifact_gets_members_of_the_size_asked_for(
    tmp_path: Path, is_part: bool, new: dict[str, tuple[int, bool]]
) -> None:
    original = assemble(make_inputs(tmp_path / "in"), tmp_path / "out", Console(quiet=True)).artifact
    before = _index(original)
    made = _Bare.take(original, tmp_path).with_members(2, is_part=is_part)
    after = _index(made.artifact)
    added = {name: facts for name, facts in after.items() if name not in before}
    assert added == {name: (mib << 20, part) for name, (mib, part) in new.items()}
    assert {name: facts for name, facts in after.items() if name in before} == before
    made.remove()
    assert not made.artifact.exists()


def _index(path: Path) -> dict[str, tuple[int, bool]]:
    with open(path, "rb") as file:
        archive = read_archive(file, str(path))
        check_own_layout(file, archive, str(path), executable_size=len(LOADER))
        entry = archive.entry(INDEX_NAME)
        assert entry is not None
        file.seek(entry.data_offset)
        index = parse_index(file.read(entry.size), str(path))
    return {item.name: (item.size, item.is_part) for item in index.files}


def test_cases_take_turns_in_changing_order_and_the_first_round_does_not_count() -> None:
    done: list[str] = []
    cases = [
        Case(name=name, prepare=lambda: None, action=lambda name=name: done.append(name))  # type: ignore[misc]
        for name in ("a", "b", "c")
    ]
    samples = time_in_turns(cases, runs=6)
    assert [(sample.name, len(sample.seconds)) for sample in samples] == [("a", 6), ("b", 6), ("c", 6)]
    rounds = ["".join(done[at : at + 3]) for at in range(0, len(done), 3)]
    assert len(rounds) == 7
    assert {"".join(sorted(text)) for text in rounds} == {"abc"}
    assert len(set(rounds)) > 2


def test_samples_of_one_round_are_compared_with_each_other() -> None:
    ours = Sample(name="ours", seconds=(2.0, 30.0, 6.0))
    theirs = Sample(name="theirs", seconds=(1.0, 20.0, 2.0))
    assert median_ratio(ours, theirs) == 2.0
    assert median_difference(ours, theirs) == 4.0
