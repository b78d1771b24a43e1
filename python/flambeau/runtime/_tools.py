"""Measurements and verification of programs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from .. import _native


@dataclass(frozen=True)
class Step:
    """A measured step: nodes of a delegate that ran together, or a call outside of delegates."""

    #: Method that ran.
    method: str
    #: Number of the run.
    run: int
    #: Number of the method's instruction.
    instruction: int
    #: Number of the delegate, ``None`` outside of delegates.
    delegate: int | None
    #: Position of the step's last node in the delegate's main chain.
    node: int | None
    #: Kinds of the nodes, or the name of the kernel.
    name: str
    #: Nanoseconds of the process's clock at the start.
    start: int
    #: Nanoseconds that the step took.
    time: int
    #: Bytes of operands and results, each counted once.
    bytes: int
    #: Floating-point operations of products.
    flops: int


class Profile:
    """Measured runs of a method."""

    def __init__(self, program: _native.Program, outputs: list[Any], steps: list[Step]) -> None:
        self._program = program
        #: Outputs of the last run.
        self.outputs = outputs
        #: All steps, in order.
        self.steps = steps

    def totals(self) -> list[tuple[str, int, int]]:
        """Name, number of calls and nanoseconds of each kind of step, slowest first."""
        sums: dict[str, tuple[int, int]] = {}
        for step in self.steps:
            calls, time = sums.get(step.name, (0, 0))
            sums[step.name] = (calls + 1, time + step.time)
        rows = [(name, calls, time) for name, (calls, time) in sums.items()]
        return sorted(rows, key=lambda row: (-row[2], row[0]))

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a trace that Perfetto and chrome://tracing open."""
        _write(path, _native.trace(self._program))

    def write_etdump(self, path: str | os.PathLike[str]) -> None:
        """Writes an ETDump, which the Inspector of ExecuTorch reads."""
        _write(path, _native.etdump(self._program)[0])

    def __repr__(self) -> str:
        return f"<Profile of {len(self.steps)} steps>"


@dataclass(frozen=True)
class Difference:
    """A node, or nodes that ran together, whose result differs."""

    #: Number of the delegate.
    delegate: int
    #: Positions of the first and the last node in the delegate's main chain.
    first_node: int
    last_node: int
    #: The last node as text.
    node: str
    #: Names of the weights that the last node reads.
    weights: list[str]
    #: Type and shape of the expected result.
    expected: str
    #: The mismatch in words.
    what: str
    #: ``absolute``, ``ulps``, ``index``, ``actual`` and ``expected`` of the largest error.
    error: dict[str, float] | None


@dataclass(frozen=True)
class Verdict:
    """Outcome of a verification. It is true if all results agree."""

    #: Whether all results agree.
    agrees: bool
    #: Number of runs.
    runs: int
    #: Number of compared nodes.
    nodes: int
    #: Differing nodes in the order of the runs, the first ones if there are many.
    differences: list[Difference] = field(default_factory=list)
    #: Differing outputs: ``run``, ``output`` and ``what``.
    outputs: list[dict[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.agrees


def verdict_of(found: dict[str, Any]) -> Verdict:
    """The verdict of the native module's JSON."""
    names = ("delegate", "first_node", "last_node", "node", "weights", "expected", "what", "error")
    differences = [Difference(**{name: one[name] for name in names}) for one in found["differences"]]
    return Verdict(found["agrees"], found["runs"], found["nodes"], differences, found["outputs"])


def write_etdump(program: _native.Program, is_measured: bool, etdump: str | os.PathLike[str], debug: str | os.PathLike[str] | None) -> None:
    """Writes what a program recorded, as ExecuTorch's runtime does it."""
    if not is_measured:
        raise _native.ExecutionError("No etdump found")
    events, buffer = _native.etdump(program)
    _write(etdump, events)
    if debug is not None:
        _write(debug, buffer)


def _write(path: str | os.PathLike[str], contents: bytes) -> None:
    with open(path, "wb") as file:
        file.write(contents)
