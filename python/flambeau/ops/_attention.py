"""Attention over caches, and rotary embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._define import operator


def kv_cache_update(cache: Tensor, new_values: Tensor, start_pos: int, ring_size: int = 0) -> Tensor:
    """Writes rows [b, heads, rows, d] to a cache [b, heads, positions, d] from ``start_pos`` on; a
    ``ring_size`` wraps positions.
    """
    rows = new_values.shape[2]
    if ring_size == 0:
        if start_pos + rows > cache.shape[2]:
            raise ValueError(f"positions {start_pos} to {start_pos + rows} do not fit a cache of {cache.shape[2]}")
        cache.narrow(2, start_pos, rows).copy_(new_values)
    else:
        positions = (torch.arange(rows, device=cache.device) + start_pos) % ring_size
        cache.index_copy_(2, positions, new_values.to(cache.dtype))
    return _dummy(cache, new_values)


def _dummy(cache: Tensor, new_values: Tensor, *_: Any, **__: Any) -> Tensor:
    return new_values.new_empty((1,))


def custom_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    start_pos: int,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attention of queries that begin at ``start_pos`` to the rows of a cache up to the last query.
    """
    rows = query.shape[2]
    end = start_pos + rows
    groups = query.shape[1] // key.shape[1]
    keys, values = (cache[:, :, :end].repeat_interleave(groups, dim=1) for cache in (key, value))
    if is_causal:
        # Row i has position start_pos + i, and sees all positions up to its own.
        places = torch.arange(end, device=query.device)
        attn_mask = places[None, :] <= places[start_pos:, None]
    return torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask, dropout_p, scale=scale)


def rope(
    x: Tensor,
    dims: int,
    pos: int,
    traditional: bool = False,
    base: float = 500000.0,
    scale: float = 1.0,
    freqs: Tensor | None = None,
) -> Tensor:
    """Rotary embedding: rotates the first ``dims`` elements of rows [b, heads, rows, d] by angles
    proportional to the position.
    """
    rows, half = x.shape[2], dims // 2
    positions = torch.arange(rows, dtype=torch.float32, device=x.device)[:, None] + pos
    if freqs is None:
        exponents = torch.arange(half, dtype=torch.float32, device=x.device) * (-2.0 / dims)
        angles = positions * torch.pow(base, exponents) * scale
    elif freqs.dim() == 1:
        angles = positions / freqs.float() * scale
    else:
        angles = freqs.float().reshape(rows, half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    turned, rest = x[..., :dims], x[..., dims:]
    if traditional:
        a, b = turned.unflatten(-1, (half, 2)).unbind(-1)
        turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    else:
        a, b = turned.split(half, -1)
        turned = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
    return torch.cat((turned, rest), -1)


def _like_first(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.new_empty(x.shape)


def define() -> None:
    """Defines the operators of this module."""
    operator(
        "kv_cache_update",
        "(Tensor(a0!) cache, Tensor new_values, SymInt start_pos, SymInt ring_size=0) -> Tensor",
        kv_cache_update,
        _dummy,
        mutates=["cache"],
    )
    operator(
        "custom_sdpa",
        "(Tensor query, Tensor key, Tensor value, SymInt start_pos, Tensor? attn_mask=None, float dropout_p=0., "
        "bool is_causal=False, float? scale=None) -> Tensor",
        custom_sdpa,
        _like_first,
    )
    operator(
        "rope",
        "(Tensor x, SymInt dims, SymInt pos, bool traditional=False, float base=500000., float scale=1., Tensor? freqs=None) "
        "-> Tensor",
        rope,
        _like_first,
    )
