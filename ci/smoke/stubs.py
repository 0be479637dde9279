"""Stand-ins for a vendor's libraries, so that a backend can be loaded on a machine that has none of them.

First comes a real library of the toolchain, if that is unpacked here; then the stub that the backend was
linked against; and where the toolchain brings neither, one made of the names that the backend asks of it.
Their functions do nothing: no code of the backend may be called with them in place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ci import process
from ci.dso.elf import ElfFacts
from ci.dso.opened import opened_elf
from ci.dso.rules import ENGINE_LIBRARIES, SYSTEM_LIBRARIES
from ci.paths import Layout
from ci.toolchains.host import find_toolchain
from ci.toolchains.recipe import Recipe
from ci.toolchains.table import Backend
from opencoti.console import Console
from opencoti.errors import VerificationError, storage_error

_COMPILER: Final = "zig"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GLOBAL: Final = 1  # the first number that stands for a version; 0 and 1 mean none


@dataclass(frozen=True, kw_only=True)
class Stand:
    """What was put in place of a vendor's libraries: names of those that do nothing, and of real ones."""

    folder: Path
    stubs: tuple[str, ...]
    real: tuple[str, ...]

    @property
    def search_path(self) -> str:
        """Folders in which the linker finds them."""
        return str(self.folder)


def make_stubs(facts: ElfFacts, backend: Backend, layout: Layout, folder: Path, console: Console) -> Stand:
    """Put every library that a backend needs of a vendor into `folder`.

    Raises:
        VerificationError: `stub-failed`.
        OpencotiError: the compiler cannot be had.
    """
    wanted = [name for name in facts.needed if name not in SYSTEM_LIBRARIES | ENGINE_LIBRARIES]
    stubs, real = [], []
    for soname in wanted:
        found = _real_library(soname, backend, layout)
        if found is not None:
            (folder / soname).symlink_to(found)
            real.append(soname)
        else:
            _compile(_source(soname, facts, backend, layout, folder), soname, folder, layout, console)
            stubs.append(soname)
    return Stand(folder=folder, stubs=tuple(stubs), real=tuple(real))


def _real_library(soname: str, backend: Backend, layout: Layout) -> Path | None:
    """Return a library that an unpacked toolchain holds; nothing is fetched for it."""
    recipe = Recipe.load(layout.containers / backend.toolchain, needs_lock=False)
    folder = layout.toolchains / recipe.id[:16]
    found = (path for path in folder.rglob(soname) if path.is_file()) if folder.is_dir() else ()
    return next(iter(found), None)


def _source(soname: str, facts: ElfFacts, backend: Backend, layout: Layout, folder: Path) -> Path:
    own = layout.containers / backend.toolchain / "tree" / "stubs" / f"{soname}.c"
    if own.is_file():
        return own
    source = folder / f"{soname}.c"
    lines = [f"void {name}(void) {{}}\n" for name in bound_symbols(facts.path, soname)]
    try:
        source.write_text("".join(lines), encoding="utf-8")
    except OSError as exc:
        raise storage_error(exc, f"cannot write {source}") from exc
    return source


def bound_symbols(path: Path, soname: str) -> tuple[str, ...]:
    """Return the functions that a library asks of another one by a version of that one."""
    with opened_elf(path) as opened:
        return tuple(sorted(set(_bound(opened.elf, soname))))


def _bound(elf: Any, soname: str) -> Iterator[str]:
    needs = next((item for item in elf.iter_sections() if item["sh_type"] == "SHT_GNU_verneed"), None)
    indices = elf.get_section_by_name(".gnu.version")
    if needs is None or indices is None:
        return
    own = {
        int(version["vna_other"])
        for library, versions in needs.iter_versions()
        for version in versions
        if library.name == soname
    }
    for number, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
        index = indices.get_symbol(number)["ndx"]
        is_bound = isinstance(index, int) and index > _GLOBAL and index in own
        if is_bound and _NAME.fullmatch(symbol.name):
            yield symbol.name


def _compile(source: Path, soname: str, folder: Path, layout: Layout, console: Console) -> None:
    tools = find_toolchain(_COMPILER, layout).prepare(console)
    command: Sequence[str | Path] = (
        *(tools / "cc", "-shared", "-nostdlib", "-fPIC", f"-Wl,-soname,{soname}"),
        *("-o", folder / soname, source),
    )
    done = process.run(command, env={"PATH": "/usr/bin:/bin", "HOME": str(folder)})
    if not done.is_ok:
        raise VerificationError(
            "stub-failed", f"the stub of {soname} does not compile", why=done.error_text[-300:]
        )
