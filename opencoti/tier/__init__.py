"""One engine per host for many programs: `LocalTier`, and the interface `TierProvider` that others implement.

Nothing is imported before one of these names is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opencoti.tier.address import AddressTier
    from opencoti.tier.lease import Lease
    from opencoti.tier.local import LocalTier
    from opencoti.tier.provider import Capabilities, Health, TierProvider

__all__ = ["AddressTier", "Capabilities", "Health", "Lease", "LocalTier", "TierProvider"]
_HOMES = {
    "AddressTier": "address",
    "Capabilities": "provider",
    "Health": "provider",
    "Lease": "lease",
    "LocalTier": "local",
    "TierProvider": "provider",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
