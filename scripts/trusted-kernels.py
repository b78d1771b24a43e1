#!/usr/bin/env python3
"""Prints crates/mlx/src/ops/metal/trusted.txt: the digest and the name of every Metal kernel that an installed ExecuTorch emits.

A digest is SHA-256 over name, header and source, each after its length in bytes as eight little-endian bytes.
Usage: scripts/trusted-kernels.py > crates/mlx/src/ops/metal/trusted.txt
"""

import ast
import hashlib
import importlib
import inspect
import textwrap

PACKAGE = "executorch.backends.mlx.custom_kernel_ops"


def digest(name, header, source):
    whole = hashlib.sha256()
    for part in (name, header, source):
        data = part.encode()
        whole.update(len(data).to_bytes(8, "little") + data)
    return whole.hexdigest()


def gated_delta_source():
    """The text that the handler of the gated delta rule assigns to `source`."""
    module = importlib.import_module(f"{PACKAGE}.gated_delta_rule")
    tree = ast.parse(textwrap.dedent(inspect.getsource(module)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "source":
            return ast.literal_eval(node.value)
    raise SystemExit("the gated delta rule assigns no source")


def kernels():
    yield "gated_delta_step", "", gated_delta_source()
    for name in ("tq_norm", "tq4_compress", "tq_dequant"):
        module = importlib.import_module(f"{PACKAGE}.{name}")
        yield name, getattr(module, f"_{name.upper()}_HEADER", ""), getattr(module, f"_{name.upper()}_SOURCE")
    for block in ("q4k", "q5k", "q6k"):
        linear = importlib.import_module(f"{PACKAGE}.gguf.{block}.linear")
        embedding = importlib.import_module(f"{PACKAGE}.gguf.{block}.embedding")
        header = getattr(linear, f"_{block.upper()}_HEADER")
        for kind in ("matvec", "matmul"):
            for has_bias in (False, True):
                yield f"gguf_{block}_{kind}", header, getattr(linear, f"_{block}_{kind}_source")(has_bias)
        yield f"gguf_{block}_embedding", header, getattr(embedding, f"_{block.upper()}_EMBED_SOURCE")


for kernel in kernels():
    print(digest(*kernel), kernel[0])
