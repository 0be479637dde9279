"""All of the examination: what was found, what would be used, what to fix, and the exit code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opencoti.doctor.engine import EngineExamination, examine_engine
from opencoti.doctor.finding import Finding
from opencoti.doctor.host import binfmt_rules, examine_binfmt, examine_gpus, examine_host, examine_python
from opencoti.doctor.libraries import examine_libraries
from opencoti.doctor.surroundings import examine_folders, examine_network, examine_variables
from opencoti.errors import OpencotiError
from opencoti.hardware import Hardware, detect


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What was found, and what follows from it. `would_use` is empty where nothing can be used."""

    findings: tuple[Finding, ...]
    would_use: Mapping[str, str]

    @property
    def failures(self) -> tuple[Finding, ...]:
        """What makes the engine unusable."""
        return tuple(item for item in self.findings if item.status == "fail")

    @property
    def to_fix(self) -> tuple[Finding, ...]:
        """What should be done something about, the worst first."""
        warned = tuple(item for item in self.findings if item.status == "warn")
        return (*self.failures, *warned)

    @property
    def exit_code(self) -> int:
        """0 if the engine can be used, else the code of the first failure."""
        return self.failures[0].exit_code if self.failures else 0

    def as_text(self) -> str:
        """Render for people: by topic, then what would be used, then what to fix."""
        lines: list[str] = []
        for topic in dict.fromkeys(item.topic for item in self.findings):
            lines.append(topic)
            for item in self.findings:
                if item.topic == topic:
                    lines += item.as_lines()
        lines.append("would use")
        lines += [f"       {name:<14} {value}" for name, value in self.would_use.items()] or [
            "       nothing"
        ]
        lines.append("to fix")
        lines += [
            f"  {at}. {item.name}: {item.found}{f'; {item.advice}' if item.advice else ''}"
            for at, item in enumerate(self.to_fix, 1)
        ] or ["       nothing"]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return it as data, the form that `--json` prints."""
        return {
            "exit_code": self.exit_code,
            "is_usable": not self.failures,
            "findings": [item.as_dict() for item in self.findings],
            "would_use": dict(self.would_use),
            "to_fix": [item.as_dict() for item in self.to_fix],
        }


def examine(
    environ: Mapping[str, str] | None = None,
    *,
    cwd: Path | None = None,
    binary: Path | None = None,
    hardware: Hardware | None = None,
    allow_try: bool = True,
) -> Examination:
    """Look at everything. Raises nothing that a machine can cause: failures are findings.

    Args:
        environ: environment to read instead of this process's.
        cwd: working folder, this process's if None.
        binary: engine to look at, instead of the one that would be found.
        hardware: what was detected already.
        allow_try: start the engine once with `--version`, in a scratch folder.
    """
    given = dict(os.environ if environ is None else environ)
    seen = detect() if hardware is None else hardware
    engine = examine_engine(given, explicit=binary, allow_try=allow_try)
    is_ape = engine.facts is not None and engine.facts.is_ape
    findings = (
        *examine_host(needed_glibc=engine.glibc, hardware=seen),
        examine_binfmt(binfmt_rules(), is_ape=is_ape),
        *examine_gpus(seen),
        *engine.findings,
        *examine_libraries(engine.facts, given, cwd or _working_folder()),
        *examine_folders(given),
        *examine_network(given),
        *examine_variables(given),
        examine_python(),
    )
    return Examination(findings=findings, would_use=_would_use(engine, seen))


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except OSError:
        return Path("/")  # it was removed under us


def _would_use(engine: EngineExamination, hardware: Hardware) -> Mapping[str, str]:
    if engine.facts is None:
        return {}
    gpus = ", ".join(gpu.name for gpu in hardware.usable_gpus)
    return {
        "engine": f"{engine.facts.path} ({engine.named_by})",
        "libraries": str(engine.facts.own_folder or "those beside the engine"),
        "computes on": f"{gpus}, if the engine has a backend for it; else the processor"
        if gpus
        else "the processor",
        "model": _model(hardware),
    }


def _model(hardware: Hardware) -> str:
    """Name the configured model, else the one that would be recommended."""
    from opencoti.models.choice import Wish, recommend
    from opencoti.models.table import load_table
    from opencoti.setup.config import load_config

    try:
        config = load_config()
        if config is not None:
            return f"{config.model.path} (set up)"
        wish = Wish(free_bytes=hardware.free_vram_bytes, ram_bytes=hardware.memory.total_bytes or None)
        return f"{recommend(load_table(), hardware.vram_bytes, wish).reason} (recommended, nothing is set up)"
    except OpencotiError as error:
        return f"none: {error}"
