"""Rewrites of the ATen graphs that AOTAutograd traces, into forms that the compiler knows."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten = torch.ops.aten

#: Attention for one device. The first result is the attention's.
_ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default


def read_sizes(graph: torch.fx.Graph) -> None:
    """Replaces sizes among the inputs by the sizes of input tensors.

    A compiled program fixes an integer that only shapes use.
    """
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    places: dict[Any, tuple[torch.fx.Node, int]] = {}
    for node in placeholders:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            for dim, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    places.setdefault(size.node.expr, (node, dim))
    with graph.inserting_before(next(node for node in graph.nodes if node.op != "placeholder")):
        for node in placeholders:
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) and node.users and value.node.expr in places:
                size = graph.call_function(aten.sym_size.int, places[value.node.expr])
                size.meta["val"] = value
                node.replace_all_uses_with(size)


def plain_attention(graph: torch.fx.Graph) -> None:
    """Replaces the CPU's attention by ``scaled_dot_product_attention``.

    A call stays if its second result, the logarithms of the sums, is used.
    """
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not _ATTENTION:
            continue
        results = list(node.users)
        if any(user.target is not operator.getitem or (user.args[1] != 0 and user.users) for user in results):
            continue
        given = {**dict(zip(("query", "key", "value", "dropout_p", "is_causal"), node.args)), **node.kwargs}
        with graph.inserting_before(node):
            attention = graph.call_function(aten.scaled_dot_product_attention.default, kwargs=given)
        attention.meta = dict(node.meta, val=node.meta["val"][0])
        for user in results:
            if user.args[1] == 0:
                user.replace_all_uses_with(attention)
            graph.erase_node(user)
        graph.erase_node(node)


def plain_strides(graph: torch.fx.Graph) -> None:
    """Removes new strides of axes of size 1, which change no element."""
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not aten.as_strided.default or len(node.args) != 3 or node.kwargs:
            continue
        known = node.args[0].meta["val"]
        sizes, strides = (_values(argument) for argument in node.args[1:])
        if len(sizes) != known.dim():
            continue
        dims = list(zip(sizes, strides, known.shape, known.stride()))
        if all(_equal(size, old) and (_equal(size, 1) or _equal(step, before)) for size, step, old, before in dims):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _values(argument: Any) -> list[Any]:
    return [one.meta["val"] if isinstance(one, torch.fx.Node) else one for one in argument]


def _equal(a: Any, b: Any) -> bool:
    equal: bool = statically_known_true(a == b)
    return equal


def plain_sums(graph: torch.fx.Graph) -> None:
    """Replaces sums of many sizes, which archives cannot hold, by sums of two."""
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not torch.sym_sum:
            continue
        terms = node.args[0] if len(node.args) == 1 else node.args
        total, *others = terms
        with graph.inserting_before(node):
            for term in others:
                known = _values((total, term))
                total = graph.call_function(operator.add, (total, term))
                total.meta["val"] = known[0] + known[1]
        node.replace_all_uses_with(total)
        graph.erase_node(node)
