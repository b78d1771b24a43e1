#!/usr/bin/env python3
"""Compiles whole models of torchvision, timm and transformers with random weights, compares them with PyTorch, and writes a table.

    model_zoo.py WORK [--only TEXT] [--dtype f32|bf16] [--flambeau PATH] [--again] [--table docs/model-zoo.md]

Each model is exported, with an open batch where torch.export allows it, compiled by the `flambeau` command, run, and compared
with PyTorch. WORK keeps results in `results.jsonl`, so that a stopped run goes on where it was; `--again` compiles anew what did not
agree. A model whose batch is open is exported for two and run for three.
"""
import argparse
import importlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
TYPES = ("f32", "bf16")
# Seconds for a model to be exported, and to be compiled and run.
EXPORT_LIMIT, RUN_LIMIT = 240, 240


SOURCES = ("torchvision", "timm", "transformers")


def entries(sources=SOURCES):
    """The entries of these sources, by name."""
    from zoo.common import ENTRIES
    for source in sources:
        importlib.import_module(f"zoo.{source}_models")
    return ENTRIES


def export(name, dtype, folder):
    """Writes program, inputs and what PyTorch makes of them; prints what was open."""
    import torch

    import cases
    from zoo.common import TensorResults, shake

    torch.manual_seed(0)
    torch.set_num_threads(1)
    example = entries([name.split("/")[0]])[name].build()
    model = shake(TensorResults(example.model.eval()))
    torch.manual_seed(1)
    two = example.inputs(2)
    three = example.inputs(3)
    wide = lambda values: {k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in values.items()}
    exact = None
    if dtype == "bf16":
        rounded = lambda values: {k: v.to(torch.float32) if v.is_floating_point() else v for k, v in wide(values).items()}
        model.to(torch.bfloat16).to(torch.float32)
        with torch.no_grad():
            exact = {2: cases.own(model)(rounded(two)), 3: cases.own(model)(rounded(three))} if example.dynamic else {2: cases.own(model)(rounded(two))}
        model.to(torch.bfloat16)
        two, three = wide(two), wide(three)
    batch, error = 2, None
    exported = None
    if example.dynamic:
        open_batch = {"inputs": {k: {0: torch.export.Dim("batch", max=16)} for k in two}}
        try:
            exported = cases.export(cases.own(model), (two,), dynamic_shapes=open_batch)
            batch = 3
        except Exception as failure:
            error = cases.reason(failure)
    if exported is None:
        try:
            exported = cases.export(cases.own(model), (two,))
        except Exception as failure:
            sys.exit(cases.reason(failure))
    inputs = three if batch == 3 else two
    with torch.no_grad():
        expected = cases.own(model)(inputs)
    exact = exact[batch] if exact else in_doubles(model, inputs)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.pt2").write_bytes(cases.program_bytes(exported))
    (folder / "input.bin").write_bytes(cases.list_bytes(cases.leaves(exported, (inputs,), {})))
    torch.save((expected, exact), folder / "expected.pt")
    print(json.dumps({"open": batch == 3, "why_closed": error}))


def in_doubles(model, inputs):
    """Results in 64-bit floats, or None for a model that fixes its element type. Changes the model."""
    import torch

    import cases

    try:
        with torch.no_grad():
            return cases.own(model.double())({k: v.double() if v.is_floating_point() else v for k, v in inputs.items()})
    except RuntimeError:
        return None


def read_tensors(path):
    """The tensors of a .bin file."""
    import torch

    import cases

    data = path.read_bytes()
    (count,), at, tensors = struct.unpack_from("<I", data), 4, []
    for _ in range(count):
        code, rank = struct.unpack_from("<II", data, at)
        shape = struct.unpack_from(f"<{rank}i", data, at + 8)
        at += 8 + 4 * rank
        dtype = cases.DTYPES[code]
        size = torch.Size(shape).numel() * dtype.itemsize
        tensor = torch.frombuffer(bytearray(data[at:at + size]), dtype=dtype) if size else torch.empty(0, dtype=dtype)
        tensors.append(tensor.reshape(shape))
        at += size
    return tensors


def difference(found, expected, exact, dtype):
    """Why two results disagree, or None.

    `exact` is the result in 64-bit floats for f32, and in f32 for bf16. In f32 no element may be further off than a thousandth of the
    largest and twice PyTorch's own error. In bf16 the error may be twice that of PyTorch. Of integers, 2 % may differ, or twice the share
    in which PyTorch differs from `exact`.
    """
    import torch

    if tuple(found.shape) != tuple(expected.shape):
        return f"shape {list(found.shape)} instead of {list(expected.shape)}"
    if not expected.is_floating_point():
        differing = lambda a, b: (a != b.to(a.dtype)).float().mean().item() if a.numel() else 0
        share, own = differing(found, expected), 0 if exact is None else differing(expected, exact)
        return f"{share:.1%} of integers differ" if share > max(0.02, 2 * own) else None
    a, b = found.double(), expected.double()
    finite = b.isfinite()
    if not torch.equal(a[~finite].nan_to_num(7e77), b[~finite].nan_to_num(7e77)) or not a[finite].isfinite().all():
        return "infinities or NaN differ"
    a, b = a[finite], b[finite]
    if not b.numel():
        return None
    c = None if exact is None else exact.double()[finite]
    if c is None or dtype == "f32":
        own = 0 if c is None else (b - c).abs().max()
        error, allowed = (a - b).abs().max(), 1e-3 * b.abs().max() + 2 * own + 1e-5
    else:
        rms = lambda x: x.square().mean().sqrt()
        error, allowed = rms(a - c), 2 * rms(b - c) + 0.01 * rms(c) + 1e-5
    return f"error {error:.3g}, allowed {allowed:.3g}" if error > allowed else None


def compare(folder, output):
    import torch

    expected, exact = torch.load(folder / "expected.pt")
    found = read_tensors(output)
    if len(found) != len(expected):
        print(f"{len(found)} results instead of {len(expected)}")
        return
    for i, value in enumerate(expected):
        reason = difference(found[i], value, None if exact is None or exact[i].shape != value.shape else exact[i], folder.name)
        if reason:
            print(f"result {i}: {reason}")
            return


def run(command, limit):
    """Exit code, output and messages of a command; None for the code if it took too long."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True)
    try:
        out, err = process.communicate(timeout=limit)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None, "", f"took more than {limit} s"


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:600] if lines else "no message"


def trial(args, name, dtype):
    """Exports, compiles, runs and compares one model. Returns what is known of it."""
    result = {"name": name, "dtype": dtype, "exported": False, "compiled": False, "delegates": None, "agreed": False, "reason": None}
    folder = Path(args.work, "cases", name.replace("/", "."), dtype)
    if not (folder / "export.json").exists():
        code, out, err = run([sys.executable, __file__, args.work, "--export", name, "--dtype", dtype], EXPORT_LIMIT)
        if code != 0:
            return {**result, "reason": last_line(err)}
        (folder / "export.json").write_text(out.splitlines()[-1])
    result.update(json.loads((folder / "export.json").read_text()), exported=True)
    program, output = folder / "model.pte", folder / "output.bin"
    code, _, err = run([args.flambeau, "compile", folder / "model.pt2", "-o", program], RUN_LIMIT)
    if code != 0:
        return {**result, "reason": " ".join(line.strip() for line in err.splitlines())[:1500]}
    result["compiled"] = True
    code, out, _ = run([args.flambeau, "inspect", program, "--json"], 60)
    if code == 0:
        result["delegates"] = delegates(json.loads(out))
    code, _, err = run([args.flambeau, "run", program, "--input", folder / "input.bin", "--output", output, "-t", "1", "--engine", args.engine], RUN_LIMIT)
    if code != 0:
        return {**result, "reason": last_line(err)}
    code, out, err = run([sys.executable, __file__, args.work, "--compare", folder], 120)
    reason = out.strip() or (last_line(err) if code else None)
    for path in (program, output):
        path.unlink(missing_ok=True)
    if reason is None:
        shutil.rmtree(folder)
    return {**result, "agreed": reason is None, "reason": reason}


def delegates(description):
    """How many delegates the program's only method has."""
    return len(description["methods"][0]["delegates"])


def load(path):
    """The last result of each model and type."""
    if not path.exists():
        return {}
    rows = map(json.loads, path.read_text().splitlines())
    return {(row["name"], row["dtype"]): row for row in rows}


def table(results, path):
    """The page: one row for each model."""
    names = sorted({name for name, _ in results}, key=lambda n: (n.split("/")[0], n.lower()))
    rows, agreed, exported = [], 0, 0
    for name in names:
        cells, notes = [], []
        for dtype in TYPES:
            row = results.get((name, dtype))
            if row is None:
                cells.append("–")
                continue
            exported += row["exported"]
            agreed += row["agreed"]
            cells.append(verdict(row))
            if row["reason"] and not any(row["reason"] == n for n in notes):
                notes.append(row["reason"])
        any_row = next(results[(name, d)] for d in TYPES if (name, d) in results)
        count = any_row["delegates"]
        batch = "open" if any_row.get("open") else "fixed" if any_row["exported"] else ""
        note = short(notes[0]) if notes else ""
        source, model = name.split("/", 1)
        rows.append(f"| {source} | `{model}` | {batch} | {'' if count is None else count} | {' | '.join(cells)} | {note} |")
    head = PAGE.format(agreed=agreed, exported=exported)
    path.write_text(head + "\n".join(rows) + "\n")


def verdict(row):
    if row["agreed"]:
        return "agrees"
    if not row["exported"]:
        return "no export"
    return "differs" if row["compiled"] else "refused"


def short(reason):
    """A reason as a cell of a table."""
    text = " ".join(reason.replace("|", "\\|").split())
    return text if len(text) < 200 else text[:200] + " …"


PAGE = """# Whole models

Models of torchvision, timm and transformers with random weights, in small configurations where the class allows it. Each was exported by
`torch.export`, compiled by `flambeau compile`, run on the CPU engine, and compared with PyTorch: {agreed} of the {exported} programs that
`torch.export` captured agree. A batch that is *open* was exported as a dynamic size and run with another size. In f32, a result agrees if no
element is further off than a thousandth of the largest and twice PyTorch's own error to 64-bit floats; in bf16, if its error to f32 is at
most twice that of PyTorch in bf16.

The table is made by `python3 scripts/reference/model_zoo.py WORK --table docs/model-zoo.md`.

| source | model | batch | delegates | f32 | bf16 | reason |
|---|---|---|---:|---|---|---|
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", help="folder for programs and results")
    parser.add_argument("--only", default="", help="part of the names of models to try")
    parser.add_argument("--dtype", choices=TYPES, help="only this type")
    parser.add_argument("--flambeau", default="target/release/flambeau", help="the command")
    parser.add_argument("--engine", default="cpu")
    parser.add_argument("--again", action="store_true", help="try models anew that did not agree")
    parser.add_argument("--table", help="Markdown page to write")
    parser.add_argument("--export", help=argparse.SUPPRESS)
    parser.add_argument("--compare", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.export:
        return export(args.export, args.dtype, Path(args.work, "cases", args.export.replace("/", "."), args.dtype))
    if args.compare:
        return compare(Path(args.compare), Path(args.compare, "output.bin"))
    path = Path(args.work, "results.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    results = load(path)
    for dtype in [args.dtype] if args.dtype else TYPES:
        for name in entries():
            known = results.get((name, dtype))
            if args.only not in name or (known and not (args.again and not known["agreed"])):
                continue
            began = time.monotonic()
            row = trial(args, name, dtype)
            results[name, dtype] = row
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{verdict(row)} {name} {dtype} {time.monotonic() - began:.0f} s {row['reason'] or ''}"[:300], flush=True)
    if args.table:
        table(results, Path(args.table))


if __name__ == "__main__":
    main()
