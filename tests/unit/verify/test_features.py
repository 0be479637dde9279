"""Which patches are in a binary: the table, the marks in bytes, the verdict, files of one artifact."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ci.cli import build_parser
from ci.context import Context
from ci.package.artifact import assemble
from ci.package.zipwriter import NewMember, write_archive
from ci.patches.series import read_series
from ci.paths import Layout
from ci.verify import features_scan
from ci.verify.features import Features, Sign, load_features, parse_features
from ci.verify.features_command import inspect_features, inspect_process
from ci.verify.features_report import judge
from ci.verify.features_scan import Scan, Subject, scan
from opencoti.console import Console
from opencoti.errors import ConfigError, OpencotiError, UsageError, VerificationError
from tests.conftest import ROOT, RecordedConsole
from tests.unit.package.samples import make_inputs

TABLE = """
schema = "opencoti.features/1"
[part.version]
of = "prints the version"
string = "built with"
[part.loader]
of = "loads backends"
string = "cannot find backend"
[[patch.0001-identity.sign]]
part = "version"
string = "patch set: %s"
[[patch.0002-trust.sign]]
part = "loader"
string = "not in our folder"
[[patch.0002-trust.sign]]
part = "loader"
string = "refused backend"
count = 2
[patch.0003-build]
invisible = "only CMake reads it"
"""
HOST = b"\x7fELF\0built with\0"
HOST_PATCHED = HOST + b"patch set: %s\n\0opencoti-0.5.0-g0c1e570-c1\0"
LIBRARY = b"\x7fELF\0cannot find backend\0"
LIBRARY_PATCHED = LIBRARY + b"not in our folder\0refused backend\0x\0refused backend\0"


@pytest.fixture
def features() -> Features:
    return parse_features(TABLE.encode(), "sample")


@pytest.fixture
def checkout(layout: Layout) -> Layout:
    """A checkout whose elf series has the table above."""
    folder = layout.patches / "llama.cpp"
    folder.mkdir(parents=True)
    layout.pins.mkdir(parents=True)
    (layout.pins / "llama.cpp.txt").touch()
    (folder / "features.toml").write_text(TABLE)
    return layout


def error_id(action: Callable[[], object]) -> str | None:
    """Return the id of the expected error that `action` raises; any other exception goes on."""
    try:
        action()
    except OpencotiError as error:
        return error.error_id
    return None


def scans_of(folder: Path, features: Features, files: dict[str, bytes]) -> list[Scan]:
    found = []
    for name, data in files.items():
        (folder / name).write_bytes(data)
        found.append(scan(Subject(label=name, path=folder / name), features))
    return found


@pytest.mark.parametrize(
    ("files", "verdict", "states"),
    [
        ({"host": HOST_PATCHED, "lib": LIBRARY_PATCHED}, "full", ["present", "present"]),
        ({"host": HOST_PATCHED}, "full", ["present"]),
        ({"host": HOST, "lib": LIBRARY}, "vanilla", ["missing", "missing"]),
        ({"host": HOST_PATCHED, "lib": LIBRARY}, "partial", ["present", "missing"]),
        ({"lib": LIBRARY + b"not in our folder\0refused backend\0"}, "partial", ["partial"]),
        ({"x": b"\x7fELF"}, "foreign", []),
        ({"x": b""}, "foreign", []),
        # Signs without the code that the patch changes: some other program speaks like this.
        ({"x": b"patch set: %s\0"}, "foreign", []),
        ({"both": HOST_PATCHED + LIBRARY_PATCHED}, "full", ["present", "present"]),
    ],
)
def test_verdicts(
    tmp_path: Path, features: Features, files: dict[str, bytes], verdict: str, states: list[str]
) -> None:
    report = judge("x", "s", features, scans_of(tmp_path, features, files))
    assert report.verdict == verdict
    assert [patch.state for patch in report.patches] == states


def test_a_file_without_any_patch_beside_patched_ones_is_from_another_cut(
    tmp_path: Path, features: Features
) -> None:
    files = {"host": HOST_PATCHED, "lib": LIBRARY}
    report = judge("x", "s", features, scans_of(tmp_path, features, files))
    assert [(item.subject, "different cuts" in item.detail) for item in report.problems] == [("lib", True)]
    assert not report.is_ok


def test_two_version_strings_are_called_out(tmp_path: Path, features: Features) -> None:
    other = HOST + b"patch set: %s\0opencoti-0.5.0-g0c1e570-c2\0"
    report = judge("x", "s", features, scans_of(tmp_path, features, {"a": HOST_PATCHED, "b": other}))
    assert report.verdict == "full"
    assert report.identities == ("opencoti-0.5.0-g0c1e570-c1", "opencoti-0.5.0-g0c1e570-c2")
    assert not report.is_ok


def test_a_missing_sign_is_named_and_what_cannot_be_seen_too(tmp_path: Path, features: Features) -> None:
    files = {"lib": LIBRARY + b"not in our folder\0refused backend\0"}
    report = judge("x", "s", features, scans_of(tmp_path, features, files))
    assert report.patches[0].missing == ("string 'refused backend' in lib",)
    assert report.unseen["0003-build"] == "only CMake reads it"
    assert "0001-identity" in report.unseen
    assert "no string 'refused backend' in lib" in report.text()


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"refused backend", 1),
        (b"refused backend\n", 1),
        (b"the tail: refused backend\0", 1),
        (b"refused backends\0", 0),
        (b"refused backend ", 0),
        (b"refused\0backend", 0),
    ],
)
def test_a_text_counts_where_a_string_ends_with_it(
    tmp_path: Path, features: Features, data: bytes, count: int
) -> None:
    sign = next(s for s in features.patch["0002-trust"].sign if s.count == 2)
    assert scans_of(tmp_path, features, {"x": data})[0].counts[sign] == count


@given(before=st.integers(0, 40), copies=st.integers(1, 4))
def test_texts_across_windows_count_once(
    tmp_path_factory: pytest.TempPathFactory, before: int, copies: int
) -> None:
    """Whatever the window, each copy is found once."""
    features = parse_features(TABLE.encode(), "sample")
    data = b"\0" * before + b"refused backend\0" * copies
    path = tmp_path_factory.mktemp("scan") / "x"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features_scan, "_WINDOW_BYTES", 16)
        found = scan(Subject(label="x", path=path), features)
    sign = next(s for s in features.patch["0002-trust"].sign if s.count == 2)
    assert found.counts[sign] == copies
    assert found.has(sign) == (copies >= 2)


def test_a_slice_shows_only_its_own_bytes(tmp_path: Path, features: Features) -> None:
    path = tmp_path / "x"
    path.write_bytes(HOST_PATCHED + b"\0" * 10 + LIBRARY_PATCHED)
    part = scan(Subject(label="x", path=path, size=len(HOST_PATCHED)), features)
    assert judge("x", "s", features, [part]).verdict == "full"
    assert [p.name for p in judge("x", "s", features, [part]).patches] == ["0001-identity"]


def test_exported_symbols_are_signs(tmp_path: Path) -> None:
    """Python itself exports its interface: a file with symbols that every machine here has."""
    library = next(
        path for path in map(Path, _mapped_libraries()) if path.name.startswith(("libpython", "libc.so"))
    )
    table = TABLE + '[part.c]\nof = "c"\nsymbol = "(printf|PyObject_.*)"\n'
    table += '[[patch.0004-more.sign]]\npart = "c"\nsymbol = "(str|PyObject_).*"\ncount = 20\n'
    table += '[[patch.0005-none.sign]]\npart = "c"\nsymbol = "opencoti_.*"\n'
    features = parse_features(table.encode(), "sample")
    report = judge("x", "s", features, [scan(Subject(label="c", path=library), features)])
    assert {p.name: p.state for p in report.patches} == {"0004-more": "present", "0005-none": "missing"}


def _mapped_libraries() -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6]


def test_the_files_of_an_artifact_are_looked_at(
    checkout: Layout, tmp_path: Path, recorded: RecordedConsole
) -> None:
    inputs = make_inputs(tmp_path / "in", dsos=())
    inputs.entry.write_bytes(HOST_PATCHED)
    inputs.libraries[0].write_bytes(LIBRARY)
    packaged = assemble(replace(inputs), tmp_path / "out", recorded.console)
    report = inspect_features(packaged.artifact, checkout)
    assert (report.verdict, list(report.files)) == ("partial", ["libggml-cpu-haswell.so", "llama-server"])
    inputs.libraries[0].write_bytes(LIBRARY_PATCHED)
    packaged = assemble(replace(inputs), tmp_path / "out", recorded.console)
    report = inspect_features(packaged.artifact, checkout)
    assert (report.verdict, report.is_ok) == ("full", True)


def test_a_host_with_members_shows_its_own_patches(checkout: Layout, tmp_path: Path) -> None:
    """As an APE host: what is in front of the members is the program."""
    (tmp_path / "host").write_bytes(b"MZqFpD" + HOST_PATCHED)
    member = NewMember(name="ggml-cuda.so", mode=0o755, data=LIBRARY_PATCHED)
    write_archive(tmp_path / "host", [member], tmp_path / "ape")
    report = inspect_features(tmp_path / "ape", checkout)
    assert (report.verdict, list(report.files)) == ("full", ["ape", "ggml-cuda.so"])


def test_compressed_members_are_not_looked_at_and_that_is_said(checkout: Layout, tmp_path: Path) -> None:
    (tmp_path / "host").write_bytes(HOST_PATCHED)
    with zipfile.ZipFile(tmp_path / "host", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("lib.so", LIBRARY)
        archive.writestr("more", b"x" * 100)
    report = inspect_features(tmp_path / "host", checkout)
    assert report.verdict == "full"
    assert report.notes == ("2 compressed members were not looked at, lib.so for example",)


def test_a_folder_is_looked_at_without_its_links(checkout: Layout, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "libggml.so.0").write_bytes(LIBRARY_PATCHED)
    (folder / "libggml.so").symlink_to("libggml.so.0")
    (folder / "notes.txt").write_bytes(b"cannot find backend")
    assert list(inspect_features(folder, checkout).files) == ["libggml.so.0"]


def test_a_patch_that_the_table_does_not_describe_is_named(checkout: Layout, tmp_path: Path) -> None:
    (checkout.patches / "llama.cpp" / "0004-new.patch").write_text(
        "From: a <a@b>\nSubject: [PATCH] new\n\n---\ndiff --git a/x b/x\nnew file mode 100644\n"
        "index 0000000000000000000000000000000000000000..587be6b4c3f93f93c489c0111bba5596147a26cb\n"
        "--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+x\n"
    )
    (tmp_path / "x").write_bytes(HOST_PATCHED)
    assert (
        "features.toml says nothing about 0004-new.patch" in inspect_features(tmp_path / "x", checkout).notes
    )


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose program is a copy of `sleep` under the engine's name."""
    sleep = shutil.which("sleep")
    assert sleep is not None
    program = tmp_path / "llama-server"
    shutil.copy(sleep, program)
    with open(program, "ab") as file:
        file.write(HOST_PATCHED)
    child = subprocess.Popen([str(program), "60"])
    yield child
    child.kill()
    child.wait()


def test_a_process_is_judged_by_what_it_has_mapped(
    checkout: Layout, tmp_path: Path, running: subprocess.Popen[bytes]
) -> None:
    report = inspect_process(running.pid, checkout)
    assert report.verdict == "full"
    assert list(report.files) == [str(tmp_path / "llama-server")]
    # Replaced on disk: what lies there now is not what runs.
    (tmp_path / "llama-server").unlink()
    (tmp_path / "llama-server").write_bytes(HOST)
    report = inspect_process(running.pid, checkout)
    assert [item.subject for item in report.problems] == [str(tmp_path / "llama-server")]
    assert (report.verdict, report.is_ok) == ("foreign", False)


def test_a_process_is_compared_with_a_manifest(
    checkout: Layout, tmp_path: Path, running: subprocess.Popen[bytes], recorded: RecordedConsole
) -> None:
    inputs = make_inputs(tmp_path / "in")
    shutil.copy(tmp_path / "llama-server", inputs.entry)
    good = assemble(inputs, tmp_path / "out", recorded.console)
    assert inspect_process(running.pid, checkout, manifest=good.manifest).is_ok
    inputs.entry.write_bytes(HOST_PATCHED)
    other = assemble(inputs, tmp_path / "out2", recorded.console)
    report = inspect_process(running.pid, checkout, manifest=other.manifest)
    assert [(item.kind, item.subject) for item in report.problems] == [
        ("changed", str(tmp_path / "llama-server"))
    ]


def test_a_process_that_is_gone_is_named(checkout: Layout) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(UsageError) as caught:
        inspect_process(child.pid, checkout)
    assert caught.value.error_id == "process-missing"


def test_every_patch_of_the_real_series_is_described() -> None:
    folder = ROOT / "vendors" / "patches" / "llama.cpp"
    features = load_features(folder / "features.toml")
    names = [patch.name for patch in read_series(folder).patches]
    assert features.undescribed(names) == ()
    assert {f"{name}.patch" for name in features.patch} == set(names)


def test_the_texts_of_the_real_table_come_from_the_patches() -> None:
    """A sign that its patch does not add could never be found."""
    folder = ROOT / "vendors" / "patches" / "llama.cpp"
    for name, signs in load_features(folder / "features.toml").patch.items():
        added = "".join(
            line for line in (folder / f"{name}.patch").read_text().splitlines() if line.startswith("+")
        )
        for sign in signs.sign:
            assert sign.string is None or sign.string in added, f"{name}: {sign}"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("features/1", "features/2"),
        ('string = "built with"', 'string = "abc"'),
        ('string = "built with"', 'string = "built with"\nsymbol = "x"'),
        ('string = "built with"', 'symbol = "("'),
        ('string = "built with"', 'strin = "built with"'),
        ('part = "version"', 'part = "versions"'),
        ("count = 2", "count = 0"),
        ("count = 2", 'count = "2x"'),
        ('invisible = "only CMake reads it"', ""),
        ("[part.loader]", "[part.loader"),
        ("patch set", "pätch set"),
    ],
)
def test_a_malformed_table_is_refused(old: str, new: str) -> None:
    assert old in TABLE
    with pytest.raises(ConfigError) as caught:
        parse_features(TABLE.replace(old, new, 1).encode(), "sample")
    assert caught.value.error_id == "features-malformed"


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_features(tmp_path / "features.toml")
    assert caught.value.error_id == "features-missing"


@given(st.binary(max_size=300))
def test_any_bytes_as_table_raise_known_errors_only(data: bytes) -> None:
    for text in (data, TABLE.encode() + data):
        assert error_id(partial(parse_features, text, "sample")) in {None, "features-malformed"}


@given(data=st.binary(max_size=300), cut=st.integers(0, 400))
def test_any_bytes_as_binary_raise_known_errors_only(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, cut: int
) -> None:
    features = parse_features(TABLE.encode(), "sample")
    path = tmp_path_factory.mktemp("fuzz") / "x"
    for content in (data, (HOST_PATCHED + data)[:cut], LIBRARY + data):
        path.write_bytes(content)
        judge("x", "s", features, [scan(Subject(label="x", path=path), features)])


def test_a_broken_archive_is_an_error(checkout: Layout, tmp_path: Path) -> None:
    (tmp_path / "host").write_bytes(HOST)
    write_archive(tmp_path / "host", [NewMember(name="x", mode=0o644, data=b"x")], tmp_path / "out")
    (tmp_path / "out").write_bytes((tmp_path / "out").read_bytes() + b"junk")
    with pytest.raises(VerificationError) as caught:
        inspect_features(tmp_path / "out", checkout)
    assert caught.value.error_id == "zip-malformed"


def test_a_sign_says_what_it_looks_for() -> None:
    assert str(Sign(part="x", symbol="a.*")) == "symbol 'a.*'"


@pytest.mark.parametrize(
    "words", [["FILE", "--pid", "1"], ["FILE", "--features", "--full"], ["--pid", "1", "--full"]]
)
def test_words_that_exclude_each_other_are_refused(
    checkout: Layout, recorded: RecordedConsole, words: list[str]
) -> None:
    args = build_parser().parse_args(["verify", *words])
    with pytest.raises(UsageError):
        args.command(args, Context(layout=checkout, console=recorded.console))


@pytest.mark.parametrize(("data", "code"), [(HOST_PATCHED, 0), (HOST, 6), (b"x", 6)])
def test_the_command_says_the_verdict_and_returns_0_or_6(
    checkout: Layout, tmp_path: Path, data: bytes, code: int
) -> None:
    (tmp_path / "x").write_bytes(data)
    out = io.StringIO()
    args = build_parser().parse_args(["verify", str(tmp_path / "x"), "--features", "--json"])
    assert args.command(args, Context(layout=checkout, console=Console(as_json=True, stdout=out))) == code
    document = json.loads(out.getvalue())
    assert document["ok"] is (code == 0)
    assert document["series"] == "llama.cpp"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.integers(0, 1 << 20),
    new=st.binary(min_size=1, max_size=24),
    from_end=st.booleans(),
    cut=st.booleans(),
)
def test_a_damaged_artifact_raises_known_errors_only(
    checkout: Layout, tmp_path: Path, at: int, new: bytes, from_end: bool, cut: bool
) -> None:
    """Nothing is written beside it, whatever it says about its members."""
    folder = tmp_path / "damaged"
    folder.mkdir(exist_ok=True)
    host, out = tmp_path / "host", tmp_path / "good"
    host.write_bytes(HOST_PATCHED)
    members = [NewMember(name=f"lib{n}.so", mode=0o755, data=LIBRARY_PATCHED) for n in range(2)]
    write_archive(host, members, out)
    data = bytearray(out.read_bytes())
    at = len(data) - 1 - at % 400 if from_end else at % len(data)
    data[at : at + len(new)] = new
    (folder / "x").write_bytes(data[:at] if cut else data)
    found = error_id(lambda: inspect_features(folder / "x", checkout))
    assert found in {None, "zip-malformed", "storage-failed"}
    assert [path.name for path in folder.iterdir()] == ["x"]
