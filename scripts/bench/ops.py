#!/usr/bin/env python3
"""Times the kernels and PyTorch on the same shapes, alternately, and prints a Markdown table of both with their ratio.

Usage: python scripts/bench/ops.py [--threads N] [--rounds N] [FILTER …]   (needs torch; builds the `ops` bench first)
A FILTER is part of a family's or case's name. Each round takes the best of many calls on either side; the table holds the
best of the rounds, because whatever else runs on the machine only ever adds time. A ratio above 1 means that Flambeau takes less
time.
"""
import argparse
import json
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
SPAN = 0.4


def numbers(*shape, dtype="f32"):
    return torch.rand(*shape).mul(2).sub(1).to(TYPES[dtype])


def linear(dtype, size):
    m, k, n = map(int, size.split("x"))
    x, w = numbers(m, k, dtype=dtype), numbers(n, k, dtype=dtype)
    return lambda: F.linear(x, w)


def gated(dtype, size):
    m, k, n = map(int, size.split("x"))
    x, gate, up = numbers(m, k, dtype=dtype), numbers(n, k, dtype=dtype), numbers(n, k, dtype=dtype)
    return lambda: F.silu(F.linear(x, gate)) * F.linear(x, up)


def matmul(dtype, size):
    b, m, k, n = map(int, size.split("x"))
    x, w = numbers(b, m, k, dtype=dtype), numbers(b, k, n, dtype=dtype)
    return lambda: torch.matmul(x, w)


def attention(dtype, heads, q, k, d):
    (hq, hkv), tq, tk, d = map(int, heads.split("/")), int(q[1:]), int(k[1:]), int(d[1:])
    query, key, value = (numbers(1, h, t, d, dtype=dtype) for h, t in ((hq, tq), (hkv, tk), (hkv, tk)))
    causal = tq > 1 and hq != hkv
    return lambda: F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=0.125, enable_gqa=hq != hkv)


def rows(name):
    def make(dtype, size):
        n, width = map(int, size.split("x"))
        x, w = numbers(n, width, dtype=dtype), numbers(width, dtype=dtype)
        return {
            "rms_norm": lambda: F.rms_norm(x, (width,), w, 1e-5),
            "layer_norm": lambda: F.layer_norm(x, (width,), w, w, 1e-5),
            "softmax": lambda: F.softmax(x, -1),
            "sum": lambda: x.sum(-1),
            "max": lambda: x.amax(-1),
        }[name]

    return make


def rope(dtype, size):
    h, t, d = map(int, size.split("x"))
    x = numbers(1, h, t, d, dtype=dtype)
    angles = torch.outer(torch.arange(t).float(), 1e4 ** (-torch.arange(0, d, 2).float() / d))
    angles = torch.cat((angles, angles), -1)
    cos, sin = angles.cos().to(TYPES[dtype]), angles.sin().to(TYPES[dtype])

    def run():
        half = torch.cat((-x[..., d // 2 :], x[..., : d // 2]), -1)
        return x * cos + half * sin

    return run


def elements(name):
    def make(*words):
        dtype = words[-1]
        x, z, row = numbers(512, 1536, dtype=dtype), numbers(512, 1536, dtype=dtype), numbers(1536, dtype=dtype)
        return {
            "exp": lambda: x.exp(),
            "tanh": lambda: x.tanh(),
            "silu": lambda: F.silu(x),
            "gelu": lambda: F.gelu(x),
            "gelu_tanh": lambda: F.gelu(x, approximate="tanh"),
            "sin": lambda: x.sin(),
            "add": lambda: x + z,
            "mul": lambda: x * row,
            "transpose": lambda: x.t().contiguous(),
            "sum": lambda: x.sum(0),
        }[name]

    return make


def cast(source, target):
    x = numbers(512 * 1536, dtype=source)
    return lambda: x.to(TYPES[target])


def order(name):
    def make(dtype, size):
        x = numbers(*map(int, size.split("x")), dtype=dtype)
        return (lambda: torch.sort(x)) if name == "sort" else (lambda: torch.cumsum(x, -1))

    return make


def conv(x, w, **more):
    x, w = numbers(*x), numbers(*w)
    transposed = more.pop("transposed", False)
    call = {3: (F.conv1d, F.conv_transpose1d), 4: (F.conv2d, F.conv_transpose2d)}[x.dim()][transposed]
    if x.dim() == 4:
        x, w = x.to(memory_format=torch.channels_last), w.to(memory_format=torch.channels_last)
    return lambda: call(x, w, **more)


CONVOLUTIONS = {
    "conv1d 80-384 k3 3000": lambda: conv((1, 80, 3000), (384, 80, 3), padding=1),
    "conv2d 64-64 k3 56": lambda: conv((1, 64, 56, 56), (64, 64, 3, 3), padding=1),
    "conv2d 3-32 k3 s2 224": lambda: conv((1, 3, 224, 224), (32, 3, 3, 3), padding=1, stride=2),
    "conv2d pointwise 64-128 56": lambda: conv((1, 64, 56, 56), (128, 64, 1, 1)),
    "conv2d depthwise 32 k3 112": lambda: conv((1, 32, 112, 112), (32, 1, 3, 3), padding=1, groups=32),
    "conv1d depthwise 512 k31 400": lambda: conv((1, 512, 400), (512, 1, 31), padding=15, groups=512),
    "conv2d transposed 64-32 k4 s2 28": lambda: conv(
        (1, 64, 28, 28), (64, 32, 4, 4), padding=1, stride=2, transposed=True
    ),
}


def make(name):
    """PyTorch's side of a case."""
    if name in CONVOLUTIONS:
        return CONVOLUTIONS[name]()
    kind, *words = name.split(" ")
    if kind in ("sum", "max") and words[0] != "rows" or kind in ("rms_norm", "layer_norm", "softmax"):
        return rows(kind)(*words)
    table = {"linear": linear, "gated": gated, "matmul": matmul, "attention": attention, "rope": rope, "cast": cast}
    table |= {"sort": order("sort"), "cumsum": order("cumsum")}
    return table.get(kind, elements(kind))(*words)


def seconds(run):
    with torch.inference_mode():
        run()
        best, begin = float("inf"), time.perf_counter()
        while time.perf_counter() - begin < SPAN:
            start = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - start)
    return best


def executable():
    command = ["cargo", "bench", "-p", "flambeau-kernels", "--bench", "ops", "--no-run", "--message-format=json"]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == "ops":
            return message["executable"]
    raise SystemExit("cargo built no `ops` bench")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("filters", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    program = executable()
    ours, theirs, families = {}, {}, {}
    for _ in range(options.rounds):
        command = [program, str(options.threads), *options.filters]
        for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
            family, name, microseconds = line.split("\t")
            families[name] = family
            ours.setdefault(name, []).append(float(microseconds))
        for name in families:
            theirs.setdefault(name, []).append(seconds(make(name)) * 1e6)
    print("| family | case | Flambeau, µs | PyTorch, µs | ratio |\n|---|---|---:|---:|---:|")
    ratios = []
    for name, family in families.items():
        a, b = min(ours[name]), min(theirs[name])
        ratios.append(b / a)
        print(f"| {family} | {name} | {a:.1f} | {b:.1f} | {b / a:.2f} |")
    print(f"\nMedian ratio {statistics.median(ratios):.2f}, lowest {min(ratios):.2f}, over {len(ratios)} cases.")


if __name__ == "__main__":
    main()
