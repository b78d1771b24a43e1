"""The backend of ``torch.compile(model, backend="flambeau")``.

Each graph captured by Dynamo becomes a program with one method. Weights are constants of the
program; a call that finds a changed weight recompiles the graph. A graph with unsupported operators
runs in PyTorch, with a warning that lists them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._guards import TracingContext

from . import _native
from ._archive import archive
from ._flags import engine_flags, flags

#: Options of ``torch.compile(options=...)``, the same as for :func:`flambeau.compile`.
Options = dict[str, Any]

#: Number of recompilations for changed weights; after more changes, weights become inputs.
_MOST_CHANGES = 2

#: Bound of dynamic sizes: this multiple of the first size, but at least the second number.
_ROOM, _LEAST_ROOM = 4, 1024


def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Options | None = None, **_: Any) -> Callable[..., Any]:
    """Compiles a Dynamo graph. PyTorch computes gradients if they are needed."""
    chosen = dict(options or {})

    def compiler(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return _boxed(_Graph(graph, _constant_inputs(), chosen))

    def eager(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return _boxed(graph.forward)

    compiled: Callable[..., Any] = aot_autograd(fw_compiler=compiler, bw_compiler=eager, inference_compiler=compiler)(gm, example_inputs)
    return compiled


def _boxed(function: Callable[..., Any]) -> Callable[..., Any]:
    boxed: Callable[..., Any] = make_boxed_func(function)
    return boxed


def _constant_inputs() -> set[int]:
    """Indices of the parameters and buffers among the inputs, except those that the graph writes.
    """
    context = TracingContext.try_get()
    facts = getattr(context, "fw_metadata", None)
    if facts is None:
        return set()
    return set(facts.static_input_indices) - set(facts.mutated_inp_runtime_indices)


class _Graph:
    """A graph that is compiled at its first call, when its weights are known."""

    def __init__(self, graph: torch.fx.GraphModule, constants: set[int], options: Options) -> None:
        self._graph = graph
        self._constants = constants
        self._options = options
        self._changes = 0
        self._run: Callable[[list[Any]], list[Any]] | None = None
        self._weights: list[tuple[int, int, int]] = []

    def __call__(self, *args: Any) -> Any:
        if self._run is None or not self._is_current(args):
            self._compile(args)
        assert self._run is not None
        try:
            return self._run(list(args))
        except _native.InputError:
            # A size exceeds the planned bound.
            self._compile(args)
            return self._run(list(args))

    def _is_current(self, args: Sequence[Any]) -> bool:
        return all(args[i].data_ptr() == at and args[i]._version == version for i, at, version in self._weights)

    def _compile(self, args: Sequence[Any]) -> None:
        if self._run is not None and not self._is_current(args):
            self._changes += 1
        if self._changes > _MOST_CHANGES:
            self._constants = set()
        constants = {i for i in self._constants if i < len(args) and isinstance(args[i], torch.Tensor)}
        weights = {i: args[i] for i in constants}
        self._weights = [(i, weight.data_ptr(), weight._version) for i, weight in weights.items()]
        try:
            self._run = self._compiled(args, weights)
        except (_native.CompileError, _native.LoadError) as error:
            warnings.warn(f"flambeau: the graph runs in PyTorch: {error}", stacklevel=2)
            self._run = lambda inputs: self._graph.forward(*inputs)
            self._weights = []

    def _compiled(self, args: Sequence[Any], weights: dict[int, Any]) -> Callable[[list[Any]], list[Any]]:
        options = dict(self._options)
        engine = engine_flags(options.pop("engine", "cpu"), options.pop("threads", None), options.pop("device", None))
        try:
            source, taken, outputs = archive(self._graph, args, weights, (_ROOM, _LEAST_ROOM))
        except Exception as error:
            raise _native.CompileError(f"torch.export cannot save it: {error}") from error
        program, report = _native.compile([("forward", source)], quantize=flags(options), engine=engine)
        execute = program.load("forward").execute

        def run(inputs: list[Any]) -> list[Any]:
            results = iter(execute([inputs[i] for i in taken]))
            return [next(results) if constant is None else constant[0] for constant in outputs]

        return run
