"""Flambeau: ExecuTorch's MLX delegate in Rust, for Python.

===========================  =====================================================
to                           use
===========================  =====================================================
run ``.pte`` programs        :mod:`flambeau.runtime`, as ``executorch.runtime``
generate text, chat          :class:`flambeau.LLM`
transcribe recordings        :class:`flambeau.Transcriber`
compile PyTorch programs     :func:`flambeau.compile`
run a PyTorch model          ``torch.compile(model, backend="flambeau")``
serve models over HTTP       :func:`flambeau.serve`
===========================  =====================================================

This package imports neither PyTorch nor NumPy. Results are PyTorch tensors if the program has
imported PyTorch, else NumPy arrays if NumPy is installed, else :class:`flambeau.Tensor`.
"""

import os

from . import _native
from ._compile import Program, compile
from ._language import LLM, Ranked, Text, TextStream
from ._native import CompileError, Error, ExecutionError, InputError, LoadError, Tensor, __version__
from ._serve import Server, serve
from ._speech import Segment, Transcriber, Transcript, Word

# A wheel for macOS brings interfaces to MLX, so that no compiler is needed.
_native.interfaces_in(os.path.join(os.path.dirname(__file__), "mlx"))

__all__ = [
    "LLM",
    "CompileError",
    "Error",
    "ExecutionError",
    "InputError",
    "LoadError",
    "Program",
    "Ranked",
    "Segment",
    "Server",
    "Tensor",
    "Text",
    "TextStream",
    "Transcriber",
    "Transcript",
    "Word",
    "__version__",
    "compile",
    "serve",
]
