"""What `inspect` says of a model file: its header and the memory that it needs. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from opencoti.errors import ConfigError
from opencoti.models.gguf import Header
from opencoti.models.kvcache import CacheWish, cache_size, uses_flash_attention
from opencoti.models.shape import ModelShape

_GIB: Final = 1 << 30


def inspected(header: Header, path: Path, wish: CacheWish) -> dict[str, Any]:
    """Return what is known about a model file, as data; `cache` is None where it has none.

    Raises:
        UsageError: `bad-cache-wish`, `cache-needs-flash-attention`.
    """
    return {
        "path": str(path),
        "architecture": header.text("general.architecture"),
        "name": header.text("general.name"),
        "version": header.version,
        "tensors": header.tensors,
        "file_bytes": header.file_bytes,
        "header_bytes": header.header_bytes,
        "weights_bytes": header.weights_bytes,
        "cache": _cache(header, path, wish),
    }


def _cache(header: Header, path: Path, wish: CacheWish) -> dict[str, Any] | None:
    try:
        shape = ModelShape.from_header(header, str(path))
    except ConfigError:
        return None  # a projector, an adapter or a vocabulary
    size = cache_size(shape, wish)
    return {
        "context": wish.context,
        "trained_context": shape.context,
        "layers": len(shape.layers),
        "windowed_layers": sum(layer.is_windowed for layer in shape.layers),
        "window": shape.window,
        "head_dim": shape.head_dim,
        "allows_flash_attention_2": shape.allows_flash_attention_2,
        "counted_with_flash_attention": uses_flash_attention(shape, wish),
        "has_state": shape.has_state,
        "full_bytes": size.full_bytes,
        "windowed_bytes": size.windowed_bytes,
        "total_bytes": size.total_bytes,
    }


def inspect_text(data: dict[str, Any]) -> str:
    """Render it for people."""
    lines = [
        f"{data['path']}: GGUF {data['version']}, {data['architecture'] or 'no architecture'}",
        f"  {data['tensors']} tensors, {data['weights_bytes'] / _GIB:.2f} GiB of weights",
    ]
    cache = data["cache"]
    if cache is None:
        return "\n".join([*lines, "  no language model: it has no cache"])
    windows = f", {cache['windowed_layers']} of them with a window of {cache['window']} tokens"
    lines.append(
        f"  {cache['layers']} layers with a cache{windows if cache['windowed_layers'] else ''}; "
        f"heads of up to {cache['head_dim']} values"
    )
    lines.append(
        f"  cache for {cache['context']} tokens: {cache['total_bytes'] / _GIB:.2f} GiB "
        f"(trained for {cache['trained_context'] or 'an unknown number of'} tokens)"
    )
    if not cache["allows_flash_attention_2"]:
        lines.append("  FlashAttention-2 does not support heads of this width: leave --flash-attn on auto")
    if cache["has_state"]:
        lines.append("  its recurrent state is not counted")
    return "\n".join(lines)
