"""The operators ``torch.ops.mlx.*``, with the names and schemas of ExecuTorch's MLX backend, on
every platform.

Import this module before ``torch.export``; ExecuTorch is not needed. If ExecuTorch's module was
imported first, its operators stay. In PyTorch, the operators compute the same results as in
programs compiled by Flambeau.
"""

from . import _attention, _experts, _quantized, _state
from ._define import defined

__all__ = ["defined"]

_attention.define()
_experts.define()
_quantized.define()
_state.define()
