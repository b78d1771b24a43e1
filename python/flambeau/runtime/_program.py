"""Programs and loaded methods."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .. import _native
from ._metadata import MethodMeta
from ._tools import Profile, Step, Verdict, verdict_of, write_etdump


class Method:
    """A loaded method. Threads may share it and run it one at a time."""

    def __init__(self, program: _native.Program, name: str) -> None:
        self._program = program
        self._method = program.load(name)
        #: The bound native method, which saves a call.
        self._execute = self._method.execute

    def execute(self, inputs: Sequence[Any]) -> list[Any]:
        """Runs the method on a sequence of inputs, or on a single tensor.

        Inputs are PyTorch tensors, arrays of any library with DLPack support, nested lists of
        numbers, and plain values. A stateless method reads contiguous inputs without copying them.
        Outputs share no memory with the method.
        """
        return self._execute(inputs)

    def reset(self) -> None:
        """Resets buffers to their initial contents."""
        self._method.reset()

    @property
    def metadata(self) -> MethodMeta:
        """Metadata of inputs and outputs."""
        return MethodMeta(self._program, self._method.name)

    def __repr__(self) -> str:
        def shown(specs: list[tuple[str | None, str]]) -> str:
            return ", ".join(f"{name}: {kind}" if name else kind for name, kind in specs)

        return f"<Method {self._method.name}({shown(self._method.inputs())}) -> ({shown(self._method.outputs())})>"


class Program:
    """A program with its methods."""

    def __init__(self, program: _native.Program, *, is_measured: bool = False) -> None:
        self._program = program
        self._is_measured = is_measured
        self._methods: dict[str, Method | None] = dict.fromkeys(program.method_names())

    @property
    def method_names(self) -> set[str]:
        """Names of all methods."""
        return set(self._methods)

    def load_method(self, name: str) -> Method:
        """Returns a method by name, loaded once. KeyError if there is none."""
        method = self._methods[name]
        if method is None:
            method = self._methods[name] = Method(self._program, name)
        return method

    def metadata(self, method_name: str) -> MethodMeta:
        """Metadata of a method; does not load it."""
        return MethodMeta(self._program, method_name)

    @property
    def graph(self) -> dict[str, list[dict[str, Any] | None]]:
        """The delegates of each method, in order, as ``flambeau inspect --nodes --json`` has them:
        ``chains`` of nodes, ``slots``, ``names`` and ``meta``. ``None`` for another backend.
        """
        return {name: json.loads(_native.graphs(self._program, name)) for name in self._program.method_names()}

    def profile(self, method_name: str = "forward", inputs: Sequence[Any] = (), *, repeat: int = 1) -> Profile:
        """Runs a method ``repeat`` times and measures its steps. Other loaded methods are unaffected."""
        measured = _native.measured(self._program)
        method = measured.load(method_name)
        outputs: list[Any] = []
        for _ in range(max(repeat, 1)):
            outputs = method.execute(inputs)
        return Profile(measured, outputs, [Step(**step) for step in json.loads(_native.steps(measured))])

    def verify(
        self,
        method_name: str = "forward",
        inputs: Sequence[Any] | None = None,
        *,
        against: Program | None = None,
        runs: int = 2,
        seed: int = 0,
        bound: int | None = None,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> Verdict:
        """Runs a method node by node on the CPU, and compares each node with the program's engine, or
        with the program ``against``. Works as ``flambeau verify``.

        Without ``inputs``, ``runs`` random ones are drawn from ``seed``; integers are below ``bound``.
        Without ``rtol`` and ``atol``, the rounding of each type is allowed.
        """
        if (rtol is None) != (atol is None):
            raise ValueError("give both rtol and atol, or none")
        found = _native.verify(
            self._program,
            method_name,
            inputs=inputs,
            against=None if against is None else against._program,
            runs=runs,
            seed=seed,
            bound=bound,
            tolerance=None if rtol is None or atol is None else (rtol, atol),
        )
        return verdict_of(json.loads(found))

    def write_etdump_result_to_file(self, etdump_path: str, debug_buffer_path: str) -> None:
        """Writes the measured runs of a program that was loaded with ``enable_etdump``, and the tensors
        of one that was loaded with ``debug_buffer_size``.
        """
        write_etdump(self._program, self._is_measured, etdump_path, debug_buffer_path)

    def __repr__(self) -> str:
        return f"<Program with {', '.join(self._program.method_names())}>"
