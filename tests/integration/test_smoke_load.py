"""Loading a backend library without its device: sound ones pass, each fault is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ci import process
from ci.context import Context
from ci.dso.elf import inspect_elf
from ci.paths import Layout
from ci.smoke.command import Proof, summary
from ci.smoke.gpu_command import GpuOptions, prove_gpu
from ci.smoke.load import LoadPlan, load_failed, load_test
from ci.toolchains.host import find_toolchain
from ci.toolchains.table import load_table
from opencoti.console import Console
from opencoti.errors import ConfigError, MissingError, UsageError, VerificationError
from opencoti.evidence import dump_evidence, load_evidence
from opencoti.hashing import sha256_bytes, sha256_file
from opencoti.manifest import (
    MANIFEST_SUFFIX,
    Chunks,
    Dso,
    HostBinary,
    Loader,
    Manifest,
    Member,
    Source,
    dump_manifest,
)
from tests.conftest import RecordedConsole

SOUND = """
int vkGetInstanceProcAddr(void);
static int started;
__attribute__((constructor)) static void start(void) { started = 1; }
int ggml_backend_init(void) { return started + vkGetInstanceProcAddr(); }
"""
CRASHES = SOUND.replace("started = 1;", "*(volatile int *)0 = 1;")
# A function that the stub of the table does not declare.
UNKNOWN = SOUND.replace("vkGetInstanceProcAddr", "vkSomethingNew")
Make = Callable[[str], LoadPlan]


@pytest.fixture(scope="module")
def cc(zig: Path, real_layout: Layout) -> Path:
    """The compiler of the toolchain; `zig` sees to it that there is one."""
    return find_toolchain("zig", real_layout).prepare(Console(quiet=True)) / "cc"


@pytest.fixture
def make(cc: Path, real_layout: Layout, tmp_path: Path) -> Make:
    def compile_and_describe(source: str) -> LoadPlan:
        library = _compile(cc, source, tmp_path)
        return _plan(library, real_layout, tmp_path)

    return compile_and_describe


def _compile(cc: Path, source: str, folder: Path) -> Path:
    (folder / "own.c").write_text(source)
    (folder / "vendor.c").write_text("void vkGetInstanceProcAddr(void) {}\nvoid vkSomethingNew(void) {}\n")
    vendor, library = folder / "libvulkan.so.1", folder / "libggml-vulkan.so"
    shared = ["-shared", "-fPIC", "-s", "-O1"]
    for command in (
        [cc, *shared, "-nostdlib", "-Wl,-soname,libvulkan.so.1", "-o", vendor, folder / "vendor.c"],
        [cc, *shared, "-fno-sanitize=all", "-o", library, folder / "own.c", vendor],
    ):
        done = process.run(command, cwd=folder)
        assert done.is_ok, done.error_text
    return library


def _plan(library: Path, layout: Layout, folder: Path) -> LoadPlan:
    row = load_table(layout.table).backend("vulkan")
    data = library.read_bytes()
    artifact = folder / "engine.llamafile"
    artifact.write_bytes(b"loader--" + data)
    facts = inspect_elf(library)
    dso = Dso(name=library.name, backend="vulkan", sha256=sha256_file(library), archs=row.features)
    member = Member(name=library.name, offset=8, size=len(data), sha256=dso.sha256, mode="0755")
    entry = Member(
        name="llama-server", offset=0 + 8 + len(data), size=0, sha256=sha256_bytes(b""), mode="0755"
    )
    manifest = Manifest(
        name=artifact.name,
        sha256=sha256_file(artifact),
        size=artifact.stat().st_size,
        lane="elf",
        os="linux",
        arch=facts.arch,
        version_string="opencoti-1.0-c1",
        opencoti_tag="c1",
        git_commit="0" * 40,
        git_dirty=False,
        cpu_only=False,
        windows_runnable=False,
        sources=(
            Source(name="s", origin="o", commit="0" * 40, tag="t", tree="0" * 40, patched_tree="0" * 40),
        ),
        patch_set_hash="0" * 64,
        loader=Loader(sha256=sha256_bytes(b"loader--"), size=8),
        host_binary=HostBinary(name="llama-server"),
        dsos=(dso,),
        members=(member, entry),
        chunks=Chunks(
            file=f"{artifact.name}.chunks",
            sha256="0" * 64,
            chunk_size=1 << 20,
            count=-(-artifact.stat().st_size // (1 << 20)),
        ),
    )
    return LoadPlan(artifact=artifact, manifest=manifest, dso=dso, backend=row, layout=layout)


def test_a_sound_library_loads_and_the_evidence_says_what_that_is_worth(make: Make) -> None:
    plan = make(SOUND)
    evidence = load_test(plan, Console(quiet=True))
    assert evidence.kind == "load"
    assert evidence.passed
    assert evidence.result is None
    assert evidence.loaded is not None
    assert evidence.loaded.stubs == ("libvulkan.so.1",)
    assert evidence.loaded.dso.sha256 == plan.dso.sha256
    assert evidence.loaded.dso.inode > 0
    assert evidence.not_tested[0].startswith("on a device: this machine has none for Vulkan")


@pytest.mark.parametrize(
    ("source", "error", "why"),
    [
        (CRASHES, "load-failed", "ended with -"),
        (UNKNOWN, "load-failed", "vkSomethingNew"),
        (SOUND.replace("ggml_backend_init", "ggml_other_init"), "load-unsound", "ggml_backend_init"),
        (SOUND.replace("ggml_backend_init", "ggml_backend_score"), "load-unsound", "ggml_backend_score"),
    ],
    ids=["crashes", "unknown-function", "no-entry", "a-cpu-variant"],
)
def test_a_library_with_a_fault_is_refused(make: Make, source: str, error: str, why: str) -> None:
    plan = make(source)
    with pytest.raises(VerificationError) as caught:
        load_test(plan, Console(quiet=True))
    assert caught.value.error_id == error
    assert why in caught.value.why
    evidence = load_failed(plan, caught.value)
    assert not evidence.passed
    assert evidence.not_tested


def test_other_bytes_than_those_of_the_manifest_are_not_loaded(make: Make) -> None:
    plan = make(SOUND)
    data = bytearray(plan.artifact.read_bytes())
    data[100] ^= 1
    plan.artifact.write_bytes(data)
    with pytest.raises(VerificationError) as caught:
        load_test(plan, Console(quiet=True))
    assert caught.value.error_id == "load-member-differs"


class Command:
    """`smoke --backend` on an artifact whose only backend is Vulkan, on a machine without a driver for it."""

    def __init__(self, plan: LoadPlan, root: Path, console: Console) -> None:
        self.plan = plan
        self.context = Context(layout=_layout(plan.layout, root), console=console)

    def run(self, backend: str, *, is_load_enough: bool = False) -> Proof:
        options = GpuOptions(engine="host", is_load_enough=is_load_enough, model=self.plan.artifact)
        return prove_gpu(self.context, self.plan.artifact, backend, options)


def _layout(real: Layout, root: Path) -> Layout:
    (root / "checkout").mkdir()
    (root / "checkout" / "containers").symlink_to(real.containers)
    return Layout(root=root / "checkout", cache=real.cache)


@pytest.fixture
def command(
    make: Make, tmp_path: Path, recorded: RecordedConsole, monkeypatch: pytest.MonkeyPatch
) -> Command:
    monkeypatch.setenv("VK_DRIVER_FILES", "/dev/null")
    monkeypatch.delenv("VK_ICD_FILENAMES", raising=False)
    plan = make(SOUND)
    beside = plan.artifact.with_name(plan.artifact.name + MANIFEST_SUFFIX)
    beside.write_bytes(dump_manifest(plan.manifest))
    return Command(plan, tmp_path, recorded.console)


def test_without_a_device_the_library_is_loaded_and_the_command_does_not_end_well(command: Command) -> None:
    with pytest.raises(MissingError) as caught:
        command.run("vulkan")
    assert caught.value.error_id == "smoke-no-device"
    folder = command.context.layout.dist / "evidence"
    assert [path.name for path in folder.iterdir()] == ["engine.llamafile.load-vulkan.json"]
    evidence = load_evidence((folder / "engine.llamafile.load-vulkan.json").read_bytes())
    assert (evidence.kind, evidence.passed) == ("load", True)


def test_loading_is_enough_when_that_is_asked_for_and_the_summary_says_so(command: Command) -> None:
    text = summary(command.run("vulkan", is_load_enough=True))
    assert "loaded only: libggml-vulkan.so" in text
    assert "not tested: on a device: this machine has none for Vulkan" in text


def test_a_backend_that_is_not_in_the_artifact_is_named_with_those_that_are(command: Command) -> None:
    with pytest.raises(UsageError) as caught:
        command.run("cuda13")
    assert caught.value.error_id == "smoke-backend-absent"
    assert caught.value.why == "it has vulkan"


def test_a_backend_that_nobody_knows_is_a_wrong_word(command: Command) -> None:
    with pytest.raises(UsageError) as caught:
        command.run("metal")
    assert caught.value.error_id == "backend-not-in-table"


def test_without_a_manifest_nobody_knows_what_to_test(command: Command) -> None:
    command.plan.artifact.with_name(command.plan.artifact.name + MANIFEST_SUFFIX).unlink()
    with pytest.raises(ConfigError) as caught:
        command.run("vulkan")
    assert caught.value.error_id == "smoke-no-manifest"


def test_evidence_of_loading_is_never_taken_for_a_smoke_test(make: Make) -> None:
    evidence = load_test(make(SOUND), Console(quiet=True))
    data = dump_evidence(evidence)
    assert load_evidence(data) == evidence
    assert b'"load"' in data
    with pytest.raises(ConfigError):
        load_evidence(data.replace(b'"load"', b'"smoke"', 1))
