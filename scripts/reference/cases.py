"""Writes case folders: a program as torch.export saves it, inputs, PyTorch's outputs, tolerances.

    folder/model.pt2 input.bin expected_output.bin case.json

`flambeau conformance FOLDER --from pt2` runs them. A .bin file holds a u32 count, then per tensor u32 dtype, u32 rank, i32 sizes
and the elements, all little-endian.
"""
import argparse
import copy
import io
import json
import struct
import warnings
from pathlib import Path

import torch
import torch.utils._pytree as pytree
from torch.export.graph_signature import ConstantArgument, InputKind

DTYPES = [torch.float32, torch.float16, torch.int32, torch.int64, torch.bfloat16, torch.bool, torch.uint8]

# Relative and absolute tolerance by the widest-grained element type that a case computes in.
TOLERANCE = {torch.float32: (1e-4, 1e-5), torch.float16: (2e-3, 1e-3), torch.bfloat16: (1.6e-2, 1e-2)}


def arguments(doc):
    """The command line of a script that writes cases: a folder, part of their names, and whether to decompose to core ATen."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--only", default="")
    parser.add_argument("--core", action="store_true")
    return parser.parse_args()


def reason(error):
    """Why a case could not be written, in one line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


class Unrepresentable(Exception):
    """A value that case folders have no room for."""


def as_tensor(value):
    """A leaf of a program's inputs or outputs as case folders hold it."""
    if isinstance(value, (bool, int)):
        return torch.tensor(value)
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float32)
    if not isinstance(value, torch.Tensor):
        raise Unrepresentable(type(value).__name__)
    if value.dtype in (torch.int8, torch.int16):
        raise Unrepresentable(str(value.dtype))
    return value.detach()


def tensor_bytes(tensor):
    if tensor.dtype not in DTYPES:
        raise Unrepresentable(str(tensor.dtype))
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    head = struct.pack("<II", DTYPES.index(tensor.dtype), tensor.dim()) + struct.pack(f"<{tensor.dim()}i", *tensor.shape)
    if tensor.numel() == 0:
        return head
    flat = tensor.flatten().clone()
    return head + flat.view(torch.uint8).numpy().tobytes()


def list_bytes(values):
    tensors = [as_tensor(v) for v in values if v is not None]
    return struct.pack("<I", len(tensors)) + b"".join(map(tensor_bytes, tensors))


def tolerance(values):
    """Tolerance for results that were computed from these leaves."""
    found = {v.dtype for v in values if isinstance(v, torch.Tensor)}
    for dtype in (torch.bfloat16, torch.float16):
        if dtype in found:
            return TOLERANCE[dtype]
    return TOLERANCE[torch.float32]


def program_bytes(exported):
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(exported, buffer)
    return buffer.getvalue()


def own(value):
    """A copy, so that writes to it stay there. Weights that cannot be copied are not written to."""
    try:
        return copy.deepcopy(value)
    except RuntimeError:
        return value


def leaves(exported, args, kwargs):
    """The inputs that a run takes: capture has fixed the others."""
    specs = [s.arg for s in exported.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
    values = pytree.tree_leaves((args, kwargs))
    return [v for v, arg in zip(values, specs) if not isinstance(arg, ConstantArgument)]


def export(module, args, kwargs=None, dynamic_shapes=None, strict=False, core=False):
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        exported = torch.export.export(
            module, args, kwargs or {}, dynamic_shapes=dynamic_shapes, strict=strict
        )
        return exported.run_decompositions() if core else exported


def write(root, name, module, args, kwargs=None, *, op=None, test=None, dynamic_shapes=None, strict=False, core=False,
          rtol=None, atol=None, expected=None, skip_comparison=False, kv_cache=None, user_inputs=None):
    """Exports `module` and writes the case `root/name`. `test` are the arguments to run with, if not those of the export."""
    kwargs = kwargs or {}
    module = module.eval()
    exported = export(own(module), own(args), own(kwargs), dynamic_shapes, strict, core)
    run_args, run_kwargs = own(test if test is not None else (args, kwargs))
    inputs = user_inputs if user_inputs is not None else leaves(exported, run_args, run_kwargs)
    packed = list_bytes(inputs)
    if expected is None:
        with torch.no_grad():
            expected = own(module)(*run_args, **run_kwargs)
    results = [v for v in pytree.tree_leaves(expected)]
    weights = list(module.parameters()) + list(module.buffers())
    default = tolerance(inputs + results + weights)
    folder = Path(root, name)
    outputs, program = list_bytes(results), program_bytes(exported)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.pt2").write_bytes(program)
    (folder / "input.bin").write_bytes(packed)
    (folder / "expected_output.bin").write_bytes(outputs)
    case = {
        "name": name, "op": op or name, "rtol": default[0] if rtol is None else rtol, "atol": default[1] if atol is None else atol,
        "skip_comparison": skip_comparison, "mlx_segments": None, "node_counts": None, "kv_cache": kv_cache,
        "dynamic": dynamic_shapes is not None,
    }
    (folder / "case.json").write_text(json.dumps(case, indent=1) + "\n")
    return exported
