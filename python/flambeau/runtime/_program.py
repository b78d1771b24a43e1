"""Programs and methods that run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _native
from ._metadata import MethodMeta


class Method:
    """A method that is ready to run. Threads may share it, and take turns."""

    def __init__(self, program: _native.Program, name: str) -> None:
        self._program = program
        self._method = program.load(name)
        #: As a method of the native object, which saves a call.
        self._execute = self._method.execute

    def execute(self, inputs: Sequence[Any]) -> list[Any]:
        """Runs the method on a sequence of inputs, or on one tensor.

        Inputs are tensors of PyTorch's, arrays of any library that knows DLPack, nested lists of numbers, and plain values.
        Contiguous ones are read where they lie if the method keeps no state. Outputs are the caller's own.
        """
        return self._execute(inputs)

    def reset(self) -> None:
        """Sets buffers back to what they hold after loading."""
        self._method.reset()

    @property
    def metadata(self) -> MethodMeta:
        """What the file says of inputs and outputs."""
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
        """A method by its name, which is loaded once. KeyError if there is none."""
        method = self._methods[name]
        if method is None:
            method = self._methods[name] = Method(self._program, name)
        return method

    def metadata(self, method_name: str) -> MethodMeta:
        """What the file says of a method; nothing is loaded for it."""
        return MethodMeta(self._program, method_name)

    def write_etdump_result_to_file(self, etdump_path: str, debug_buffer_path: str) -> None:
        """Of ExecuTorch's interface. No program here records an ETDump."""
        raise _native.ExecutionError("No etdump found")

    def __repr__(self) -> str:
        return f"<Program with {', '.join(self._program.method_names())}>"
