"""Conversion of programs in ExecuTorch's edge dialect to archives of ``torch.export``."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, TensorArgument

from .._archive import calls

#: Operators of the edge dialect that state the order of axes in memory, and those of PyTorch.
_DIM_ORDER = {
    "dim_order_ops::_to_dim_order_copy": torch.ops.aten._to_copy.default,
    "dim_order_ops::_clone_dim_order": torch.ops.aten.clone.default,
    "dim_order_ops::_empty_dim_order": torch.ops.aten.empty.memory_format,
}

#: Weights up to this many bytes are always in the archive, for the compiler reads some.
_SMALL = 1 << 12


@contextmanager
def archive(program: torch.export.ExportedProgram, *, with_weights: bool) -> Iterator[str]:
    """Writes a program in the edge or ATen dialect to a temporary archive, and yields its path.

    Without weights, the archive states only their shapes. Calls of delegates become inputs.
    """
    plain = _plain(program, with_weights)
    with tempfile.TemporaryDirectory(prefix="flambeau-") as folder:
        path = os.path.join(folder, "program.pt2")
        torch.export.save(plain, path)
        yield path


def _plain(program: torch.export.ExportedProgram, with_weights: bool) -> torch.export.ExportedProgram:
    root = _plain_module(program.graph_module)
    signature = program.graph_signature
    added = [InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None) for node in _cut(root.graph)]
    root.recompile()
    specs = ExportGraphSignature([*signature.input_specs, *added], list(signature.output_specs))
    inputs = sum(spec.kind == InputKind.USER_INPUT for spec in specs.input_specs)
    state, constants = program.state_dict, program.constants
    if not with_weights:
        state, constants = _shapes(program)
    return torch.export.ExportedProgram(
        root=root,
        graph=root.graph,
        graph_signature=specs,
        state_dict=state,
        range_constraints=copy.deepcopy(program.range_constraints),
        module_call_graph=calls(inputs, len(specs.output_specs)),
        constants=constants,
    )


def _shapes(program: torch.export.ExportedProgram) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fake tensors in the places of weights and constants."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    fakes = {spec.target: values[spec.arg.name] for spec in program.graph_signature.input_specs if spec.target is not None}

    def shape(name: str, weight: Any) -> Any:
        fake = fakes.get(name)
        if not isinstance(fake, torch.Tensor) or not isinstance(weight, torch.Tensor) or weight.nbytes <= _SMALL:
            return weight
        return torch.nn.Parameter(fake, requires_grad=False) if isinstance(weight, torch.nn.Parameter) else fake

    state = {name: shape(name, weight) for name, weight in program.state_dict.items()}
    return state, {name: shape(name, constant) for name, constant in program.constants.items()}


def _plain_module(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy of a graph with PyTorch's operators, and of the graphs that its control flow runs."""
    graph = copy.deepcopy(module.graph)
    for node, original in zip(graph.nodes, module.graph.nodes):
        # The copy renames some.
        node.name = original.name
        if node.op == "call_function":
            _plain_call(node)
        node.meta = {key: value for key, value in node.meta.items() if key in ("val", "stack_trace")}
    attributes = {node.target: getattr(module, node.target) for node in graph.nodes if node.op == "get_attr"}
    for name, value in attributes.items():
        if isinstance(value, torch.fx.GraphModule):
            attributes[name] = _plain_module(value)
    return torch.fx.GraphModule(attributes, graph)


def _plain_call(node: torch.fx.Node) -> None:
    operator = getattr(node.target, "_op", None)
    if not isinstance(operator, torch._ops.OpOverload):
        return
    node.target = _DIM_ORDER.get(operator.name().split(".")[0], operator)
    if node.target is operator:
        return
    options = dict(node.kwargs)
    order = options.pop("dim_order", None)
    is_last = order is not None and list(order) in ([0, 2, 3, 1], [0, 2, 3, 4, 1])
    if is_last:
        options["memory_format"] = torch.channels_last if len(order) == 4 else torch.channels_last_3d
    node.kwargs = options


def _cut(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """Replaces the results of delegate calls with inputs, which follow the other inputs."""
    added: list[torch.fx.Node] = []
    for node in list(graph.nodes):
        if not is_delegate_call(node):
            continue
        users = [user for user in node.users if user.op == "call_function" and getattr(user.target, "__name__", "") == "getitem"]
        last = [n for n in graph.nodes if n.op == "placeholder"][-1:]
        with graph.inserting_after(*last) if last else graph.inserting_before(next(iter(graph.nodes))):
            for user in reversed(users):
                new = graph.placeholder(f"delegated_{user.name}")
                new.meta = dict(user.meta)
                user.replace_all_uses_with(new)
                name = user.name
                graph.erase_node(user)
                # The signature names outputs.
                new.name = name
                added.append(new)
        graph.erase_node(node)
    return [node for node in graph.nodes if node in set(added)]


def is_delegate_call(node: torch.fx.Node) -> bool:
    """Whether the node calls what a partitioner has lowered."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "executorch_call_delegate"
