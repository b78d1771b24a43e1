"""Programs and loaded methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _native
from ._metadata import MethodMeta


class Method:
    """A loaded method. Threads may share it and run it one at a time."""

    def __init__(self, program: _native.Program, name: str) -> None:
        self._program = program
        self._method = program.load(name)
        #: The bound native method, which saves a call.
        self._execute = self._method.execute

    def execute(self, inputs: Sequence[Any]) -> list[Any]:
        """Runs the method on a sequence of inputs, or on a single tensor.

        Inputs are PyTorch tensors, arrays of any library with DLPack support, nested lists of
        numbers, and plain values. A stateless method reads contiguous inputs without copying them.
        Outputs share no memory with the method.
        """
        return self._execute(inputs)

    def reset(self) -> None:
        """Resets buffers to their initial contents."""
        self._method.reset()

    @property
    def metadata(self) -> MethodMeta:
        """Metadata of inputs and outputs."""
        return MethodMeta(self._program, self._method.name)

    def __repr__(self) -> str:
        def shown(specs: list[tuple[str | None, str]]) -> str:
            return ", ".join(f"{name}: {kind}" if name else kind for name, kind in specs)

        return f"<Method {self._method.name}({shown(self._method.inputs())}) -> ({shown(self._method.outputs())})>"


class Program:
    """A program with its methods."""

    def __init__(self, program: _native.Program) -> None:
        self._program = program
        self._methods: dict[str, Method | None] = dict.fromkeys(program.method_names())

    @property
    def method_names(self) -> set[str]:
        """Names of all methods."""
        return set(self._methods)

    def load_method(self, name: str) -> Method:
        """Returns a method by name, loaded once. KeyError if there is none."""
        method = self._methods[name]
        if method is None:
            method = self._methods[name] = Method(self._program, name)
        return method

    def metadata(self, method_name: str) -> MethodMeta:
        """Metadata of a method; does not load it."""
        return MethodMeta(self._program, method_name)

    def write_etdump_result_to_file(self, etdump_path: str, debug_buffer_path: str) -> None:
        """Always raises: Flambeau records no ETDump. Part of ExecuTorch's interface."""
        raise _native.ExecutionError("No etdump found")

    def __repr__(self) -> str:
        return f"<Program with {', '.join(self._program.method_names())}>"
