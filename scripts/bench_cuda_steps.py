#!/usr/bin/env python3
"""The CUDA kernels of crates/mlx/kernels/cuda as whole decoding steps, without the engine: five launches a layer.

Compares two layers of each shape with MLX's own operations, then measures 128 steps that follow one another on the device, each
submitted before the token of the one before is read. Needs mlx with CUDA. Weights are random.
"""

import math
import pathlib
import time

import mlx.core as mx
import mlx.nn as nn

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "crates/mlx/kernels/cuda"
GEMV, ATTEND = ("".join((FOLDER / f"{name}.cuh").read_text() for name in ("common", other)) for other in ("gemv", "attend"))
WARPS, SPLITS, SPLIT_ROWS, CAPACITY, BF16 = 8, 16, 128, 2304, "__nv_bfloat16"
SHAPES = {
    "Llama-3.2-1B": dict(hidden=2048, inner=8192, layers=16, dim=64, norms=False, vocab=128256, base=5e5, eps=1e-5, tied=True),
    "Qwen3-8B": dict(hidden=4096, inner=12288, layers=36, dim=128, norms=True, vocab=151936, base=1e6, eps=1e-6, tied=False),
}
HEADS, KV_HEADS = 32, 8
kernels = {}


def linear(x, matrices, bits, norm=None, eps=0.0, residual=None, gated=False):
    k, rows = x.shape[-1], [m[0].shape[0] for m in matrices]
    results = rows[:1] if gated else rows
    tile = 4 if gated or sum(rows) >= 16384 else 2
    inputs = [x] + [a for a in (norm, residual) if a is not None] + [a for m in matrices for a in m]
    key = (bits, tile, k, tuple(rows), norm is not None, residual is not None, gated)
    if key not in kernels:
        names = ["x"] + ["norm"] * (norm is not None) + ["residual"] * (residual is not None)
        parts = []
        for i, n in enumerate(rows):
            names += [f"w{i}"] if bits == 16 else [f"w{i}", f"s{i}", f"b{i}"]
            scales = "nullptr,nullptr" if bits == 16 else f"s{i},b{i}"
            parts.append(f"{{w{i},{scales},y{0 if gated else i},{n}}}")
        parts += ["{nullptr,nullptr,nullptr,nullptr,0}"] * (3 - len(rows))
        body = (
            f"gemv<{BF16},{bits},64,{tile},{WARPS},{str(gated).lower()}>(x,{'nullptr' if norm is None else 'norm'},{eps}f,"
            f"{'nullptr' if residual is None else 'residual'},{k},{','.join(parts)});")
        codes = 128 // bits
        passes = -(-(k // codes) // 32)
        shared = passes * 32 * codes * 4 + (0 if bits == 16 else passes * 256)
        kernels[key] = mx.fast.cuda_kernel(
            name=f"gemv_{bits}_{tile}_{shared}", input_names=names, output_names=[f"y{i}" for i in range(len(results))],
            source=body, header=GEMV, shared_memory=shared)
    blocks = min(-(-sum(results) // (tile // (2 if gated else 1) * WARPS)), 1056)
    return kernels[key](
        inputs=inputs, output_shapes=[(1, n) for n in results], output_dtypes=[x.dtype] * len(results),
        grid=(blocks * WARPS * 32, 1, 1), threadgroup=(WARPS * 32, 1, 1))


def attend(c, q, k, v, norms, keys, values, position, tickets):
    dim, group = c["dim"], HEADS // KV_HEADS
    if ("attend", dim) not in kernels:
        body = (
            f"extern __shared__ float shared[];Attend<{BF16}> s{{q,k,v,{'q_norm,k_norm' if norms else 'nullptr,nullptr'},nullptr,"
            f"const_cast<{BF16}*>(keys),const_cast<{BF16}*>(values),parts,out,const_cast<unsigned*>(tickets),{KV_HEADS},{CAPACITY},"
            f"0,min({SPLITS},1+*position/{SPLIT_ROWS}),*position,{dim ** -0.5}f,{math.log2(c['base'])}f,{c['eps']}f}};"
            f"Attention<{BF16},{dim},{group},{WARPS}>(s,shared).run([]{{}});")
        names = ["q", "k", "v"] + ["q_norm", "k_norm"] * bool(norms) + ["keys", "values", "position", "tickets"]
        kernels["attend", dim] = mx.fast.cuda_kernel(
            name=f"attend_{dim}", input_names=names, output_names=["out", "parts"], source=body, header=ATTEND,
            shared_memory=(group * dim + dim + 2 * WARPS * group + WARPS * group * dim) * 4)
    return kernels["attend", dim](
        inputs=[q, k, v, *norms, keys, values, position, tickets],
        output_shapes=[(1, HEADS * dim), (HEADS * SPLITS * (dim + 2),)], output_dtypes=[q.dtype, mx.float32],
        grid=(KV_HEADS * SPLITS * WARPS * 32, 1, 1), threadgroup=(WARPS * 32, 1, 1))[0]


class Model:
    def __init__(self, c, bits, layers):
        self.c, self.bits, hidden, dim = c, bits, c["hidden"], c["dim"]

        def matrix(rows, columns):
            w = (mx.random.normal((rows, columns)) * columns**-0.5).astype(mx.bfloat16)
            return (w,) if bits == 16 else mx.quantize(w, group_size=64, bits=bits)

        def norm(n):
            return (1 + 0.1 * mx.random.normal((n,))).astype(mx.bfloat16)

        def cache():
            return mx.random.normal((1, KV_HEADS, CAPACITY, dim)).astype(mx.bfloat16)

        self.layers = []
        for _ in range(layers):
            qkv = [matrix(n * dim, hidden) for n in (HEADS, KV_HEADS, KV_HEADS)]
            layer = dict(
                first=norm(hidden), second=norm(hidden), qkv=qkv, o=matrix(hidden, HEADS * dim), up=matrix(c["inner"], hidden),
                gate=matrix(c["inner"], hidden), down=matrix(hidden, c["inner"]), keys=cache(), values=cache(),
                norms=[norm(dim), norm(dim)] if c["norms"] else [])
            mx.eval(layer)
            self.layers.append(layer)
        self.table = matrix(c["vocab"], hidden)
        self.head = self.table if c["tied"] else matrix(c["vocab"], hidden)
        self.last, self.tickets = norm(hidden), mx.zeros((KV_HEADS,), mx.uint32)
        mx.eval(self.table, self.head, self.last, self.tickets)

    def embed(self, token):
        rows = [a[token] for a in self.table]
        return rows[0] if self.bits == 16 else mx.dequantize(*rows, group_size=64, bits=self.bits)

    def fused(self, token, position):
        c, bits, x = self.c, self.bits, self.embed(token)
        for l in self.layers:
            q, k, v = linear(x, l["qkv"], bits, l["first"], c["eps"])
            a = attend(c, q, k, v, l["norms"], l["keys"], l["values"], position, self.tickets)
            x = linear(a, [l["o"]], bits, residual=x)[0]
            h = linear(x, [l["gate"], l["up"]], bits, l["second"], c["eps"], gated=True)[0]
            x = linear(h, [l["down"]], bits, residual=x)[0]
        return linear(x, [self.head], bits, self.last, c["eps"])[0]

    def plain(self, token, position):
        c, x, dim = self.c, self.embed(token), self.c["dim"]

        def times(x, m):
            return x @ m[0].T if self.bits == 16 else mx.quantized_matmul(x, *m, group_size=64, bits=self.bits)

        for l in self.layers:
            h = mx.fast.rms_norm(x, l["first"], c["eps"])
            q, k, v = (times(h, m).reshape(1, 1, -1, dim) for m in l["qkv"])
            if l["norms"]:
                q, k = (mx.fast.rms_norm(t, w, c["eps"]) for t, w in zip((q, k), l["norms"]))
            q, k, v = (t.transpose(0, 2, 1, 3) for t in (q, k, v))
            q, k = (mx.fast.rope(t, dim, traditional=False, base=c["base"], scale=1.0, offset=position) for t in (q, k))
            k, v = (mx.concatenate([l[n][:, :, :position], t], 2) for n, t in (("keys", k), ("values", v)))
            a = mx.fast.scaled_dot_product_attention(q, k, v, scale=dim**-0.5).transpose(0, 2, 1, 3).reshape(1, -1)
            x = x + times(a, l["o"])
            h = mx.fast.rms_norm(x, l["second"], c["eps"])
            x = x + times(nn.silu(times(h, l["gate"])) * times(h, l["up"]), l["down"])
        return times(mx.fast.rms_norm(x, self.last, c["eps"]), self.head)


def error(c, bits):
    model, worst = Model(c, bits, 2), 0.0
    for position in (0, 37, 2047):
        expected = model.plain(mx.array([123]), position).astype(mx.float32)
        mx.eval(expected)
        found = model.fused(mx.array([123]), mx.array([position], mx.int32)).astype(mx.float32)
        worst = max(worst, (mx.linalg.norm(found - expected) / mx.linalg.norm(expected)).item())
    return worst


def rate(c, bits, context, steps=128):
    model = Model(c, bits, c["layers"])
    step = mx.compile(lambda token, position: (mx.argmax(model.fused(token, position), axis=-1), position + 1))
    for count in (8, steps):
        token, position, before = mx.array([1]), mx.array([context], mx.int32), None
        mx.eval(token, position)
        begin = time.perf_counter()
        for _ in range(count):
            token, position = step(token, position)
            mx.async_eval(token, position)
            if before is not None:
                before.item()
            before = token
        before.item()
    return steps / (time.perf_counter() - begin)


for name, c in SHAPES.items():
    for bits in (4, 16):
        print(f"{name:12} {bits:2} bits: relative difference {error(c, bits):.1e}, {rate(c, bits, 2048):.0f} tokens/s at 2048", flush=True)
        mx.clear_cache()
