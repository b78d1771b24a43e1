#!/usr/bin/env python3
"""Exports sorting and selection among equal elements as case folders.

    tie_cases.py OUT --seed N [--count N]

Each case calls one operator on a few whole numbers that repeat, of a random type, shape and axis, small or large.
"""
import argparse
import random

import torch

import cases

TYPES = [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float16, torch.bfloat16, torch.float32]
SIZES = [1, 2, 3, 5, 11, 16, 17, 40, 130, 700, 3000]


class Call(torch.nn.Module):
    """One call with fixed options."""

    def __init__(self, function, options):
        super().__init__()
        self.function, self.options = function, options

    def forward(self, x):
        return self.function(x, **self.options)


def shape(rng):
    """A random shape, and an axis with at most two small ones beside it."""
    dims = [rng.choice([1, 2, 3]) for _ in range(rng.randrange(3))]
    axis = rng.randrange(len(dims) + 1)
    dims.insert(axis, rng.choice(SIZES))
    return dims, axis


def call(rng, dtype, size, axis):
    """An operator and its options."""
    options = {"dim": axis}
    name = rng.choice(["topk", "topk", "kthvalue", "mode", "sort", "argsort", "median"])
    if name == "median" and dtype == torch.bool:
        name = "mode"
    if name == "topk":
        k = rng.choice([1, min(2, size), max(1, size // 64), max(1, size // 2), size, rng.randint(1, size)])
        options |= {"k": k, "largest": rng.random() < 0.5, "sorted": rng.random() < 0.7}
    if name == "kthvalue":
        options |= {"k": rng.randint(1, size), "keepdim": rng.random() < 0.5}
    if name in ("sort", "argsort"):
        options |= {"descending": rng.random() < 0.5}
        if rng.random() < 0.3:
            options |= {"stable": True}
    return name, getattr(torch, name), options


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=100)
    args = parser.parse_args()
    written = 0
    for i in range(args.count):
        rng = random.Random(args.seed * 1_000_003 + i)
        torch.manual_seed(rng.randrange(1 << 31))
        dtype = rng.choice(TYPES)
        dims, axis = shape(rng)
        name, function, options = call(rng, dtype, dims[axis], axis)
        x = torch.randint(0, rng.choice([2, 3, 9, 60]), dims).to(dtype)
        try:
            cases.write(args.out, f"{i:03}.{name}.{str(dtype)[6:]}", Call(function, options), (x,), op=name)
            written += 1
        except Exception as error:
            print("not exported", i, name, cases.reason(error))
    print(written, "written")


if __name__ == "__main__":
    main()
