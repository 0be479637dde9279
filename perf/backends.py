"""The Vulkan backend: nothing changed, and one file of its host code changed (no shader may be made anew)."""

from __future__ import annotations

import time
from dataclasses import replace

from ci.backends import build_gpu, ggml_tree
from ci.build import BuildOptions, prepare_source
from ci.context import Context
from ci.engines import select_engine
from ci.stages.gpu import SUBTREE, gpu_stage
from ci.stages.runner import run_stage
from ci.toolchains.table import load_table
from opencoti.hashing import sha256_bytes
from perf.measure import Report, Sample, time_call

_FILE = "src/ggml-vulkan/ggml-vulkan-debug.cpp"
_SHADER_STEP = "Generate vulkan shaders for "


def run(context: Context, *, runs: int) -> Report:
    """Build with the engine docker; the finished backend must be there already."""
    backend = load_table(context.layout.table).backend("vulkan")
    options = BuildOptions(engine="docker", toolchain="zig", jobs=2)
    same = time_call("nothing changed", lambda: build_gpu(context, backend, options), runs=runs)
    source = prepare_source(context)
    stage = gpu_stage(
        backend, arch="x86_64", targets=(), has_flash_attention=True, source_tree=ggml_tree(source)
    )
    file = source.folder / SUBTREE / _FILE
    content = file.read_bytes()
    engine = select_engine("docker", context.layout, context.console)
    started = time.monotonic()
    try:
        file.write_bytes(content + b"\n// changed by a bench\n")
        # Another tree than the real one, so that no finished stage stands for this build, in the same folder.
        result = run_stage(
            replace(stage, source_tree=sha256_bytes(str(started).encode())[:40]),
            engine,
            layout=context.layout,
            source=source.folder / SUBTREE,
            console=context.console,
            jobs=2,
        )
    finally:
        file.write_bytes(content)
    changed = Sample(name="one host file changed", seconds=(time.monotonic() - started,))
    steps = [line for line in result.log.read_text(encoding="utf-8").splitlines() if line.startswith("[")]
    made = sum(_SHADER_STEP in line for line in steps)
    facts = {"steps of the changed build": str(len(steps)), "shaders made anew": str(made)}
    return Report(title="backends", samples=[same, changed], facts=facts)
