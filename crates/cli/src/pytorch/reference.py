"""Runs an exported program in PyTorch on random inputs and records every value.

    python reference.py MODEL.pt2 OUT RUNS SEED

Writes OUT/run0.safetensors, OUT/run1.safetensors, ...: tensors `input.N` and `output.N`, numbered in order, and `value.NAME` for the
results of calls that no later call overwrites. Prints the version of PyTorch.
"""
import ctypes
import importlib
import json
import random
import sys
import zipfile
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

# Modules that register operators or tensor classes when they are imported, by the namespace that archives name.
EXTENSIONS = {b"torchvision": "torchvision", b"torchao": "torchao", b"quantized_decomposed": "torch.ao.quantization.fx._decomposed"}
# Weights are larger than this; programs and descriptions of tensor classes are smaller.
LARGEST_TEXT = 1 << 24
DTYPES = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.bool: "BOOL", torch.uint8: "U8",
    torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
}
ATTEMPTS = 200


def save(path, tensors):
    header, data, end = {}, [], 0
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [end, end + size]}
        data.append(ctypes.string_at(tensor.data_ptr(), size) if size else b"")
        end += size
    text = json.dumps(header).encode()
    Path(path).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


def as_tensor(value):
    """A tensor or number as a tensor; None for anything else."""
    if isinstance(value, torch.Tensor):
        return value if value.dtype in DTYPES and type(value) in (torch.Tensor, torch.nn.Parameter) else None
    return torch.tensor(value) if isinstance(value, (bool, int, float)) else None


class Recorder(torch.fx.Interpreter):
    """Keeps each call's tensor together with a copy of what it holds at that time."""

    def __init__(self, module):
        super().__init__(module)
        self.values = {}

    def run_node(self, node):
        result = super().run_node(node)
        tensor = as_tensor(result) if node.op == "call_function" and isinstance(result, torch.Tensor) else None
        if tensor is not None:
            self.values[node.name] = (tensor, tensor.detach().clone())
        return result

    def unwritten(self):
        """Values that still hold what their call gave."""
        return {name: then for name, (now, then) in self.values.items() if torch.equal(bits(now), bits(then))}


def bits(tensor):
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def symbols_of(placeholders):
    found = set()
    for value in placeholders:
        sizes = value.shape if isinstance(value, torch.Tensor) else [value]
        for size in sizes:
            if isinstance(size, torch.SymInt):
                found |= size.node.expr.free_symbols
    return sorted(found, key=str)


def draw_size(draw, bounds):
    """A size within bounds; small sizes are likely."""
    low = max(int(bounds.lower), 0) if bounds is not None else 1
    high = int(bounds.upper) if bounds is not None and bounds.upper.is_finite and bounds.upper < low + 64 else low + 64
    return draw.randint(low, draw.choice([min(high, low + 8), high]))


def draw_tensor(like, shape, sample):
    """Random values; in the range of the sample, where there is one that normal values would leave."""
    if like.dtype == torch.bool:
        return torch.rand(shape) < 0.5
    known = isinstance(sample, torch.Tensor) and sample.numel() > 0
    if like.dtype.is_floating_point:
        if known and bool((sample >= 0).all()):
            low, high = float(sample.min()), float(sample.max())
            return (torch.rand(shape) * (high - low) + low).to(like.dtype)
        return torch.randn(shape).to(like.dtype)
    low, high = (int(sample.min()), int(sample.max())) if known else (0, 1)
    return torch.randint(low, high + 1, shape).to(like.dtype)


def draw_inputs(program, draw, placeholders, samples):
    """Inputs whose sizes obey the program's conditions, or None."""
    bounds = {str(symbol): limits for symbol, limits in program.range_constraints.items()}
    sizes = {symbol: draw_size(draw, bounds.get(str(symbol))) for symbol in symbols_of(placeholders)}

    def known(size):
        return int(size.node.expr.subs(sizes)) if isinstance(size, torch.SymInt) else int(size)

    inputs = []
    for value, sample in zip(placeholders, samples):
        if isinstance(value, torch.Tensor):
            shape = [known(size) for size in value.shape]
            if min(shape, default=0) < 0:
                return None
            inputs.append(draw_tensor(value, shape, sample))
        else:
            inputs.append(known(value) if isinstance(value, torch.SymInt) else value)
    return inputs


def user_placeholders(program):
    names = set(program.graph_signature.user_inputs)
    nodes = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    return [node.meta.get("val") for node in nodes]


def obeys(module, inputs):
    """Whether the module's own checks accept the inputs."""
    guards = getattr(module, "_guards_fn", None)
    if guards is None:
        return True
    try:
        guards(*inputs)
    except (AssertionError, RuntimeError):
        return False
    return True


def record(module, inputs, path):
    recorder = Recorder(module)
    given = {f"input.{i:05}": as_tensor(value).clone() for i, value in enumerate(inputs) if as_tensor(value) is not None}
    with torch.no_grad():
        outputs = recorder.run(*inputs, enable_io_processing=False)
    outputs = [as_tensor(value) for value in pytree.tree_leaves(outputs)]
    results = {f"output.{i:05}": value for i, value in enumerate(v for v in outputs if v is not None)}
    values = {f"value.{name}": value for name, value in recorder.unwritten().items()}
    save(path, {**given, **results, **values})


def import_extensions(archive):
    with zipfile.ZipFile(archive) as entries:
        texts = [entries.read(entry) for entry in entries.infolist() if entry.file_size <= LARGEST_TEXT]
    for namespace, module in EXTENSIONS.items():
        if any(namespace in text for text in texts):
            importlib.import_module(module)


def main():
    archive, out, runs, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    import_extensions(archive)
    program = torch.export.load(archive)
    module, draw = program.module(), random.Random(seed)
    torch.manual_seed(seed)
    placeholders = user_placeholders(program)
    samples = pytree.tree_leaves(program.example_inputs) if program.example_inputs else [None] * len(placeholders)
    if len(samples) != len(placeholders):
        samples = [None] * len(placeholders)
    for run in range(runs):
        if run == 0 and any(sample is not None for sample in samples):
            inputs = [sample.clone() if isinstance(sample, torch.Tensor) else sample for sample in samples]
        else:
            drawn = (draw_inputs(program, draw, placeholders, samples) for _ in range(ATTEMPTS))
            inputs = next((inputs for inputs in drawn if inputs is not None and obeys(module, inputs)), None)
        if inputs is None:
            sys.exit(f"no sizes that the program's conditions accept were found in {ATTEMPTS} attempts")
        record(module, inputs, out / f"run{run}.safetensors")
    print(torch.__version__.split("+")[0])


main()
