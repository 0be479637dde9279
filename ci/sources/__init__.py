"""Pinned upstream sources: fetched by hash, unpacked safely, checked by tree id."""
