#!/usr/bin/env python3
"""Exports PyTorch's own operator samples (its OpInfo database) as case folders.

    opinfo_cases.py OUT [--only NAME ...] [--dtypes f32,i64] [--samples N] [--group N] [--core] [--shard I/N] [--seed N]

A case holds up to `--group` samples of one operator and one element type, each with its own inputs; where one of a group cannot
be exported, each sample gets a case of its own. Random and in-place-only entries are left out.
"""
import argparse
import sys
import warnings

import torch
import torch.utils._pytree as pytree

import cases

NAMES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32, "i64": torch.int64,
         "bool": torch.bool, "u8": torch.uint8, "i8": torch.int8}

# Results depend on a generator or on uninitialised memory, or the entry is no forward operator of a model.
LEFT_OUT = ("bernoulli", "cauchy", "empty", "exponential", "geometric", "log_normal", "multinomial", "new_empty", "normal",
            "rand", "uniform", "dropout", "rrelu", "jiterator", "hash_tensor", "lowrank", "fractional_max_pool", "to_sparse",
            "sparse", "_backward", "resize", "flash_attention", "efficient_attention", "scaled_mm", "airy", "bessel",
            "polynomial", "linalg.eig", "linalg.lstsq", "linalg.ldl", "linalg.lu", "svd", "geqrf", "ormqr", "householder",
            "broadcast_shapes", "gradient", "histogramdd")


class Calls(torch.nn.Module):
    """Calls of one operator, each on its own slice of the inputs."""

    def __init__(self, op, samples):
        super().__init__()
        self.op, self.samples = op, samples

    def forward(self, *tensors):
        results, at = [], 0
        for spec, values in self.samples:
            filled = []
            for value in values:
                if isinstance(value, torch.Tensor):
                    filled.append(tensors[at])
                    at += 1
                else:
                    filled.append(value)
            args, kwargs = pytree.tree_unflatten(filled, spec)
            result = self.op(*args, **kwargs)
            results.extend(r for r in pytree.tree_leaves(result) if isinstance(r, torch.Tensor))
        return tuple(plain(r) for r in results)


def plain(result):
    if result.is_complex():
        return torch.view_as_real(result)
    if result.dtype == torch.float64:
        return result.to(torch.float32)
    if result.dtype in (torch.int8, torch.int16):
        return result.to(torch.int32)
    return result


def samples_of(entry, dtype, limit):
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in entry.sample_inputs("cpu", dtype, requires_grad=False):
            if len(found) == limit * 4:
                break
            leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
            leaves = [v.detach().contiguous().clone() if isinstance(v, torch.Tensor) else v for v in leaves]
            if any(isinstance(v, torch.Tensor) and v.numel() > 20000 for v in leaves):
                continue
            found.append((spec, leaves))
    step = max(1, len(found) // limit)
    return found[::step][:limit]


def write(out, name, entry, samples, core):
    tensors = [v for _, values in samples for v in values if isinstance(v, torch.Tensor)]
    cases.write(out, name, Calls(entry.op, samples), tuple(tensors), op=entry.name, core=core)


def groups(args, entry, short, dtype):
    samples = samples_of(entry, dtype, args.samples)
    base = f"{entry.name}{'.' + entry.variant_test_name if entry.variant_test_name else ''}.{short}"
    for at in range(0, len(samples), args.group):
        group = samples[at : at + args.group]
        name = base if len(samples) <= args.group else f"{base}.{at}"
        try:
            write(args.out, name, entry, group, args.core)
            yield 1, None
            continue
        except Exception as error:
            if len(group) == 1:
                yield 0, f"{name}: {cases.reason(error)}"
                continue
        for i, sample in enumerate(group):
            name = f"{base}.{at + i}"
            try:
                write(args.out, name, entry, [sample], args.core)
                yield 1, None
            except Exception as error:
                yield 0, f"{name}: {cases.reason(error)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--dtypes", default="f32,bf16,i64,bool")
    parser.add_argument("--samples", type=int, default=12)
    parser.add_argument("--group", type=int, default=6)
    parser.add_argument("--core", action="store_true")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db

    # Samples are drawn with this seed, whatever the state of the generator.
    common_utils.SEED = args.seed or common_utils.SEED
    shard, shards = map(int, args.shard.split("/"))
    written = 0
    for i, entry in enumerate(op_db):
        if i % shards != shard or any(text in entry.name for text in LEFT_OUT):
            continue
        if args.only and entry.name not in args.only:
            continue
        for short in args.dtypes.split(","):
            dtype = NAMES[short]
            if dtype not in entry.dtypes:
                continue
            torch.manual_seed(args.seed)
            try:
                for n, reason in groups(args, entry, short, dtype):
                    written += n
                    if reason:
                        print("not exported:", reason, file=sys.stderr)
            except Exception as error:
                print(f"no samples: {entry.name} {short}: {type(error).__name__}: {error}", file=sys.stderr)
    print(f"{written} written")


if __name__ == "__main__":
    main()
