"""Compares `torch.compile(model, backend="flambeau")` with eager PyTorch and inductor: outputs, and time of a call.

Run it with a Python that has a release build of the package, PyTorch, torchvision, timm and transformers. Each model runs in a
process of its own. `scripts/dynamo/models.py` lists the models.
Usage: python scripts/bench_torch_compile.py [--only TEXT] [--backends eager flambeau inductor] [--threads N] [--output TABLE.md]
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "dynamo"))

#: Most seconds for one model, compilation included.
LIMIT = 900


def tensors(value: Any) -> list[Any]:
    """The tensors in lists, dictionaries, dataclasses and caches, in a fixed order."""
    import torch
    from torch.utils._pytree import tree_leaves

    found = []
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        else:
            found.extend(tensors([item for _, item in sorted(getattr(leaf, "__dict__", {}).items())]))
    return found


def difference(ours: Any, theirs: Any) -> float:
    """The largest difference, relative to the largest element of a tensor."""
    mine, known = tensors(ours), tensors(theirs)
    if len(mine) != len(known):
        raise ValueError(f"{len(mine)} tensors, expected {len(known)}")
    most = 0.0
    for a, b in zip(mine, known):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise ValueError(f"{a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}")
        if b.numel():
            a, b = a.double(), b.double()
            if not bool(((a == b) | (a - b).isfinite()).all()):
                return float("inf")
            gap = (a - b).nan_to_num(0.0).abs().max()
            most = max(most, float(gap / b[b.isfinite()].abs().max().clamp(min=1e-6)) if b.isfinite().any() else 0.0)
    return most


def seconds(function: Any, call: Any, limit: float) -> float:
    """The least time of 30 calls, or of the calls within `limit` seconds."""
    args, kwargs = call
    least, begin, count = float("inf"), time.perf_counter(), 0
    while count == 0 or (count < 30 and time.perf_counter() - begin < limit):
        start = time.perf_counter()
        function(*args, **kwargs)
        least, count = min(least, time.perf_counter() - start), count + 1
    return least


def measure(name: str, backends: list[str], threads: int, limit: float) -> dict[str, Any]:
    import torch

    from models import build

    torch.set_num_threads(threads)
    model, calls = build(name)
    row: dict[str, Any] = {"model": name}
    with torch.no_grad():
        known = [model(*args, **kwargs) for args, kwargs in calls]
        for backend in backends:
            torch._dynamo.reset()
            options = {"threads": threads} if backend == "flambeau" else None
            function = model if backend == "eager" else torch.compile(model, backend=backend, options=options)
            try:
                begin = time.perf_counter()
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    first = function(*calls[0][0], **calls[0][1])
                    row[f"{backend} start"] = time.perf_counter() - begin
                    row[f"{backend} seconds"] = seconds(function, calls[0], limit)
                    errors = [difference(first, known[0])]
                    errors += [difference(function(*args, **kwargs), want) for (args, kwargs), want in zip(calls[1:], known[1:])]
                row[f"{backend} error"] = max(errors)
                row[f"{backend} warnings"] = [str(w.message) for w in caught if "flambeau" in str(w.message)]
            except Exception as error:
                row[f"{backend} failure"] = f"{type(error).__name__}: {error}"[:2000]
    return row


def cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def table(rows: list[dict[str, Any]], backends: list[str], threads: int) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("flambeau", "torch", "torchvision", "timm", "transformers"))
    others = [backend for backend in backends if backend != "eager"]
    lines = [
        f"{cpu()}, {threads} threads, {time.strftime('%Y-%m-%d')}; {versions}, Python {platform.python_version()}.",
        "",
        "| model | eager, ms | " + " | ".join(f"{b}, ms | eager / {b}" for b in others) + " | largest difference | graphs in PyTorch |",
        "|---|--:|" + "--:|--:|" * len(others) + "--:|--:|",
    ]
    for row in rows:
        cells = [row["model"], milliseconds(row.get("eager seconds"))]
        for backend in others:
            ratio = row["eager seconds"] / row[f"{backend} seconds"] if f"{backend} seconds" in row and "eager seconds" in row else None
            cells += [milliseconds(row.get(f"{backend} seconds")), "failed" if ratio is None else f"{ratio:.2f}"]
        error = row.get("flambeau error")
        cells += ["failed" if error is None else f"{error:.0e}", str(len(row.get("flambeau warnings", [])))]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value * 1e3:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="models with this text in their name", default="")
    parser.add_argument("--backends", nargs="+", default=["eager", "inductor", "flambeau"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3, help="time for the calls of a model on a backend; 0 compares outputs alone")
    parser.add_argument("--output", type=Path, help="file for the table; by default, it is printed")
    parser.add_argument("--model", help="measure this model in this process, and print JSON")
    options = parser.parse_args()
    if options.model:
        print(json.dumps(measure(options.model, options.backends, options.threads, options.seconds)))
        return
    from models import MODELS

    rows, failed = [], 0
    for name in (name for name in MODELS if options.only in name):
        command = [sys.executable, __file__, "--model", name, "--threads", str(options.threads), "--seconds", str(options.seconds), "--backends", *options.backends]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
            row = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"model": name, "failure": done.stderr[-2000:]}
        except subprocess.TimeoutExpired:
            row = {"model": name, "failure": f"no result after {LIMIT} s"}
        problems = [f"{key}: {value}" for key, value in row.items() if "failure" in key]
        wrong = row.get("flambeau error", 0.0) > 1e-3
        failed += bool(problems) or wrong
        print(json.dumps(row), file=sys.stderr, flush=True)
        rows.append(row)
    text = table(rows, options.backends, options.threads)
    if options.output:
        options.output.write_text(text)
    else:
        print(text)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
