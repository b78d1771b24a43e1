#!/usr/bin/env python3
"""Exports random chains of operations over one to three dynamic axes as case folders, and runs each with other sizes.

    dynamic_chains.py OUT --seed FIRST [--count N]

Case `chain.S` is made of seed S alone, so that `--seed S --count 1` makes it again.
"""
import argparse
import random
import sys
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.export import Dim

import cases


def pick_axis(draw, x):
    return draw.randrange(x.dim())


def dynamic_axis(draw, x):
    """An axis that is probably dynamic: those of other than a small constant size."""
    wide = [axis for axis in range(x.dim()) if x.shape[axis] not in (1, 2, 3)]
    return draw.choice(wide) if wide else pick_axis(draw, x)


def narrowed(draw, x):
    axis, start, length = dynamic_axis(draw, x), draw.choice([0, 1, -2, -1]), draw.choice([1, "less"])
    if start < 0:
        length = 1
    return lambda t: t.narrow(axis, start, t.shape[axis] - start - 1 if length == "less" and t.shape[axis] > start + 1 else 1)


def sliced(draw, x):
    axis = dynamic_axis(draw, x)
    start, stop, step = draw.choice([None, 0, 1, -3, -1]), draw.choice([None, 1, 2, -1, "half", "less"]), draw.choice([1, 1, 2])
    if start == -1 or start == -3:
        stop = None

    def apply(t):
        n = t.shape[axis]
        end = {"half": n // 2 + 1, "less": n - 1}.get(stop, stop)
        index = [slice(None)] * t.dim()
        index[axis] = slice(start if stop not in (1,) else None, end, step)
        return t[tuple(index)]

    return apply


def chunked(draw, x):
    axis, n, at = dynamic_axis(draw, x), draw.choice([2, 3]), draw.choice([0, -1])
    return lambda t: t.chunk(n, axis)[at]


def padded(draw, x):
    low, high = draw.randrange(3), draw.randrange(3)
    mode = draw.choice(["constant", "constant", "replicate", "reflect"]) if x.dim() in (2, 3) else "constant"
    low, high = (min(low, 1), min(high, 1)) if mode == "reflect" else (low, high)
    return lambda t: F.pad(t, (low, high), mode=mode)


def joined(draw, x):
    axis, kind = pick_axis(draw, x), draw.choice(["self", "part", "stack"])
    if kind == "stack":
        return lambda t: torch.stack([t, t * 2], axis)
    return lambda t: torch.cat([t, t if kind == "self" else t.narrow(axis, 0, 1)], axis)


def pooled(draw, x):
    kind, kernel, stride, ceil = draw.choice(["max", "avg", "adaptive_avg", "adaptive_max"]), draw.choice([2, 3]), draw.choice([1, 2]), draw.random() < 0.4
    bins = draw.choice([1, 2, 3])

    def apply(t):
        t = t.reshape(1, -1, t.shape[-1])
        if kind == "max":
            return F.max_pool1d(t, kernel, stride, 1, ceil_mode=ceil)
        if kind == "avg":
            return F.avg_pool1d(t, kernel, stride, 1, ceil_mode=ceil, count_include_pad=bins == 1)
        return (F.adaptive_avg_pool1d if kind == "adaptive_avg" else F.adaptive_max_pool1d)(t, bins)

    return apply


def reduced(draw, x):
    axis, kind, keep = pick_axis(draw, x), draw.choice(["mean", "sum", "amax", "std", "var", "logsumexp", "norm"]), draw.random() < 0.5
    if kind in ("std", "var"):
        correction = draw.choice([0, 1, 0.5])
        return lambda t: getattr(t, kind)(axis, correction=correction, keepdim=keep)
    return lambda t: getattr(t, kind)(dim=axis, keepdim=keep)


def scanned(draw, x):
    axis, kind = pick_axis(draw, x), draw.choice(["cumsum", "cummax", "cummin", "cumprod", "sort", "median", "kthvalue", "diff", "flip", "roll", "topk"])
    calls = {
        "cummax": lambda t: t.cummax(axis)[0], "cummin": lambda t: t.cummin(axis)[0], "sort": lambda t: t.sort(axis)[0],
        "median": lambda t: t.median(axis, keepdim=True)[0], "kthvalue": lambda t: t.kthvalue(1, axis, keepdim=True)[0],
        "diff": lambda t: t.diff(n=1, dim=axis), "flip": lambda t: t.flip(axis), "roll": lambda t: t.roll(1, axis),
        "topk": lambda t: t.topk(1, axis)[0], "cumsum": lambda t: t.cumsum(axis), "cumprod": lambda t: t.cumprod(axis),
    }
    return calls[kind]


def viewed(draw, x):
    a, b, kind = pick_axis(draw, x), pick_axis(draw, x), draw.choice(["flatten", "transpose", "unsqueeze", "last", "expand", "repeat", "select", "diagonal"])
    calls = {
        "flatten": lambda t: t.reshape(-1), "transpose": lambda t: t.transpose(a, b), "unsqueeze": lambda t: t.unsqueeze(a),
        "last": lambda t: t.reshape(*t.shape[:-1], 1, t.shape[-1]), "expand": lambda t: t.unsqueeze(0).expand(2, *t.shape),
        "repeat": lambda t: t.repeat(*[2 if i == a else 1 for i in range(t.dim())]), "select": lambda t: t.select(a, -1),
        "diagonal": lambda t: t.diagonal() if t.dim() > 1 else t,
    }
    return calls[kind]


def broadcast(draw, x):
    axis, kind = pick_axis(draw, x), draw.choice(["count", "slice", "size", "mean"])
    calls = {
        "count": lambda t: t + torch.arange(t.shape[axis], dtype=t.dtype).reshape([-1 if i == axis else 1 for i in range(t.dim())]),
        "slice": lambda t: t * t.narrow(axis, 0, 1), "size": lambda t: t / t.shape[axis], "mean": lambda t: t - t.mean(axis, keepdim=True),
    }
    return calls[kind]


STEPS = [narrowed, sliced, sliced, chunked, padded, joined, pooled, reduced, scanned, viewed, viewed, broadcast]


def grow(draw, x):
    """Functions of a chain, each tried on `x` as it was drawn."""
    chain = []
    for _ in range(draw.randrange(3, 8)):
        if x.dim() == 0 or x.dim() > 4 or x.numel() > 4000:
            break
        step = draw.choice(STEPS)(draw, x)
        try:
            y = step(x)
        except (RuntimeError, IndexError, ValueError, NotImplementedError):
            continue
        if y.numel() == 0:
            continue
        chain.append(step)
        x = y
    return chain


class Chain(torch.nn.Module):
    def __init__(self, chains, table):
        super().__init__()
        self.chains = chains
        self.register_buffer("table", table)

    def forward(self, x, y):
        rows = self.table[: x.shape[0]]
        results = [x * rows[:, :1], y]
        for i, chain in enumerate(self.chains):
            for step in chain:
                results[i] = step(results[i])
        return tuple(results)


def make(seed, out):
    """Writes the case of a seed; raises if capture refuses it."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    dims = [Dim.AUTO(min=4, max=40) for _ in range(3)]
    sizes, other = draw.sample(range(5, 14), 3), draw.sample(range(5, 14), 3)
    fixed = draw.choice([2, 3])
    is_square = draw.random() < 0.3

    def inputs(n):
        return torch.randn(n[0], fixed if is_square else n[1]), torch.randn(n[2], n[0])

    args = inputs(sizes)
    chains = [grow(draw, t) for t in args]
    dynamic = ({0: dims[0]} if is_square else {0: dims[0], 1: dims[1]}, {0: dims[2], 1: dims[0]})
    name = f"chain.{seed}"
    module, test = Chain(chains, torch.randn(40, 4)), inputs(other)
    # Capture may have fixed a size that the chain depends on: then it takes no others.
    cases.export(module, args, dynamic_shapes=dynamic).module()(*test)
    cases.write(out, name, module, args, op="chain", test=(test, {}), dynamic_shapes=dynamic)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=100)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    written = 0
    for seed in range(args.seed, args.seed + args.count):
        try:
            make(seed, args.out)
            written += 1
        except Exception as error:
            print(f"not exported: chain.{seed}: {cases.reason(error)}", file=sys.stderr)
    print(f"{written} of {args.count} written")


if __name__ == "__main__":
    main()
