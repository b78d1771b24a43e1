"""Conversion of ATen graphs to archives of ``torch.export``."""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from torch.utils._pytree import tree_flatten

from ._rewrites import plain_attention, plain_strides, plain_sums, read_sizes

#: For each output of a graph, ``None`` if the program computes it, else a tuple with the constant
#: value.
Outputs = list["tuple[Any] | None"]


def archive(
    graph: torch.fx.GraphModule, args: Sequence[Any], weights: Mapping[int, torch.Tensor], room: tuple[int, int]
) -> tuple[bytes, list[int], Outputs]:
    """Returns the archive of a graph, the indices of the inputs that it takes, and its constant
    outputs.

    Inputs in ``weights`` become parameters; unused inputs are dropped. ``room`` bounds dynamic
    sizes: a multiple of the sizes in ``args``, and a minimum for the bound.
    """
    root = copy.deepcopy(graph)
    read_sizes(root.graph)
    plain_attention(root.graph)
    plain_sums(root.graph)
    plain_strides(root.graph)
    inputs, state, taken = _inputs(root, weights)
    held = _held_tensors(root, inputs)
    outputs, constants = _outputs(root)
    for node in root.graph.nodes:
        node.meta = {key: value for key, value in node.meta.items() if key in ("val", "stack_trace")}
    root.graph.lint()
    root.recompile()
    program = torch.export.ExportedProgram(
        root=root,
        graph=root.graph,
        graph_signature=ExportGraphSignature(inputs, outputs),
        state_dict=state,
        range_constraints=_ranges(graph, args, room),
        module_call_graph=calls(len(inputs) - len(state) - len(held), len(outputs)),
        constants=held,
    )
    file = io.BytesIO()
    torch.export.save(program, file)
    return file.getvalue(), taken, constants


def _inputs(root: torch.fx.GraphModule, weights: Mapping[int, torch.Tensor]) -> tuple[list[InputSpec], dict[str, Any], list[int]]:
    specs: list[InputSpec] = []
    state: dict[str, Any] = {}
    placeholders = dict(enumerate(node for node in root.graph.nodes if node.op == "placeholder"))
    # Unused inputs include sizes that occur only in shapes.
    for i in [i for i, node in placeholders.items() if not node.users]:
        root.graph.erase_node(placeholders.pop(i))
    # Parameters come first in an exported program.
    order = sorted(placeholders, key=lambda i: i not in weights)
    _reorder(root.graph, [placeholders[i] for i in order])
    for i in order:
        node = placeholders[i]
        value = node.meta.get("val")
        if i in weights:
            name = f"weight_{i}"
            state[name] = torch.nn.Parameter(weights[i].detach(), requires_grad=False)
            specs.append(InputSpec(InputKind.PARAMETER, TensorArgument(node.name), name))
        elif isinstance(value, torch.Tensor):
            specs.append(InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None))
        elif isinstance(value, torch.SymInt):
            specs.append(InputSpec(InputKind.USER_INPUT, SymIntArgument(node.name), None))
        else:
            specs.append(InputSpec(InputKind.USER_INPUT, ConstantArgument(node.name, value), None))
    return specs, state, [i for i in order if i not in weights]


def _held_tensors(root: torch.fx.GraphModule, specs: list[InputSpec]) -> dict[str, torch.Tensor]:
    """Turns the tensors that a graph holds into constant inputs, as ``torch.export`` does. Adds
    their specifications before all others.
    """
    held: dict[str, torch.Tensor] = {}
    for node in list(root.graph.nodes):
        value = getattr(root, node.target, None) if node.op == "get_attr" else None
        if not isinstance(value, torch.Tensor):
            continue
        with root.graph.inserting_before(next(iter(root.graph.nodes))):
            placeholder = root.graph.placeholder(f"held_{len(held)}")
        placeholder.meta["val"] = value
        node.replace_all_uses_with(placeholder)
        root.graph.erase_node(node)
        specs.insert(0, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(placeholder.name), placeholder.name))
        held[placeholder.name] = value.detach()
    return held


def _reorder(graph: torch.fx.Graph, placeholders: Sequence[torch.fx.Node]) -> None:
    """Moves placeholders to the start of the graph, in the given order."""
    start = next(iter(graph.nodes))
    for node in placeholders:
        if node is not start:
            start.prepend(node)
        else:
            start = node.next


def _outputs(root: torch.fx.GraphModule) -> tuple[list[OutputSpec], Outputs]:
    node = next(node for node in root.graph.nodes if node.op == "output")
    specs: list[OutputSpec] = []
    kept: list[torch.fx.Node] = []
    constants: Outputs = []
    for value in node.args[0]:
        if not isinstance(value, torch.fx.Node):
            constants.append((value,))
            continue
        constants.append(None)
        kept.append(value)
        is_size = isinstance(value.meta.get("val"), torch.SymInt)
        argument = SymIntArgument(value.name) if is_size else TensorArgument(value.name)
        specs.append(OutputSpec(OutputKind.USER_OUTPUT, argument, None))
    node.args = (tuple(kept),)
    return specs, constants


def _ranges(graph: torch.fx.GraphModule, args: Sequence[Any], room: tuple[int, int]) -> dict[Any, Any]:
    """Bounds of the symbols in a graph. Memory planning needs finite sizes."""
    from torch.utils._sympy.value_ranges import ValueRanges

    times, least = room
    sizes: dict[Any, int] = {}
    environment = None
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node, arg in zip(placeholders, args):
        value = node.meta.get("val")
        dims = zip(value.shape, arg.shape) if isinstance(value, torch.Tensor) else [(value, arg)]
        for dim, size in dims:
            if isinstance(dim, torch.SymInt):
                environment = dim.node.shape_env
                sizes[dim.node.expr] = max(sizes.get(dim.node.expr, 0), int(size))
    if environment is None:
        return {}
    ranges = {}
    for symbol, bounds in environment.var_to_range.items():
        # Symbols of other types are constants in the graph.
        if symbol.is_integer:
            least_size = int(bounds.lower) if bounds.lower.is_Integer else 0
            most = max(times * sizes.get(symbol, 0), least)
            ranges[symbol] = ValueRanges(least_size, min(int(bounds.upper), most) if bounds.upper.is_Integer else most)
    return ranges


def calls(inputs: int, outputs: int) -> list[Any]:
    from torch.export import ModuleCallEntry, ModuleCallSignature

    taken = tree_flatten((tuple(range(inputs)), {}))[1]
    given = tree_flatten(tuple(range(outputs)))[1]
    return [ModuleCallEntry("", ModuleCallSignature([], [], taken, given))]
