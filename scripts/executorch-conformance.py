"""Runs conformance cases in a Python runtime, and compares the outputs with PyTorch's.

The runtime is `flambeau.runtime`, or ExecuTorch's with Flambeau's backend. It needs PyTorch, and ExecuTorch for the latter.
Usage: python scripts/executorch-conformance.py [--runtime flambeau|executorch] [--match TEXT] FOLDER...
FOLDER holds one folder per case: `case.json` with `input.bin` and `expected_output.bin`, or `session.json` with its calls.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

#: PyTorch's types by their numbers in files.
TYPES = [torch.float32, torch.float16, torch.int32, torch.int64, torch.bfloat16, torch.bool, torch.uint8]


class Wrong(Exception):
    """An output is not the expected one."""


def tensors(path: Path) -> list[torch.Tensor]:
    """The tensors of a file."""
    data = bytearray(path.read_bytes())
    found, at = [], 4
    for _ in range(int.from_bytes(data[:4], "little")):
        number, rank = np.frombuffer(data, np.uint32, 2, at)
        shape = np.frombuffer(data, np.int32, int(rank), at + 8).tolist()
        at += 8 + 4 * int(rank)
        count, dtype = int(np.prod(shape)), TYPES[number]
        flat = torch.frombuffer(data, dtype=dtype, count=count, offset=at) if count else torch.empty(0, dtype=dtype)
        found.append(flat.reshape(shape).clone())
        at += count * dtype.itemsize
    return found


class Flambeau:
    """`flambeau.runtime`."""

    def load(self, path: Path, kv_cache: Any) -> Any:
        from flambeau.runtime import Runtime

        return Runtime(share_state=True, kv_cache=kv_cache).load_program(path)


class ExecuTorch:
    """ExecuTorch's runtime, with Flambeau's backend."""

    def __init__(self) -> None:
        import flambeau.executorch
        from executorch.runtime import Runtime

        flambeau.executorch.register()
        flambeau.executorch.set_options(share_state=True)
        self._backend, self._runtime = flambeau.executorch, Runtime.get()

    def load(self, path: Path, kv_cache: Any) -> Any:
        self._backend.set_options(kv_cache=kv_cache or "")
        return self._runtime.load_program(path)


def arguments(program: Any, method: str, inputs: list[torch.Tensor]) -> list[Any]:
    """The inputs of a method: files hold integers as tensors."""
    meta, given, wanted = program.metadata(method), iter(inputs), []
    for i in range(meta.num_inputs()):
        try:
            meta.input_tensor_meta(i)
            wanted.append(next(given))
        except (RuntimeError, ValueError):
            wanted.append(int(next(given).item()))
    return wanted


def call(program: Any, method: Any, name: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs as tensors; what files have no place for is left out."""
    outputs = method.execute(arguments(program, name, inputs))
    return [torch.as_tensor(output) for output in outputs if output is not None]


def check(found: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float) -> None:
    if found.shape != expected.shape:
        raise Wrong(f"shape {list(found.shape)}, expected {list(expected.shape)}")
    if found.dtype != expected.dtype and expected.dtype.is_floating_point:
        raise Wrong(f"{found.dtype}, expected {expected.dtype}")
    a, b = found.double(), expected.double()
    close = (a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= atol + rtol * b.abs())
    if not bool(close.all()):
        raise Wrong(f"{int((~close).sum())} of {close.numel()} elements differ, by {float((a - b).abs().nan_to_num().max()):.3g} at most")


def run_case(runtime: Any, folder: Path, facts: dict[str, Any]) -> None:
    program = runtime.load(folder / "model.pte", facts.get("kv_cache"))
    outputs = call(program, program.load_method("forward"), "forward", tensors(folder / "input.bin"))
    if facts.get("skip_comparison"):
        return
    expected = tensors(folder / "expected_output.bin")
    if len(outputs) != len(expected):
        raise Wrong(f"{len(outputs)} outputs, expected {len(expected)}")
    for output, want in zip(outputs, expected):
        check(output, want, facts.get("rtol", 1e-5), facts.get("atol", 1e-5))


def run_session(runtime: Any, folder: Path, facts: dict[str, Any]) -> None:
    program = runtime.load(folder / "model.pte", facts.get("kv_cache"))
    methods = {name: program.load_method(name) for name in dict.fromkeys(step["method"] for step in facts["calls"])}
    for number, step in enumerate(facts["calls"]):
        name, method = step["method"], methods[step["method"]]
        inputs = tensors(folder / step["inputs"])
        outputs = call(program, method, name, inputs)
        try:
            judge(facts, folder, step, outputs)
        except Wrong as wrong:
            if not drawn_at_the_border(facts, folder, step, inputs, lambda again: call(program, method, name, again)):
                raise Wrong(f"call {number} of {name}: {wrong}") from None


def drawn_at_the_border(facts: dict[str, Any], folder: Path, step: dict[str, Any], inputs: list[torch.Tensor], again: Any) -> bool:
    """Whether the expected token comes out with one candidate more or less, for rounding swaps the last of them."""
    kinds = [torch.float32, torch.int64, torch.float32, torch.int64]
    if step["compare"] != "token" or [x.dtype for x in inputs[-4:]] != kinds or any(x.numel() != 1 for x in inputs[-4:]):
        return False
    top = int(inputs[-3])
    for candidates in {max(top - 1, 1), top + 1}:
        other = [*inputs[:-3], torch.full_like(inputs[-3], candidates), *inputs[-2:]]
        try:
            judge(facts, folder, step, again(other))
            return True
        except Wrong:
            pass
    return False


def judge(facts: dict[str, Any], folder: Path, step: dict[str, Any], outputs: list[torch.Tensor]) -> None:
    expected = tensors(folder / step["expected"])
    if len(outputs) != len(expected):
        raise Wrong(f"{len(outputs)} outputs, expected {len(expected)}")
    for i, (found, want, told) in enumerate(zip(outputs, expected, step["outputs"])):
        if step["compare"] == "last":
            found, want = found[..., -1:, :], want[..., -1:, :]
        if not want.dtype.is_floating_point:
            check(found, want, 0.0, 0.0 if told.get("certain", True) else float("inf"))
            continue
        check(found, want, facts["rtol"], step["atol"][i])
        difference = (found.double() - want.double()).nan_to_num()
        if float(difference.square().mean().sqrt()) > step["rms_tol"][i]:
            raise Wrong(f"output {i}: the differences are too large on average")
        if told.get("argmax_safe") and not torch.equal(found.flatten(0, -2)[-1].argmax(), want.flatten(0, -2)[-1].argmax()):
            raise Wrong(f"output {i}: another entry is the largest")


def cases(folders: list[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    for folder in folders:
        for case in sorted(folder.iterdir()):
            facts = next((case / name for name in ("case.json", "session.json") if (case / name).is_file()), None)
            if facts is not None and (case / "model.pte").is_file():
                yield case, json.loads(facts.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runtime", choices=["flambeau", "executorch"], default="flambeau")
    parser.add_argument("--match", default="", help="run cases with this text in their names only")
    parser.add_argument("folders", nargs="+", type=Path)
    options = parser.parse_args()
    runtime = Flambeau() if options.runtime == "flambeau" else ExecuTorch()
    counts = dict.fromkeys(map(str, options.folders), (0, 0))
    for case, facts in cases(options.folders):
        if options.match not in case.name:
            continue
        passed, all_ = counts[str(case.parent)]
        try:
            (run_session if "calls" in facts else run_case)(runtime, case, facts)
            passed += 1
        except Exception as error:
            text = "".join(traceback.format_exception_only(error)).strip()
            print(f"FAILED {case.name}: {text}", flush=True)
        counts[str(case.parent)] = passed, all_ + 1
    for folder, (passed, all_) in counts.items():
        print(f"{folder}: {passed} of {all_} pass in {options.runtime}")
    return 0 if all(passed == all_ for passed, all_ in counts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
