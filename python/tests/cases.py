"""Conformance cases: folders with a program, inputs and PyTorch's outputs."""

import json
import struct
from pathlib import Path

import numpy as np

import flambeau

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "crates" / "testcases" / "cases"
CHECKPOINTS = ROOT / "crates" / "testcases" / "checkpoints"
DATA = ROOT / "crates" / "flambeau" / "examples" / "data"

#: Element type codes of the format: name, and the NumPy type of the bytes.
_TYPES = [
    ("float32", np.float32),
    ("float16", np.float16),
    ("int32", np.int32),
    ("int64", np.int64),
    ("bfloat16", np.uint16),
    ("bool", np.bool_),
    ("uint8", np.uint8),
]


def widened(words):
    """Converts bits of bfloat16 to float32 values."""
    return (words.astype(np.uint32) << 16).view(np.float32)


def read(path):
    """Reads the tensors of a file as pairs of type name and array; bfloat16 arrays hold the bits as
    uint16.
    """
    data = Path(path).read_bytes()
    (count,), at = struct.unpack_from("<I", data), 4
    tensors = []
    for _ in range(count):
        number, rank = struct.unpack_from("<II", data, at)
        shape = struct.unpack_from(f"<{rank}i", data, at + 8)
        at += 8 + 4 * rank
        name, dtype = _TYPES[number]
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        tensors.append((name, np.frombuffer(data[at : at + size], dtype).reshape(shape)))
        at += size
    return tensors


def argument(name, array):
    """Creates an input for a method; bfloat16 uses ``flambeau.Tensor``, which needs no other
    package.
    """
    if name == "bfloat16":
        return flambeau.Tensor(widened(array), "bfloat16")
    return array


def floats(name, array):
    """Float values of an expected output."""
    return widened(array) if name == "bfloat16" else array


def values(output):
    """Float values of an output from any library."""
    if isinstance(output, flambeau.Tensor):
        return np.array(output.tolist(), dtype=np.float32).reshape(output.shape)
    if type(output).__module__ == "torch":
        return (output.float() if output.is_floating_point() else output).numpy()
    return np.asarray(output)


def facts(folder):
    """The description of a case."""
    return json.loads((Path(folder) / "case.json").read_text())
