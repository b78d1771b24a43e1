"""Programs and their methods, with the interface of ``executorch.runtime``.

Change ``from executorch.runtime import Runtime`` to ``from flambeau.runtime import Runtime``; no
other change is needed:

>>> from flambeau.runtime import Runtime
>>> runtime = Runtime.get()
>>> runtime.backend_registry.is_available("MLXBackend")
True

In addition to the original, inputs may be arrays of NumPy or any library with DLPack support,
tensors of any strides, subclasses of ``torch.Tensor``, and nested lists. ``Runtime(engine="mlx")``
computes on MLX. Threads may share a method and run it one at a time.
"""

from ._metadata import MethodMeta, TensorInfo
from ._program import Method, Program
from ._registry import BackendRegistry, OperatorRegistry
from ._runtime import Runtime, Verification
from ._tools import Difference, Profile, Step, Verdict

__all__ = [
    "BackendRegistry",
    "Difference",
    "Method",
    "MethodMeta",
    "OperatorRegistry",
    "Profile",
    "Program",
    "Runtime",
    "Step",
    "TensorInfo",
    "Verdict",
    "Verification",
]
