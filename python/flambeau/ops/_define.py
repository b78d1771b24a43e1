"""How an operator is defined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_defined: list[str] = []


def defined() -> list[str]:
    """Names of the operators that this package defined; those that were there before are not among them."""
    return list(_defined)


def operator(
    name: str, schema: str, function: Callable[..., Any], shape: Callable[..., Any], mutates: Sequence[str] = ()
) -> None:
    """Defines ``mlx::name`` unless it exists: a second definition would replace the first without a word.

    ``function`` computes it, and ``shape`` gives an empty result of the same shape and type.
    """
    if hasattr(torch.ops.mlx, name):
        return
    custom = torch.library.custom_op(f"mlx::{name}", function, mutates_args=tuple(mutates), schema=schema)
    custom.register_fake(shape)
    _defined.append(f"mlx::{name}")
