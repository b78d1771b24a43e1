"""Recurrent state, and sampling of tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._define import operator


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, use_custom_kernel: bool = True
) -> Tensor:
    """Steps of the gated delta rule: q, k [b, t, heads, dk], v [b, t, heads, dv], gates [b, t,
    heads], state [b, heads, dv, dk].

    Writes the last step's state to ``state``. Returns [b, t, heads, dv].
    """
    groups = v.shape[2] // k.shape[2]
    q, k = q.repeat_interleave(groups, 2), k.repeat_interleave(groups, 2)
    now, results = state, []
    for step in range(q.shape[1]):
        now = now * g[:, step, :, None, None]
        key = k[:, step, :, :, None]
        error = (v[:, step] - (now @ key).squeeze(-1)) * beta[:, step, :, None]
        now = now + error[..., None] * key.mT
        results.append((now @ q[:, step, :, :, None]).squeeze(-1))
    state.copy_(now)
    return torch.stack(results, 1)


def _like_values(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Tensor:
    return v.new_empty((*q.shape[:2], *v.shape[2:]))


def sample(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor | None = None) -> Tensor:
    """Samples a token for each row of logits [b, vocabulary]; temperature 0 takes the likeliest
    one.

    Uses PyTorch's generator, so a seed gives other tokens than in MLX.
    """
    if float(temperature) <= 0:
        return logits.argmax(-1)
    scaled = logits.float() / temperature
    count = min(int(top_k), scaled.shape[-1])
    scaled = scaled.masked_fill(scaled < scaled.topk(count, -1).values[..., -1:], -torch.inf)
    likely = scaled.softmax(-1)
    ranked = likely.sort(-1, descending=True).values
    # A token stays if the likelier tokens sum up to at most top_p.
    kept = ranked.cumsum(-1) - ranked <= top_p
    least = ranked.masked_fill(~kept, torch.inf).amin(-1, keepdim=True)
    likely = likely.masked_fill(likely < least, 0)
    generator = None if seed is None else torch.Generator(logits.device).manual_seed(int(seed))
    return torch.multinomial(likely, 1, generator=generator).squeeze(-1)


def _tokens(logits: Tensor, *_: Any, **__: Any) -> Tensor:
    return logits.new_empty(logits.shape[:-1], dtype=torch.int64)


def define() -> None:
    """Defines the operators of this module."""
    operator(
        "gated_delta_rule",
        "(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor(a5!) state, bool use_custom_kernel=True) -> Tensor",
        gated_delta_rule,
        _like_values,
        mutates=["state"],
    )
    operator(
        "sample", "(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor? seed=None) -> Tensor", sample, _tokens
    )
