"""The partitioner, and the backend that compiles its partitions."""

from __future__ import annotations

import contextlib
import hashlib
import json
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import BackendDetails, CompileSpec, PreprocessResult
from executorch.exir.backend.canonical_partitioners.pattern_op_partitioner import generate_partitions_from_list_of_nodes
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data, tag_mutated_buffer
from torch.export.exported_program import ExportedProgram
from torch.fx.passes.operator_support import OperatorSupportBase

from .. import _native, ops  # noqa: F401 (defines the operators `mlx::`)
from .._flags import Value, engine_flags, flags
from ._edge import archive, is_delegate_call

#: The key of the options among the specifications of a delegate.
OPTIONS = "flambeau"

#: Calls that give sizes.
_SIZES = (torch.ops.aten.sym_size.int,)


class _BackendName(str):
    """The name of :class:`FlambeauBackend` for ExecuTorch's search of a class, whose text is the
    backend's name in a program.

    ExecuTorch writes the name by which it finds the class into the program. The text must be
    ``MLXBackend``, for ExecuTorch's own class of this name may be there too.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other == FlambeauBackend.__name__ if type(other) is str else self is other or type(other) is _BackendName

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(FlambeauBackend.__name__)


class FlambeauBackend(BackendDetails):  # type: ignore[misc]
    """Compiles partitions to delegates of the backend ``MLXBackend``."""

    @classmethod
    def copy_exported_program_for_preprocess(cls, edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> ExportedProgram:
        """Returns the program itself, for compilation writes only to copies of its graph."""
        return edge_program

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Compiles one partition."""
        (result,) = FlambeauBackend.preprocess_multimethod({"forward": [edge_program]}, {"forward": [compile_specs]})["forward"]
        return result

    @classmethod
    def preprocess_multimethod(
        cls, edge_programs: Mapping[str, Sequence[ExportedProgram]], compile_specs: Mapping[str, Sequence[list[CompileSpec]]]
    ) -> dict[str, list[PreprocessResult]]:
        """Compiles the partitions of all methods together, so that they share weights and state."""
        names = [(method, i) for method, parts in edge_programs.items() for i in range(len(parts))]
        specs = [compile_specs[method][i] for method, i in names]
        with contextlib.ExitStack() as stack:
            programs = [edge_programs[method][i] for method, i in names]
            archives = [stack.enter_context(archive(program, with_weights=True)) for program in programs]
            delegates = _native.delegates(
                [(f"{method}, partition {i}", path) for (method, i), path in zip(names, archives)],
                prefix=_prefix(names, programs),
                quantize=_options(specs),
                engine=engine_flags("cpu", None),
            )
        results: dict[str, list[PreprocessResult]] = {method: [] for method in edge_programs}
        for (method, _), (payload, _, named) in zip(names, delegates):
            store = NamedDataStore()
            for key, data in named:
                store.add_named_data(key, data, alignment=16)
            results[method].append(
                PreprocessResult(processed_bytes=payload, data_store_output=store.get_named_data_store_output())
            )
        return results


def _prefix(names: Sequence[tuple[str, int]], programs: Sequence[ExportedProgram]) -> str:
    """A text that differs between calls of the backend for one program."""
    digest = hashlib.sha256(repr(names).encode())
    for program in programs:
        digest.update(str(program.graph).encode())
        digest.update(repr(program.graph_signature).encode())
    return digest.hexdigest()[:8] + "-"


def _options(specs: Sequence[list[CompileSpec]]) -> list[str]:
    """The flags of quantization, which are the same for all partitions."""
    found = {bytes(spec.value) for one in specs for spec in one if spec.key == OPTIONS}
    if len(found) > 1:
        raise _native.CompileError("the methods of one program have partitioners with different options")
    result: list[str] = json.loads(found.pop()) if found else []
    return result


class _Support(OperatorSupportBase):  # type: ignore[misc]
    """The calls that the compiler expresses in nodes."""

    def __init__(self, supported: set[str]) -> None:
        self._supported = supported

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        return node.op == "call_function" and node.name in self._supported


class FlambeauPartitioner(Partitioner):  # type: ignore[misc]
    """Takes the place of ``MLXPartitioner`` in ``to_edge_transform_and_lower(partitioner=[...])``.

    It lowers to the backend ``MLXBackend`` with Flambeau's compiler, on every platform. ``qlinear``,
    ``qembedding``, ``group_size`` and ``recipe`` quantize weights like the same flags of ``flambeau
    compile``. ``compile_specs`` are written into the program; MLX reads none.
    """

    def __init__(
        self,
        compile_specs: list[CompileSpec] | None = None,
        *,
        qlinear: str | None = None,
        qembedding: str | None = None,
        group_size: int | None = None,
        recipe: Value = None,
    ) -> None:
        options = flags({"qlinear": qlinear, "qembedding": qembedding, "group_size": group_size, "recipe": recipe})
        self.compile_specs = [*(compile_specs or [])]
        if options:
            self.compile_specs.append(CompileSpec(OPTIONS, json.dumps(options).encode()))
        self.delegation_spec = DelegationSpec(_BackendName("MLXBackend"), self.compile_specs)
        #: Calls that stay outside of delegates, with the reasons, of the last program.
        self.refused: dict[str, str] = {}
        # ExecuTorch asks several times for each program.
        self._kept: tuple[weakref.ReferenceType[ExportedProgram], list[torch._ops.OpOverload]] | None = None

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[torch.fx.Node], bool] | None]:
        """The operators whose calls are all expressed in nodes."""
        if any(is_delegate_call(node) for node in ep.graph.nodes):
            return [], None
        if self._kept is None or self._kept[0]() is not ep:
            supported, _ = _supported(ep)
            called: dict[torch._ops.OpOverload, bool] = {}
            for node in ep.graph.nodes:
                if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
                    called[node.target] = called.get(node.target, True) and node.name in supported
            self._kept = weakref.ref(ep), [target for target, is_kept in called.items() if is_kept]
        return self._kept[1], None

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tags the calls that become delegates."""
        supported, self.refused = _supported(exported_program)
        tags: dict[str, DelegationSpec] = {}
        for part in generate_partitions_from_list_of_nodes(exported_program.graph_module, op_support=_Support(supported)):
            tag = f"flambeau_{part.id}"
            tags[tag] = self.delegation_spec
            for node in _with_operands(part.nodes):
                node.meta["delegation_tag"] = tag
        tag_constant_data(exported_program)
        tag_mutated_buffer(exported_program)
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)


def _with_operands(nodes: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """The nodes, with the graphs that they run and the nodes that give sizes to them. Sizes that
    cross into a delegate would lose their symbols.
    """
    inside = dict.fromkeys(nodes)
    for node in nodes:
        for operand in node.all_input_nodes:
            if operand.op == "get_attr" or getattr(operand.target, "_op", operand.target) in _SIZES:
                inside[operand] = None
    return list(inside)


def _supported(program: ExportedProgram) -> tuple[set[str], dict[str, str]]:
    """Names of the calls that become nodes, and the reasons why others do not."""
    with archive(program, with_weights=False) as path:
        report = json.loads(_native.dry_run([("forward", path)]))
    supported, refused = set(), {}
    for call in report["methods"][0]["calls"]:
        if "nodes" in call:
            supported.add(call["name"])
        else:
            refused[call["name"]] = call.get("refused") or f"the kernel {call['kernel']} computes it"
    # Calls in graphs of control flow may have the names of others.
    supported -= refused.keys()
    for node in program.graph.nodes:
        if node.target is operator.getitem and node.args[0].name in supported:
            supported.add(node.name)
    return supported, refused
