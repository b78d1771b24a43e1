#!/usr/bin/env python3
"""Exports ExecuTorch's backend test suite, its operator half, as case folders with `.pt2` programs.

    peer_suite_cases.py OUT [--only TEXT] [--core]

Needs the pinned `executorch` package and pytest. Inputs are the tests' own; tolerances are the suite's: 0.1 and 4e-2.
"""
import importlib
import itertools
import pkgutil
import sys

import torch

import cases


class Flow:
    """What tests ask of a flow."""

    name, backend, quantize = "case", "case", False

    def __str__(self):
        return self.name


class Recorder:
    """Stands where the suite's runner stands; writes each program that a test hands over."""

    def __init__(self, args, name, op):
        self.args, self.name, self.op, self.n, self._flow = args, name, op, 0, Flow()

    def lower_and_run_model(self, model, inputs, generate_random_test_inputs=True, dynamic_shapes=None):
        name = self.name if self.n == 0 else f"{self.name}_{self.n}"
        self.n += 1
        cases.write(self.args.out, name, model, tuple(inputs), op=self.op, dynamic_shapes=dynamic_shapes, core=self.args.core)


def parameters(function):
    """Every combination of a test's parametrize marks, as names for its folder and keyword arguments."""
    axes = []
    for mark in getattr(function, "pytestmark", []):
        if mark.name == "parametrize":
            names, values = mark.args[0], mark.args[1]
            names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
            axes.append([dict(zip(names, v if len(names) > 1 else (v,))) for v in values])
    for combination in itertools.product(*axes):
        kwargs = {k: v for part in combination for k, v in part.items()}
        yield "".join(f"_{str(v).removeprefix('torch.')}" for v in kwargs.values()), kwargs


def main():
    args = cases.arguments(__doc__)
    from executorch.backends.test.suite import operators

    written = failed = 0
    for module in pkgutil.iter_modules(operators.__path__, operators.__name__ + "."):
        module = importlib.import_module(module.name)
        for test, function in sorted(vars(module).items()):
            if not test.startswith("test_") or not callable(function) or args.only not in test:
                continue
            for suffix, kwargs in parameters(function):
                recorder = Recorder(args, test + suffix, module.__name__.rsplit("test_", 1)[1])
                torch.manual_seed(0)
                try:
                    function(recorder, **kwargs)
                except Exception as error:
                    failed += 1
                    print(f"not exported: {test}: {cases.reason(error)}", file=sys.stderr)
                written += recorder.n
    print(f"{written} written, {failed} not exported")


if __name__ == "__main__":
    main()
