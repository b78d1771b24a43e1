"""Metadata of a file's methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from .. import _native

#: Tensor metadata of the native module: sizes, code of the element type, whether memory is planned,
#: size in bytes.
Info = tuple[Sequence[int], int, bool, int]

_SCALAR_TYPES = {
    0: "Byte",
    1: "Char",
    2: "Short",
    3: "Int",
    4: "Long",
    5: "Half",
    6: "Float",
    7: "Double",
    9: "ComplexFloat",
    11: "Bool",
    15: "BFloat16",
    23: "Float8_e5m2",
    24: "Float8_e4m3fn",
    27: "UInt16",
    28: "UInt32",
    29: "UInt64",
    44: "Float8_e8m0fnu",
}


class TensorInfo:
    """Sizes and element type of a tensor."""

    def __init__(self, info: Info) -> None:
        sizes, self._dtype, self._is_memory_planned, self._nbytes = info
        self._sizes = tuple(sizes)

    def sizes(self) -> tuple[int, ...]:
        """Sizes, outermost first; dynamic sizes are upper bounds."""
        return self._sizes

    def dtype(self) -> int:
        """Code of the element type, as in ExecuTorch's ``ScalarType``."""
        return self._dtype

    def is_memory_planned(self) -> bool:
        """Whether the program plans memory for the tensor."""
        return self._is_memory_planned

    def nbytes(self) -> int:
        """Size of all elements in bytes."""
        return self._nbytes

    def __repr__(self) -> str:
        dtype = _SCALAR_TYPES.get(self._dtype, str(self._dtype))
        planned = self._is_memory_planned
        return f"TensorInfo(sizes={list(self._sizes)}, dtype={dtype}, is_memory_planned={planned}, nbytes={self._nbytes})"


class MethodMeta:
    """Inputs, outputs and attributes of a method."""

    def __init__(self, program: _native.Program, name: str) -> None:
        self._name = name
        self._inputs = program.input_info(name)
        self._outputs = program.output_info(name)
        self._attributes = program.attribute_info(name)
        self._backends = program.backends(name)

    def name(self) -> str:
        """The method's name."""
        return self._name

    def num_inputs(self) -> int:
        """Number of inputs."""
        return len(self._inputs)

    def num_outputs(self) -> int:
        """Number of outputs."""
        return len(self._outputs)

    def num_attributes(self) -> int:
        """Number of named tensors in the file, such as buffers."""
        return len(self._attributes)

    def backends(self) -> list[str]:
        """Names of the delegates that the method calls."""
        return list(self._backends)

    def input_tensor_meta(self, index: int) -> TensorInfo:
        """Metadata of an input. IndexError if the index is out of range, RuntimeError if the input
        is not a tensor.
        """
        return self._tensor("input", self._inputs, index)

    def output_tensor_meta(self, index: int) -> TensorInfo:
        """Metadata of an output; errors as for inputs."""
        return self._tensor("output", self._outputs, index)

    def attribute_tensor_meta(self, index: int) -> TensorInfo:
        """Metadata of a named tensor; errors as for inputs."""
        return self._tensor("attribute", self._attributes, index)

    def _tensor(self, kind: str, infos: Sequence[Optional[Info]], index: int) -> TensorInfo:
        if not 0 <= index < len(infos):
            raise IndexError(f"method {self._name} has {len(infos)} {kind}s, found index {index}")
        info = infos[index]
        if info is None:
            raise _native.InputError(f"{kind} {index} of method {self._name} is no tensor")
        return TensorInfo(info)

    def __repr__(self) -> str:
        def shown(infos: Sequence[Optional[Info]]) -> list[str]:
            return [repr(TensorInfo(info)) for info in infos if info is not None]

        return (
            f"MethodMeta(name='{self._name}', num_inputs={self.num_inputs()}, input_tensor_meta={shown(self._inputs)}, "
            f"num_outputs={self.num_outputs()}, output_tensor_meta={shown(self._outputs)})"
        )
