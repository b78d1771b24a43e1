"""Flambeau inside ExecuTorch: its compiler in the export, its engines in the runtime.

``FlambeauPartitioner`` takes the place of ``MLXPartitioner`` in ``to_edge_transform_and_lower``.
Importing this module registers the backend ``MLXBackend`` in ``executorch.runtime``, if its library
was built by ``python -m flambeau.executorch build``; otherwise it warns.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

from ._backend import build, is_registered, last_error, library_path, register, set_options

if TYPE_CHECKING:
    from ._partitioner import FlambeauBackend, FlambeauPartitioner

__all__ = [
    "FlambeauBackend",
    "FlambeauPartitioner",
    "build",
    "is_registered",
    "last_error",
    "library_path",
    "register",
    "set_options",
]


def __getattr__(name: str) -> Any:
    # ExecuTorch's export takes seconds to import.
    if name in ("FlambeauBackend", "FlambeauPartitioner"):
        from . import _partitioner

        return getattr(_partitioner, name)
    raise AttributeError(f"module {__name__} has no attribute {name}")


# The command builds the library, so it does without.
if __name__ not in sys.orig_argv:
    try:
        register()
    except RuntimeError as error:
        warnings.warn(f"ExecuTorch runs no program of MLXBackend: {error}", stacklevel=2)
