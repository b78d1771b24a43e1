"""Matrix products with expert weights, and the order of their rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._define import operator


def gather_mm(
    a: Tensor,
    b: Tensor,
    rhs_indices: Tensor | None = None,
    lhs_indices: Tensor | None = None,
    sorted_indices: Tensor | None = None,
) -> Tensor:
    """Products of matrices of ``a`` and ``b`` selected by index. ``sorted_indices`` is a hint that
    does not change results.
    """
    left = a if lhs_indices is None else a.flatten(0, -3)[lhs_indices.long()]
    right = b if rhs_indices is None else b[rhs_indices.long()]
    return left @ right


def _gather_mm_shape(a: Tensor, b: Tensor, rhs_indices: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
    batch = b.shape[:-2] if rhs_indices is None else rhs_indices.shape
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]))


def gather_qmm(
    x: Tensor,
    w: Tensor,
    scales: Tensor,
    biases: Tensor | None = None,
    rhs_indices: Tensor | None = None,
    lhs_indices: Tensor | None = None,
    transpose: bool = True,
    group_size: int = 32,
    bits: int = 4,
    mode: str = "affine",
    sorted_indices: Tensor | None = None,
) -> Tensor:
    """:func:`gather_mm` with quantized weights: signed integers, or two 4-bit codes per byte, the
    lower one first.
    """
    if mode != "affine":
        raise ValueError(f"codes of mode {mode} cannot be computed in PyTorch here; affine ones can")
    codes = w
    if w.dtype == torch.uint8:
        if bits != 4:
            raise ValueError(f"bytes hold codes of 4 bits, found {bits}")
        codes = torch.stack((w & 15, w >> 4), -1).flatten(-2).to(torch.int16) - 8
    weights = codes.to(x.dtype).unflatten(-1, (-1, group_size)) * scales[..., None]
    if biases is not None:
        weights = weights + biases[..., None]
    weights = weights.flatten(-2)
    return gather_mm(x, weights.mT if transpose else weights, rhs_indices, lhs_indices)


def _gather_qmm_shape(
    x: Tensor,
    w: Tensor,
    scales: Tensor,
    biases: Tensor | None = None,
    rhs_indices: Tensor | None = None,
    lhs_indices: Tensor | None = None,
    transpose: bool = True,
    *_: Any,
    **__: Any,
) -> Tensor:
    batch = w.shape[:-2] if rhs_indices is None else rhs_indices.shape
    return x.new_empty((*batch, x.shape[-2], w.shape[-2] if transpose else w.shape[-1]))


def moe_gather_inputs(
    x: Tensor, expert_indices: Tensor, top_k: int, sort_cutoff: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Repeats each row of ``x`` for each of its experts; sorts by expert if ``x`` has more than
    ``sort_cutoff`` rows.

    Returns the rows [n * top_k, 1, d], their experts, whether they are sorted, and the inverse
    permutation.
    """
    experts = expert_indices.flatten().to(torch.int32)
    places = torch.arange(experts.numel(), device=x.device)
    is_sorted = x.shape[0] > sort_cutoff
    order = experts.argsort() if is_sorted else places
    back = torch.empty_like(order).scatter_(0, order, places).to(torch.int32)
    rows = x[order // top_k].unsqueeze(-2)
    return rows, experts[order], torch.tensor(int(is_sorted), dtype=torch.int32, device=x.device), back


def _moe_gather_shape(x: Tensor, expert_indices: Tensor, top_k: int, sort_cutoff: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    count = x.shape[0] * top_k
    words = [x.new_empty(shape, dtype=torch.int32) for shape in ((count,), (), (count,))]
    return x.new_empty((count, 1, x.shape[-1])), words[0], words[1], words[2]


def moe_scatter_outputs(down: Tensor, sort_experts: Tensor, inv_order: Tensor, top_k: int) -> Tensor:
    """Restores the row order of results [n * top_k, 1, d]: [n, top_k, d]."""
    rows = down.squeeze(-2)
    rows = rows[inv_order.long()] if bool(sort_experts) else rows.clone()
    return rows.unflatten(0, (-1, top_k))


def _moe_scatter_shape(down: Tensor, sort_experts: Tensor, inv_order: Tensor, top_k: int) -> Tensor:
    return down.new_empty((down.shape[0] // top_k, top_k, down.shape[-1]))


def define() -> None:
    """Defines the operators of this module."""
    operator(
        "gather_mm",
        "(Tensor a, Tensor b, Tensor? rhs_indices=None, Tensor? lhs_indices=None, Tensor? sorted_indices=None) -> Tensor",
        gather_mm,
        _gather_mm_shape,
    )
    operator(
        "gather_qmm",
        "(Tensor x, Tensor w, Tensor scales, Tensor? biases=None, Tensor? rhs_indices=None, Tensor? lhs_indices=None, "
        'bool transpose=True, SymInt group_size=32, SymInt bits=4, str mode="affine", Tensor? sorted_indices=None) -> Tensor',
        gather_qmm,
        _gather_qmm_shape,
    )
    operator(
        "moe_gather_inputs",
        "(Tensor x, Tensor expert_indices, SymInt top_k, SymInt sort_cutoff) -> (Tensor, Tensor, Tensor, Tensor)",
        moe_gather_inputs,
        _moe_gather_shape,
    )
    operator(
        "moe_scatter_outputs",
        "(Tensor down, Tensor sort_experts, Tensor inv_order, SymInt top_k) -> Tensor",
        moe_scatter_outputs,
        _moe_scatter_shape,
    )
