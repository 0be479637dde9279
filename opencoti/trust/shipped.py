"""The root that is installed with this package: the anchor of all trust of a client."""

from __future__ import annotations

import re
from importlib import resources

from opencoti.trust.chain import TrustedRoot, anchor

_NAME = re.compile(r"root-(0|[1-9][0-9]{0,5})\.json")


def shipped_root() -> TrustedRoot:
    """Return the newest root in this package.

    Before the first release that is version 0, which has no key: nothing verifies against it.

    Raises:
        ConfigError: the installed file is damaged.
    """
    folder = resources.files("opencoti.trust")
    versions = [int(match[1]) for item in folder.iterdir() if (match := _NAME.fullmatch(item.name))]
    name = f"root-{max(versions)}.json"
    return anchor(folder.joinpath(name).read_bytes(), f"the trust root {name} shipped with opencoti")
