"""TurboQuant's 4-bit codes: two per byte, the first in the upper half."""

from __future__ import annotations

import torch
from torch import Tensor

from ._define import operator


def tq4_compress(values: Tensor, boundaries: Tensor) -> Tensor:
    """Codes [..., d / 2] of values [..., d]. A code is the number of 15 sorted boundaries below the
    value.
    """
    if boundaries.shape != (15,) or values.shape[-1] % 2:
        raise ValueError(f"expected 15 boundaries and an even number of values, found {tuple(boundaries.shape)} and {values.shape[-1]}")
    codes = torch.bucketize(values, boundaries).to(torch.uint8).unflatten(-1, (-1, 2))
    return codes[..., 0] * 16 + codes[..., 1]


def _compressed(values: Tensor, boundaries: Tensor) -> Tensor:
    return values.new_empty((*values.shape[:-1], values.shape[-1] // 2), dtype=torch.uint8)


def tq_dequant(packed: Tensor, norms: Tensor, centroids: Tensor) -> Tensor:
    """Values [..., d] of codes [..., d / 2]: one of 16 centroids times the norm of the row [...,
    1].
    """
    if centroids.shape != (16,):
        raise ValueError(f"expected 16 centroids, found {tuple(centroids.shape)}")
    codes = torch.stack((packed >> 4, packed & 15), -1).flatten(-2)
    return centroids[codes.long()] * norms


def _dequantized(packed: Tensor, norms: Tensor, centroids: Tensor) -> Tensor:
    return norms.new_empty((*packed.shape[:-1], packed.shape[-1] * 2))


def tq_norm(x: Tensor) -> Tensor:
    """Length of each row, [..., 1], summed in f32."""
    return x.float().square().sum(-1, keepdim=True).sqrt().to(x.dtype)


def _norm(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], 1))


def define() -> None:
    """Defines the operators of this module."""
    operator("tq4_compress", "(Tensor values, Tensor boundaries) -> Tensor", tq4_compress, _compressed)
    operator("tq_dequant", "(Tensor packed, Tensor norms, Tensor centroids) -> Tensor", tq_dequant, _dequantized)
    operator("tq_norm", "(Tensor x) -> Tensor", tq_norm, _norm)
