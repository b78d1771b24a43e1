"""The interface of ``executorch.extension.pybindings.portable_lib``, for programs that use it
instead of ``executorch.runtime``.

Names with a leading underscore have it in ExecuTorch too.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from .. import _native
from ._metadata import MethodMeta, TensorInfo
from ._runtime import Runtime, Verification
from ._tools import write_etdump

__all__ = ["BundledModule", "ExecuTorchMethod", "ExecuTorchModule", "ExecuTorchProgram", "MethodMeta", "TensorInfo", "Verification"]


class ExecuTorchMethod:
    """A method with separate calls for inputs, run and outputs."""

    def __init__(self, program: _native.Program, name: str) -> None:
        self._program = program
        self._method = program.load(name)
        self._inputs: Any = ()
        self._outputs: list[Any] = []

    def set_inputs(self, inputs: Any) -> None:
        """Sets the inputs of the next run, which are checked now."""
        self._method.check(inputs)
        self._inputs = inputs

    def execute(self) -> None:
        """Runs the method on the inputs from ``set_inputs``."""
        self._outputs = self._method.execute(self._inputs)

    def get_outputs(self, clone_outputs: bool = True) -> list[Any]:
        """Outputs of the last run. They never share memory with the method, whatever
        ``clone_outputs``.
        """
        return self._outputs

    def call(self, inputs: Any = (), clone_outputs: bool = True) -> list[Any]:
        """Runs the method on inputs."""
        return self._method.execute(inputs)

    __call__ = call

    def method_meta(self) -> MethodMeta:
        """Metadata of inputs and outputs."""
        return MethodMeta(self._program, self._method.name)

    def get_attribute(self, name: str) -> Any:
        """A copy of the current value of a named tensor, such as a buffer."""
        return self._method.attribute(name)


class ExecuTorchProgram:
    """A program whose methods are loaded one by one."""

    def __init__(self, program: _native.Program, is_measured: bool = False, room: int = 0) -> None:
        self._program = _native.measured(program, room) if is_measured else program
        self._is_measured = is_measured
        self._names = program.method_names()

    def num_methods(self) -> int:
        """Number of methods."""
        return len(self._names)

    def get_method_name(self, method_index: int) -> str:
        """Name of a method by its index."""
        if not 0 <= method_index < len(self._names):
            raise _native.InputError(f"the program has {len(self._names)} methods, found index {method_index}")
        return self._names[method_index]

    def load_method(self, method_name: str) -> ExecuTorchMethod:
        """Loads a method; each call returns one with its own state."""
        return ExecuTorchMethod(self._program, method_name)

    def method_meta(self, method_name: str) -> MethodMeta:
        """Metadata of a method."""
        return MethodMeta(self._program, method_name)

    def has_etdump(self) -> bool:
        """Whether runs are recorded."""
        return self._is_measured

    def write_etdump_result_to_file(self, path: str, debug_buffer_path: str | None = None) -> None:
        """Writes the recorded runs, and the tensors of a program that was loaded with a debug buffer."""
        write_etdump(self._program, self._is_measured, path, debug_buffer_path)


class ExecuTorchModule:
    """A program that loads its methods and its data file at the first run."""

    def __init__(self, source: bytes | str, data: bytes | str | None, is_measured: bool = False, room: int = 0) -> None:
        self._source, self._data, self._is_measured, self._room = source, data, is_measured, room
        # Opened without the data file, which is read at the first run.
        self._program = self._open(None)
        self._methods: dict[str, _native.Method] = {}

    def _open(self, data: bytes | str | None) -> _native.Program:
        program = _native.Program(self._source, data=data, engine=Runtime.get()._engine)
        return _native.measured(program, self._room) if self._is_measured else program

    def _method(self, name: str) -> _native.Method:
        if not self._methods and self._data is not None:
            self._program = self._open(self._data)
        if name not in self._methods:
            self._methods[name] = self._program.load(name)
        return self._methods[name]

    def run_method(self, method_name: str, inputs: Any = (), clone_outputs: bool = True) -> list[Any]:
        """Runs a method on inputs."""
        return self._method(method_name).execute(inputs)

    def forward(self, inputs: Any = (), clone_outputs: bool = True) -> list[Any]:
        """Runs the method `forward`."""
        return self.run_method("forward", inputs)

    __call__ = forward

    def method_meta(self, method_name: str) -> MethodMeta:
        """Metadata of a method."""
        return MethodMeta(self._program, method_name)

    def method_names(self) -> list[str]:
        """Names of all methods."""
        return self._program.method_names()

    def has_etdump(self) -> bool:
        """Whether runs are recorded."""
        return self._is_measured

    def write_etdump_result_to_file(self, path: str, debug_buffer_path: str | None = None) -> None:
        """Writes the recorded runs, and the tensors of a program that was loaded with a debug buffer."""
        write_etdump(self._program, self._is_measured, path, debug_buffer_path)


class BundledModule:
    """A program bundled with test cases."""

    def __init__(self, bundle: bytes) -> None:
        if bundle[4:8] != b"BP08":
            raise _native.LoadError("expected a bundled program, which has `BP08` at byte 4")
        self._bundle = bytes(bundle)
        self.program = _bytes_of_field(bundle, 2)

    def verify_result_with_bundled_expected_output(
        self, method_name: str, testset_idx: int, rtol: float = 1e-5, atol: float = 1e-8
    ) -> None:
        """Runs a test case. RuntimeError if an output differs by more than ``atol + rtol * |expected|``."""
        _native.run_test_case(self._bundle, method_name, testset_idx, rtol, atol, Runtime.get()._engine)


def _bytes_of_field(table: bytes, field: int) -> bytes:
    """The bytes of a field of a FlatBuffers root table."""
    try:
        (root,) = struct.unpack_from("<I", table)
        (back,) = struct.unpack_from("<i", table, root)
        (offset,) = struct.unpack_from("<H", table, root - back + 4 + 2 * field)
        at = root + offset
        at += struct.unpack_from("<I", table, at)[0]
        (length,) = struct.unpack_from("<I", table, at)
    except struct.error as error:
        raise _native.LoadError(f"the bundled program is cut short: {error}") from None
    return table[at + 4 : at + 4 + length]


def _load_for_executorch(
    path: str, data_path: str | None = None, enable_etdump: bool = False, debug_buffer_size: int = 0, *_: Any, **__: Any
) -> ExecuTorchModule:
    return ExecuTorchModule(path, data_path, enable_etdump, debug_buffer_size)


def _load_for_executorch_from_buffer(
    buffer: bytes, data_map_buffer: bytes | None = None, enable_etdump: bool = False, debug_buffer_size: int = 0, *_: Any, **__: Any
) -> ExecuTorchModule:
    return ExecuTorchModule(buffer, data_map_buffer, enable_etdump, debug_buffer_size)


def _load_bundled_program_from_buffer(buffer: bytes, *_: Any, **__: Any) -> BundledModule:
    return BundledModule(buffer)


def _load_for_executorch_from_bundled_program(
    module: BundledModule, data: bytes | str | None = None, enable_etdump: bool = False, debug_buffer_size: int = 0, *_: Any, **__: Any
) -> ExecuTorchModule:
    return ExecuTorchModule(module.program, data, enable_etdump, debug_buffer_size)


def _load_program(
    path: str, enable_etdump: bool = False, debug_buffer_size: int = 0, *_: Any, data_path: str | None = None, **__: Any
) -> ExecuTorchProgram:
    return ExecuTorchProgram(_native.Program(path, data=data_path, engine=Runtime.get()._engine), enable_etdump, debug_buffer_size)


def _load_program_from_buffer(
    buffer: bytes, enable_etdump: bool = False, debug_buffer_size: int = 0, *_: Any, data_path: str | None = None, **__: Any
) -> ExecuTorchProgram:
    return ExecuTorchProgram(_native.Program(buffer, data=data_path, engine=Runtime.get()._engine), enable_etdump, debug_buffer_size)


def _get_registered_backend_names() -> Sequence[str]:
    return Runtime.get().backend_registry.registered_backend_names


def _is_available(backend_name: str) -> bool:
    return Runtime.get().backend_registry.is_available(backend_name)


def _get_operator_names() -> list[str]:
    return sorted(Runtime.get().operator_registry.operator_names)
