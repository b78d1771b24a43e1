"""Definition of operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_defined: list[str] = []


def defined() -> list[str]:
    """Names of the operators defined by this package, without operators that existed before."""
    return list(_defined)


def operator(
    name: str, schema: str, function: Callable[..., Any], shape: Callable[..., Any], mutates: Sequence[str] = ()
) -> None:
    """Defines ``mlx::name`` unless it exists, because a second definition would silently replace
    the first.

    ``function`` computes the operator; ``shape`` returns an empty result with the same shape and
    type.
    """
    if hasattr(torch.ops.mlx, name):
        return
    custom = torch.library.custom_op(f"mlx::{name}", function, mutates_args=tuple(mutates), schema=schema)
    custom.register_fake(shape)
    _defined.append(f"mlx::{name}")
