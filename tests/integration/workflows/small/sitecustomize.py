"""Makes the environment of the tests as small as that of the job that signs: `requirements/runtime.txt`.

Python imports this file at start when its folder is on PYTHONPATH; `stand_in.sh` puts it there.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

_LOCK = Path("requirements/runtime.txt")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class _Blocker:
    """Refuses every module of a package that the lock does not name."""

    def __init__(self) -> None:
        locked = set(re.findall(r"^([A-Za-z0-9._-]+)==", _LOCK.read_text(encoding="utf-8"), re.MULTILINE))
        allowed = {_normal(name) for name in locked}
        self._blocked = {
            module
            for module, owners in packages_distributions().items()
            if not any(_normal(owner) in allowed for owner in owners)
        }

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.split(".")[0] in self._blocked:
            raise ModuleNotFoundError(f"{name} is not in {_LOCK}", name=name)


if _LOCK.is_file():
    sys.meta_path.insert(0, _Blocker())  # type: ignore[arg-type]
