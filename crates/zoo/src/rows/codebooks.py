#!/usr/bin/env python3
"""Writes `codebooks.bin`, the integers of GGUF's codebooks, and cases for their test. Needs gguf and numpy."""
import pathlib

import numpy as np
from gguf import GGMLQuantizationType as Type, quants

HERE = pathlib.Path(__file__).parent
# The codebook of IQ1_M is that of IQ1_S.
TABLES = [quants.IQ1_S, quants.IQ2_XXS, quants.IQ2_XS, quants.IQ2_S, quants.IQ3_XXS, quants.IQ3_S]
TYPES = [Type.IQ1_S, Type.IQ1_M, Type.IQ2_XXS, Type.IQ2_XS, Type.IQ2_S, Type.IQ3_XXS, Type.IQ3_S]
BLOCKS = 2


def table(kind):
    kind.init_grid()
    return kind.grid.reshape(kind.grid_shape).astype(np.int8).tobytes()


def case(kind, generator):
    size = dict(zip(TYPES, (50, 56, 66, 74, 82, 98, 110)))[kind]
    blocks = generator.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    scales = np.array([0.03, -1.7], np.float16).view(np.uint16)
    if kind == Type.IQ1_M:
        for i in range(4):
            high = (scales >> (4 * i) & 15).astype(np.uint8)
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | high << 4
    else:
        blocks[:, :2] = scales.view(np.uint8).reshape(BLOCKS, 2)
    values = quants.dequantize(blocks, kind).astype(np.float32)
    return bytes([BLOCKS]) + blocks.tobytes() + values.tobytes()


if __name__ == "__main__":
    (HERE / "codebooks.bin").write_bytes(b"".join(table(kind) for kind in TABLES))
    generator = np.random.default_rng(0)
    cases = b"".join(case(kind, generator) for kind in TYPES)
    (HERE.parents[1] / "tests" / "data" / "codebooks.bin").write_bytes(cases)
