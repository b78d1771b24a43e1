"""The operators ``torch.ops.mlx.*``, with the names and schemas of ExecuTorch's MLX backend, on every platform.

Import this module ahead of ``torch.export``; ExecuTorch is not needed. Where its own module was imported before, that one's
operators stay. They compute in PyTorch what the programs compute that Flambeau makes of them.
"""

from . import _attention, _experts, _quantized, _state
from ._define import defined

__all__ = ["defined"]

_attention.define()
_experts.define()
_quantized.define()
_state.define()
