#!/usr/bin/env python3
"""Writes random programs of views with writes as case folders, for PyTorch itself to say what they compute.

    view_cases.py OUT [--first SEED] [--count N]

A program follows from its seed, which is its name: `view.SEED`. Writes go through chains of views to inputs, to a buffer and to tensors
that the program makes; results are contents of all of them afterwards. Programs that PyTorch does not run or export are left out.
"""
import argparse
import random
import sys

import torch
from torch import nn

import cases

UNARY = ["neg_", "abs_", "zero_", "sin_", "relu_", "sigmoid_"]


class Program(nn.Module):
    """Calls that a seed draws as they run, the same ones each time."""

    def __init__(self, seed):
        super().__init__()
        self.seed = seed
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("held", torch.randn(4, 6, generator=generator))

    def forward(self, x, y):
        draw = random.Random(self.seed)
        values = [x, y, self.held]
        for _ in range(draw.randint(4, 14)):
            value = draw.choice(values)
            kind = draw.random()
            if kind < 0.55:
                made = view(draw, value)
                values.extend(made if isinstance(made, (list, tuple)) else [made])
            elif kind < 0.85:
                write(draw, value, values)
            else:
                values.append(draw.choice([value * 1, value.clone(), value + 0, value * 2]))
        results = [values[0] * 1, values[1].clone(), values[2] + 1]
        return tuple(results + [draw.choice([v * 1, v.clone(), v.sum()]) for v in draw.sample(values, min(4, len(values)))])


def view(draw, x):
    """A view of a tensor, or several."""
    if x.dim() == 0:
        return x.unsqueeze(0)
    axis, other = draw.randrange(x.dim()), draw.randrange(x.dim())
    size = x.shape[axis]
    if size == 0:
        return x.detach()
    at = draw.randrange(size)
    choices = [
        lambda: x.select(axis, at - size if draw.random() < 0.3 else at),
        lambda: x.narrow(axis, at - size if draw.random() < 0.3 else at, draw.randint(1, size - at)),
        lambda: x[(slice(None),) * axis + (slice(at, None, draw.choice([1, 2])),)],
        lambda: x.transpose(axis, other),
        lambda: x.movedim(axis, other),
        lambda: x.unsqueeze(axis),
        lambda: x.squeeze(),
        lambda: x.flatten() if x.is_contiguous() else x.detach(),
        lambda: x.diagonal(draw.randint(-1, 1), axis, other) if axis != other else x.detach(),
        lambda: x.split(draw.randint(1, size), axis),
        lambda: x.chunk(draw.randint(1, 3), axis),
        lambda: x.unbind(axis),
        lambda: x.tensor_split(draw.randint(1, 3), axis),
        lambda: x.tensor_split([at], axis),
        lambda: x.hsplit([at]),
        lambda: x.vsplit([at]) if x.dim() > 1 else x.detach(),
        lambda: x.dsplit([at]) if x.dim() > 2 else x.detach(),
        lambda: x.unfold(axis, min(size, draw.randint(1, 3)), draw.randint(1, 3)),
        lambda: x.as_strided((2, 2), (draw.randint(1, 3), 1)) if x.is_contiguous() and x.numel() > 6 else x.detach(),
        lambda: x.unflatten(axis, (1, size)),
        lambda: x.swapaxes(axis, other),
        lambda: x.expand(2, *x.shape),
        lambda: x.mT if x.dim() > 1 else x.detach(),
    ]
    return draw.choice(choices)()


def write(draw, x, values):
    """A write to a tensor."""
    alike = [v for v in values if v.shape == x.shape]
    if 0 in x.stride() and x.numel() > 1:
        return
    kind = draw.randrange(7)
    number = draw.choice([-2.0, 0.5, 3.0])
    if kind == 0:
        x.fill_(number)
    elif kind == 1:
        x.mul_(number)
    elif kind == 2:
        x.add_(number)
    elif kind == 3:
        x.masked_fill_(x > 0, number)
    elif kind == 4 and alike:
        x.copy_(draw.choice(alike).clone())
    elif kind == 5 and alike:
        x.add_(draw.choice(alike).clone(), alpha=2)
    else:
        getattr(x, draw.choice(UNARY))()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    args = parser.parse_args()
    written = 0
    for seed in range(args.first, args.first + args.count):
        torch.manual_seed(seed)
        inputs = (torch.randn(4, 6), torch.randn(3, 4, 2))
        try:
            cases.write(args.out, f"view.{seed}", Program(seed), inputs, op="view")
            written += 1
        except Exception as error:
            print(f"view.{seed} is left out: {cases.reason(error)}", file=sys.stderr)
    print(f"{written} programs of {args.count} are in {args.out}")


if __name__ == "__main__":
    main()
