"""The stand-ins that a GPU library is linked against, `containers/<toolchain>/tree/stubs/<soname>.c`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ci.toolchains.table import Backend

_FUNCTION: Final = re.compile(r"^void (\w+)\(void\) \{\}$", re.MULTILINE)


def stub_symbols(containers: Path, backend: Backend) -> frozenset[str]:
    """Return the functions that the stubs of a backend's toolchain declare."""
    folder = containers / backend.toolchain / "tree" / "stubs"
    texts = (path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.c")))
    return frozenset(name for text in texts for name in _FUNCTION.findall(text))
