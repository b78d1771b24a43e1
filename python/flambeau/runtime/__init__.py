"""Programs and their methods, with the classes of ``executorch.runtime``.

Change ``from executorch.runtime import Runtime`` to ``from flambeau.runtime import Runtime``; everything else stays:

>>> from flambeau.runtime import Runtime
>>> runtime = Runtime.get()
>>> runtime.backend_registry.is_available("MLXBackend")
True

Beyond the original, inputs may be arrays of NumPy's and of every library that knows DLPack, tensors of any strides, subclasses of
``torch.Tensor``, and nested lists; ``Runtime(engine="mlx")`` computes on MLX; threads may share methods, and take turns.
"""

from ._metadata import MethodMeta, TensorInfo
from ._program import Method, Program
from ._registry import BackendRegistry, OperatorRegistry
from ._runtime import Runtime, Verification

__all__ = [
    "BackendRegistry",
    "Method",
    "MethodMeta",
    "OperatorRegistry",
    "Program",
    "Runtime",
    "TensorInfo",
    "Verification",
]
