#!/usr/bin/env python3
"""Exports small modules as case folders: dynamic sizes, writes, control flow, recurrences, resampling, inputs of every kind.

    module_cases.py OUT [--only TEXT] [--core]
"""
import argparse
import copy
import itertools
import sys
import traceback

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import cases

CASES = []


class Fn(nn.Module):
    """A function as a module."""

    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, *args, **kwargs):
        return self.fn(*args, **kwargs)


def case(name, module, *args, dyn=None, test=None, kwargs=None, **more):
    """`dyn` names dynamic axes by input: {0: {1: (lo, hi)}}; equal bounds objects mean one symbol."""
    if not isinstance(module, nn.Module):
        module = Fn(module)
    CASES.append((name, module, args, kwargs, dyn, test, more))


def randn(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def ints(hi, *shape, lo=0, dtype=torch.int64):
    return torch.randint(lo, hi, shape, dtype=dtype)


FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
ALL = dict(FLOATS, i32=torch.int32, i64=torch.int64, u8=torch.uint8, bool=torch.bool)


def some(dtype, *shape):
    if dtype == torch.bool:
        return torch.rand(*shape) > 0.5
    if dtype.is_floating_point:
        return randn(*shape, dtype=dtype)
    return ints(9, *shape, dtype=dtype) if dtype == torch.uint8 else ints(9, *shape, lo=-9, dtype=dtype)


N, T = Dim("n", min=1, max=16), Dim("t", min=3, max=33)


def dynamic_elementwise_and_shape():
    one = {0: {0: N}}
    two = {0: {0: N, 1: T}}
    both = {0: {0: N}, 1: {0: N}}
    x, other = randn(4, 6), randn(9, 11)
    fns = {
        "flatten": lambda x: x.flatten(), "view_minus": lambda x: x.view(-1), "size_add": lambda x: x + x.shape[0],
        "mean_keep": lambda x: x.mean(1, keepdim=True), "sum_all": lambda x: x.sum(), "softmax": lambda x: x.softmax(-1),
        "cumsum": lambda x: x.cumsum(1), "arange": lambda x: torch.arange(x.shape[1]) + x.long(), "tril": lambda x: x.tril(-1),
        "ones_like_mask": lambda x: torch.ones(x.shape[1], x.shape[1]).tril(), "t": lambda x: x.t().contiguous(),
        "repeat": lambda x: x.repeat(2, 3), "expand": lambda x: x[:, None].expand(-1, 3, -1), "stack": lambda x: torch.stack([x, x * 2], 1),
        "cat_self": lambda x: torch.cat([x, x.flip(1)], 1), "pad": lambda x: F.pad(x, (1, 2)), "roll": lambda x: x.roll(2, 1),
        "slice_half": lambda x: x[:, : x.shape[1] // 2], "slice_from": lambda x: x[:, 1:], "slice_step": lambda x: x[:, ::2],
        "slice_last": lambda x: x[:, -2:], "select_last": lambda x: x[:, -1], "argmax": lambda x: x.argmax(1), "sort": lambda x: x.sort(1),
        "topk": lambda x: x.topk(2, 1), "std": lambda x: x.std(1), "amax": lambda x: x.amax((0, 1)), "logsumexp": lambda x: x.logsumexp(1),
        "norm": lambda x: x.norm(dim=1), "div_size": lambda x: x / x.shape[1], "full": lambda x: torch.full((x.shape[0], 3), 2.5),
        "unflatten": lambda x: x.repeat(1, 2).unflatten(1, (2, -1)), "einsum": lambda x: torch.einsum("bi,bj->bij", x, x),
        "outer": lambda x: x[:, :, None] * x[:, None, :], "where": lambda x: torch.where(x > 0, x, x.shape[0]), "split": lambda x: x.repeat(1, 2).chunk(2, 1),
        "unbind": lambda x: torch.stack([x, x + 1], 0).unbind(0), "masked_fill": lambda x: x.masked_fill(x < 0, float("-inf")),
        "cumprod": lambda x: x.cumprod(1), "diff": lambda x: x.diff(dim=1), "index_select": lambda x: x.index_select(1, torch.tensor([0, 1, 1])),
        "gather": lambda x: x.gather(1, torch.zeros(x.shape[0], 2, dtype=torch.long)), "eye": lambda x: torch.eye(x.shape[1]) + x[:1],
        "linspace_free": lambda x: x * torch.linspace(0, 1, 5)[:1], "sizes_out": lambda x: (x.sum(), x.shape[0], x.shape[1] * 2 + 1),
        "unfold": lambda x: x.unfold(1, 2, 1), "max_dim": lambda x: x.max(1), "median": lambda x: x.median(1), "var_mean": lambda x: torch.var_mean(x, 1),
        "one_hot": lambda x: F.one_hot((x > 0).long(), 3), "triu_mask": lambda x: torch.triu(torch.full((x.shape[1], x.shape[1]), float("-inf")), 1),
        "reshape_mix": lambda x: x.reshape(x.shape[1], x.shape[0]), "repeat_interleave": lambda x: x.repeat_interleave(3, 1), "clamp": lambda x: x.clamp(max=x.shape[0]),
        "count": lambda x: (x > 0).sum(1), "any": lambda x: (x > 1).any(1), "bucketize": lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])),
        "pos": lambda x: torch.arange(x.shape[1], dtype=torch.float32)[None] / x.shape[1] * x, "logical": lambda x: (x > 0) & (x < x.shape[1]),
        "floordiv": lambda x: torch.arange(x.shape[1] // 2 + 1), "mod": lambda x: torch.zeros(x.shape[1] % 3 + 1), "max_size": lambda x: torch.ones(max(x.shape[0], 3)),
        "flip": lambda x: x.flip(0, 1), "tile": lambda x: x.tile(2), "movedim": lambda x: x[None].movedim(0, -1), "squeeze": lambda x: x[None].squeeze(0), "glu": lambda x: F.glu(x.repeat(1, 2), 1),
    }
    for name, fn in fns.items():
        dims = one if name in ("linspace_free",) else two
        case(f"dyn.{name}", fn, x, dyn=dims, test=((other,), {}) if dims is two else ((randn(7, 6),), {}))
    case("dyn.add_two", lambda a, b: a + b, randn(4, 3), randn(4, 3), dyn=both, test=((randn(9, 3), randn(9, 3)), {}))
    case("dyn.cat_two", lambda a, b: torch.cat([a, b]), randn(4, 3), randn(5, 3), dyn={0: {0: N}, 1: {0: Dim("m", min=1, max=16)}}, test=((randn(9, 3), randn(2, 3)), {}))
    case("dyn.matmul", lambda a, b: a @ b, randn(4, 6), randn(6, 5), dyn={0: {0: N, 1: T}, 1: {0: T}}, test=((randn(7, 9), randn(9, 5)), {}))
    case("dyn.bmm", lambda a, b: a @ b.transpose(-1, -2), randn(2, 4, 6), randn(2, 5, 6), dyn={0: {0: N, 1: T}, 1: {0: N}}, test=((randn(3, 7, 6), randn(3, 5, 6)), {}))
    case("dyn.symint_input", lambda x, n: x[:n] * n, randn(8, 2), 3, dyn={0: None, 1: Dim.AUTO}, test=((randn(8, 2), 5), {}))
    case("dyn.embedding", nn.Embedding(20, 8), ints(20, 2, 5), dyn={0: {0: N, 1: T}}, test=((ints(20, 3, 9),), {}))


def dynamic_layers():
    seq = {0: {0: N, 1: T}}
    image = {0: {0: N}}
    for name, dtype in FLOATS.items():
        x = randn(2, 5, 8, dtype=dtype)
        other = randn(3, 9, 8, dtype=dtype)
        layers = {
            "linear": nn.Linear(8, 4), "layer_norm": nn.LayerNorm(8), "gelu_mlp": nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)),
            "mha": Attention(8, 2), "encoder": nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu"),
            "rms": nn.RMSNorm(8), "gru": nn.GRU(8, 6, batch_first=True), "lstm": nn.LSTM(8, 6, batch_first=True),
        }
        for layer, module in layers.items():
            module = copy.deepcopy(module)
            if layer in ("gru", "lstm"):
                dims = {0: {0: N}}
                case(f"dyn.layer.{layer}.{name}", module.to(dtype), x, dyn=dims, test=((randn(3, 5, 8, dtype=dtype),), {}))
                continue
            case(f"dyn.layer.{layer}.{name}", module.to(dtype), x, dyn=seq, test=((other,), {}))
        conv = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)).to(dtype)
        case(f"dyn.layer.conv.{name}", conv, randn(2, 3, 8, 8, dtype=dtype), dyn=image, test=((randn(3, 3, 8, 8, dtype=dtype),), {}))
    H = Dim("h", min=2, max=16)
    case("dyn.conv_size", nn.Conv2d(3, 4, 3, padding=1), randn(1, 3, 8, 8), dyn={0: {2: 2 * H, 3: 2 * H}}, test=((randn(1, 3, 12, 12),), {}))
    case("dyn.conv1d_stride", nn.Conv1d(3, 4, 3, stride=2, padding=1), randn(1, 3, 8), dyn={0: {2: 2 * H}}, test=((randn(1, 3, 14),), {}))
    case("dyn.pool_size", nn.AvgPool2d(2), randn(1, 3, 8, 8), dyn={0: {2: 2 * H, 3: 2 * H}}, test=((randn(1, 3, 12, 12),), {}))
    case("dyn.adaptive_global", nn.AdaptiveAvgPool2d(1), randn(1, 3, 8, 8), dyn={0: {2: 2 * H, 3: 2 * H}}, test=((randn(1, 3, 12, 12),), {}))
    case("dyn.upsample_nearest", lambda x: F.interpolate(x, scale_factor=2), randn(1, 3, 8, 8), dyn={0: {2: 2 * H, 3: 2 * H}}, test=((randn(1, 3, 12, 12),), {}))
    case("dyn.upsample_bilinear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), randn(1, 3, 8, 8), dyn={0: {2: 2 * H, 3: 2 * H}}, test=((randn(1, 3, 12, 12),), {}))
    case("dyn.group_norm", nn.GroupNorm(2, 4), randn(2, 4, 5, 5), dyn={0: {0: N, 2: T}}, test=((randn(3, 4, 9, 5),), {}))
    case("dyn.pixel_shuffle", nn.PixelShuffle(2), randn(2, 8, 5, 5), dyn={0: {0: N, 2: T}}, test=((randn(3, 8, 9, 5),), {}))
    case("dyn.reflect_pad", nn.ReflectionPad2d(1), randn(2, 3, 5, 5), dyn={0: {0: N}}, test=((randn(3, 3, 5, 5),), {}))
    case("dyn.conv_transpose", nn.ConvTranspose2d(3, 4, 4, stride=2, padding=1), randn(2, 3, 5, 5), dyn={0: {0: N, 2: T}}, test=((randn(3, 3, 9, 5),), {}))


class Attention(nn.Module):
    def __init__(self, width, heads, causal=True):
        super().__init__()
        self.qkv, self.out, self.heads, self.causal = nn.Linear(width, 3 * width), nn.Linear(width, width), heads, causal

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


def attention_masks():
    for name, dtype in FLOATS.items():
        q, k, v = (randn(2, 4, 5, 8, dtype=dtype) for _ in range(3))
        k2, v2 = (randn(2, 2, 5, 8, dtype=dtype) for _ in range(2))
        keep = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
        keep[0, :, 2] = False
        keep[1, :, :, 3:] = False
        keep[1, :, 4] = False
        bias = torch.zeros(2, 1, 5, 5).masked_fill(~keep, float("-inf")).to(dtype)
        sdpa = F.scaled_dot_product_attention
        case(f"sdpa.bool_rows.{name}", lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), q, k, v, keep)
        case(f"sdpa.float_rows.{name}", lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), q, k, v, bias)
        case(f"sdpa.softmax_rows.{name}", lambda q, k, m: torch.nan_to_num((q @ k.transpose(-1, -2) + m).softmax(-1)), q, k, bias)
        case(f"sdpa.gqa.{name}", lambda q, k, v: sdpa(q, k, v, is_causal=True, enable_gqa=True), q, k2, v2)
        case(f"sdpa.repeat.{name}", lambda q, k, v: sdpa(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)), q, k2, v2)
        case(f"sdpa.cross_causal.{name}", lambda q, k, v: sdpa(q[:, :, :3], k, v, is_causal=True), q, k, v)
        case(f"sdpa.longer_query.{name}", lambda q, k, v: sdpa(q, k[:, :, :3], v[:, :, :3], is_causal=True), q, k, v)
        case(f"sdpa.scale.{name}", lambda q, k, v: sdpa(q, k, v, scale=0.5), q, k, v)
        case(f"sdpa.rank3.{name}", lambda q, k, v: sdpa(q[0], k[0], v[0], is_causal=True), q, k, v)
        case(f"sdpa.rank2.{name}", lambda q, k, v: sdpa(q[0, 0], k[0, 0], v[0, 0]), q, k, v)
        case(f"sdpa.rank5.{name}", lambda q, k, v: sdpa(q[None], k[None], v[None]), q, k, v)
        case(f"sdpa.mask2d.{name}", lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), q, k, v, keep[0, 0])
        case(f"sdpa.wide_value.{name}", lambda q, k, v: sdpa(q, k, torch.cat([v, v], -1)), q, k, v)
        case(f"sdpa.batch_bcast.{name}", lambda q, k, v: sdpa(q, k[:1], v[:1]), q, k, v)
        padding = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], dtype=torch.bool)
        mha = nn.MultiheadAttention(8, 2, batch_first=True).to(dtype).eval()
        x = randn(2, 5, 8, dtype=dtype)
        case(f"mha.padding.{name}", lambda x, p, m=mha: m(x, x, x, key_padding_mask=p, need_weights=False)[0][:1], x, padding)
        case(f"mha.weights.{name}", lambda x, m=mha: m(x, x, x, need_weights=True), x)
        case(f"mha.attn_mask.{name}", lambda x, a, m=mha: m(x, x, x, attn_mask=a, need_weights=False)[0], x, torch.ones(5, 5, dtype=torch.bool).triu(1))


class Buffered(nn.Module):
    def __init__(self, fn, **buffers):
        super().__init__()
        self.fn = fn
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, *args):
        return self.fn(self, *args)


def writes():
    def cache_slice(m, x, i):
        n = i.item()
        torch._check(n >= 0)
        torch._check(n + x.shape[1] <= 8)
        m.c.narrow(1, n, x.shape[1]).copy_(x)
        return m.c * 1

    def add_one(m, x):
        m.c.add_(1)
        return x + m.c

    def row(m, x):
        m.c[2].copy_(x)
        return m.c + 0

    def block(m, x):
        m.c[1:3, ::2] = x
        return m.c.clone()

    def transposed(m, x):
        m.c.t()[1] += x
        return m.c * 2

    def index_copy(m, x, i):
        m.c.index_copy_(0, i, x)
        return m.c.sum(0)

    def index_put(m, x, i):
        m.c[i] = x
        return m.c.clone()

    def swap(m, x):
        old = m.c.clone()
        m.c.copy_(x)
        m.d.copy_(old)
        return m.c + m.d

    def masked(m, x):
        m.c.masked_fill_(x > 0, 7.0)
        return m.c.clone()

    def later_view(m, x):
        view = m.c.view(-1)
        m.c.mul_(2)
        return view[:4] + x[0]

    def zero(m, x):
        m.c.zero_()
        m.c[0] = x[0]
        return m.c + 0

    c = lambda: torch.arange(24.0).reshape(4, 6)
    case("write.add", Buffered(add_one, c=c()), randn(4, 6))
    case("write.row", Buffered(row, c=c()), randn(6))
    case("write.block", Buffered(block, c=c()), randn(2, 3))
    case("write.transposed", Buffered(transposed, c=c()), randn(4))
    case("write.index_copy", Buffered(index_copy, c=c()), randn(2, 6), torch.tensor([3, 1]))
    case("write.index_put", Buffered(index_put, c=c()), randn(2, 6), torch.tensor([3, 1]))
    case("write.swap", Buffered(swap, c=c(), d=c() * 2), randn(4, 6))
    case("write.masked", Buffered(masked, c=c()), randn(4, 6))
    case("write.later_view", Buffered(later_view, c=c()), randn(4, 6))
    case("write.zero", Buffered(zero, c=c()), randn(4, 6))
    case("write.cache", Buffered(cache_slice, c=torch.zeros(1, 8, 4)), randn(1, 3, 4), torch.tensor(2))
    case("write.counter_int", Buffered(lambda m, x: (m.n.add_(2), x * m.n)[1], n=torch.tensor(3)), randn(3))
    case("write.bool_buffer", Buffered(lambda m, x: (m.b.logical_or_(x > 0), m.b.float())[1], b=torch.tensor([True, False, False])), randn(3))
    case("write.local", lambda x: torch.zeros(3, 4).index_add_(0, torch.tensor([0, 2, 0]), x), randn(3, 4))
    case("write.local_slice", lambda x: (lambda y: (y[:, 1:].add_(x), y)[1])(torch.ones(3, 5)), randn(3, 4))
    case("write.relu_", lambda x: (x * 1).relu_(), randn(3, 4))
    case("write.chain", lambda x: (x * 1).add_(1).mul_(2).sub_(x).div_(3).clamp_(-1, 1), randn(3, 4))
    case("write.fill_diag", lambda x: (x * 1).fill_diagonal_(5.0), randn(4, 4))
    case("write.scatter_", lambda x, i: torch.zeros(3, 5).scatter_(1, i, x), randn(3, 2), torch.tensor([[0, 4], [1, 2], [3, 0]]))
    case("write.setitem_bool", lambda x: (lambda y: (y.__setitem__(y > 0, 0.0), y)[1])(x * 1), randn(3, 4))
    case("write.setitem_none", lambda x: (lambda y: (y.__setitem__((slice(None), None, 1), torch.ones(3, 1)), y)[1])(x * 1), randn(3, 4))
    case("write.unsqueeze_", lambda x: (x * 1).unsqueeze_(0).squeeze_(0).t_(), randn(3, 4))
    case("write.copy_cast", lambda x: torch.zeros(3, 4, dtype=torch.int64).copy_(x), randn(3, 4) * 5)
    case("write.diagonal", lambda x: (lambda y: (y.diagonal().add_(1), y)[1])(x * 1), randn(4, 4))
    case("write.input", lambda x, y: (x.add_(y), x * 2)[1], randn(3), randn(3))
    case("write.input_only", lambda x, y: (x.copy_(y), y + 1)[1], randn(3), randn(3))
    case("write.random_like_uninit", lambda x: torch.empty(3).copy_(x) + 1, randn(3))


def inputs_and_outputs():
    x, y = randn(3, 4), randn(3, 4)
    case("io.dict", lambda d: {"sum": d["a"] + d["b"][0], "rest": [d["b"][1] * 2, (d["a"] - 1,)]}, {"a": x, "b": [y, y * 2]})
    case("io.kwargs", lambda a, *, b, c: a + b * c, x, kwargs={"b": y, "c": x * 2})
    case("io.none_output", lambda a: (a + 1, None, a * 2), x)
    case("io.none_input", lambda a, b=None: a + 1 if b is None else a + b, x, None)
    case("io.float_input", lambda a, s: a * s, x, 2.5)
    case("io.bool_input", lambda a, flag: a + 1 if flag else a - 1, x, True)
    case("io.str_input", lambda a, mode: F.gelu(a, approximate=mode), x, "tanh")
    case("io.same_twice", lambda a: (lambda s: (s, s))(a + 1), x)
    case("io.identity", lambda a, b: (a, b + 1), x, y)
    case("io.input_twice", lambda a: (a, a), x)
    case("io.views_of_one", lambda a: (lambda s: (s[0], s.t(), s.view(-1)))(a + 1), x)
    case("io.constant", lambda a: (a + 1, torch.arange(3), torch.tensor(2.5)), x)
    case("io.parameter", Buffered(lambda m, a: (m.c, a + m.c), c=torch.ones(4)), x)
    case("io.unused", lambda a, b: a * 2, x, y)
    case("io.scalar_out", lambda a: a.sum() > 0, x)
    case("io.empty_out", lambda a: a[:0], x)
    case("io.zero_size", lambda a: torch.cat([a, torch.ones(2, 4)]).sum(0), torch.zeros(0, 4))
    case("io.zero_mean", lambda a: (a.sum(0), a.prod(0), (a > 0).any(0), (a > 0).all(0)), torch.zeros(0, 4))
    case("io.zero_matmul", lambda a, b: a @ b, torch.zeros(3, 0), torch.zeros(0, 4))
    case("io.zero_linear", nn.Linear(4, 3), torch.zeros(0, 4))
    case("io.rank0", lambda a, b: (a + b, a * 2, a.view(1), a.reshape(1, 1), a.unsqueeze(0)), torch.tensor(1.5), torch.tensor(2.0))
    case("io.mixed", lambda i, f, b, u: (i + f, i * b, u + i, f.to(torch.float16) + b, u / 2, u // 2), ints(9, 4), randn(4), torch.tensor([True, False, True, False]), ints(9, 4, dtype=torch.uint8))
    case("io.int_div", lambda a, b: (a / b, a // b, a % b, torch.div(a, b, rounding_mode="trunc"), torch.fmod(a, b)), torch.tensor([7, -7, 7, -7]), torch.tensor([2, 2, -2, -2]))
    case("io.big_ints", lambda a: (a + 1, a * 3, a // 7, a % 1000, a > 2**40, a - 2**52), torch.tensor([2**53 + 1, -(2**60), 2**62 - 1, 5]))
    case("io.item", lambda a, b: a * b.item(), x, torch.tensor(3))
    case("io.item_float", lambda a, b: a * b.item(), x, torch.tensor(3.5))
    case("io.list_unpack", lambda xs: torch.stack(xs).sum(0), [x, y, x * 2])
    case("io.noop", lambda a: a, x)


def control_flow():
    from torch._higher_order_ops import scan, while_loop
    from torch._higher_order_ops.map import map as hop_map

    cond = torch.cond
    x = randn(3, 4)
    case("cond.sum", lambda a: cond(a.sum() > 0, lambda a: a + 1, lambda a: a * 2, (a,)), x)
    case("cond.sum_neg", lambda a: cond(a.sum() > 1000, lambda a: a + 1, lambda a: a * 2, (a,)), x)
    case("cond.flag", lambda f, a: cond(f, lambda a: a.sin(), lambda a: a.cos(), (a,)), torch.tensor(False), x)
    case("cond.several", lambda f, a: cond(f, lambda a: (a.sin(), a.sum(0)), lambda a: (a.cos(), a.mean(0)), (a,)), torch.tensor(True), x)
    case("cond.nested", lambda f, g, a: cond(f, lambda g, a: cond(g, lambda a: a + 1, lambda a: a + 2, (a,)), lambda g, a: a * 3, (g, a)), torch.tensor(True), torch.tensor(False), x)
    linear = nn.Linear(4, 4)
    case("cond.weights", Weighted(linear), torch.tensor(True), x)
    case("cond.shape", lambda a: cond(a.shape[0] > 5, lambda a: a + 1, lambda a: a - 1, (a,)), x, dyn={0: {0: N}}, test=((randn(9, 4),), {}))
    case("scan.cumsum", lambda a: scan(lambda c, v: (c + v, c * v), torch.zeros(4), a), x)
    case("scan.two", lambda a, b: scan(lambda c, v: ((c[0] + v[0], c[1] * 0.9 + v[1]), c[0] - v[1]), (torch.zeros(4), torch.ones(4)), (a, b)), x, randn(3, 4))
    case("scan.reverse", lambda a: scan(lambda c, v: (c + v, c + 1), torch.zeros(4), a, reverse=True), x)
    case("scan.dyn", lambda a: scan(lambda c, v: (c * 0.5 + v, c + v), torch.zeros(4), a), x, dyn={0: {0: N}}, test=((randn(9, 4),), {}))
    case("while.count", lambda a: while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, a * 1.5), (torch.tensor(0), a)), x)
    case("while.data", lambda a: while_loop(lambda a: a.sum() < 100, lambda a: (a * 2 + 1,), (a.abs(),)), x)
    case("map.rows", lambda a, b: hop_map(lambda r, b: (r * b).sum(), a, b), x, randn(4))
    case("map.matrix", lambda a: hop_map(lambda r: r @ r.t(), a), randn(3, 4, 2))


class Weighted(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, flag, x):
        return torch.cond(flag, lambda x: self.linear(x), lambda x: x * 2, (x,))


def recurrences():
    for kind, layers, both, bias, first in itertools.product(("LSTM", "GRU", "RNN"), (1, 2), (False, True), (True, False), (True, False)):
        module = getattr(nn, kind)(5, 6, num_layers=layers, bidirectional=both, bias=bias, batch_first=first)
        case(f"rnn.{kind}.{layers}.{'bi' if both else 'uni'}.{'bias' if bias else 'plain'}.{'bt' if first else 'tb'}", module, randn(3, 4, 5))
    case("rnn.relu", nn.RNN(5, 6, nonlinearity="relu"), randn(3, 4, 5))
    case("rnn.proj", nn.LSTM(5, 6, proj_size=3, num_layers=2, bidirectional=True), randn(3, 4, 5))
    case("rnn.unbatched", nn.LSTM(5, 6), randn(7, 5))
    case("rnn.gru_unbatched", nn.GRU(5, 6), randn(7, 5))
    for kind in ("LSTM", "GRU"):
        module = getattr(nn, kind)(5, 6, batch_first=True)
        h = randn(1, 2, 6)
        case(f"rnn.{kind}.state", lambda x, h, m=module, k=kind: m(x, (h, h * 2)) if k == "LSTM" else m(x, h), randn(2, 4, 5), h)
        for name, dtype in FLOATS.items():
            case(f"rnn.{kind}.200.{name}", getattr(nn, kind)(4, 6, batch_first=True).to(dtype), randn(1, 200, 4, dtype=dtype))
        case(f"rnn.{kind}.dyn_time", getattr(nn, kind)(4, 6, batch_first=True), randn(2, 5, 4), dyn={0: {0: N, 1: T}}, test=((randn(3, 9, 4),), {}))
    case("rnn.lstm_cell", lambda x, h, c, m=nn.LSTMCell(5, 6): m(x, (h, c)), randn(2, 5), randn(2, 6), randn(2, 6))
    case("rnn.gru_cell", lambda x, h, m=nn.GRUCell(5, 6): m(x, h), randn(2, 5), randn(2, 6))

    def packed(x, lengths, m=nn.LSTM(5, 6, batch_first=True)):
        y, _ = m(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=True))
        return nn.utils.rnn.pad_packed_sequence(y, batch_first=True, total_length=4)[0]

    case("rnn.packed", lambda x: packed(x, torch.tensor([4, 3, 1])), randn(3, 4, 5))


def resampling():
    one, two, three = randn(2, 3, 7), randn(2, 3, 5, 7), randn(1, 2, 4, 5, 3)
    for mode, x in (("nearest", one), ("nearest", two), ("nearest", three), ("nearest-exact", two), ("linear", one), ("bilinear", two), ("bicubic", two), ("trilinear", three), ("area", two)):
        rank = x.dim() - 2
        for target in ({"scale_factor": 2.0}, {"scale_factor": 1.7}, {"scale_factor": 0.6}, {"size": (9,) * rank}, {"size": (3,) * rank}, {"size": tuple(x.shape[2:])},
                       {"scale_factor": 1.7, "recompute_scale_factor": True}):
            aligned = (False, True) if mode in ("linear", "bilinear", "bicubic", "trilinear") else (None,)
            for align in aligned:
                name = f"resize.{mode}{rank}.{'_'.join(f'{k[:2]}{v}' for k, v in target.items())}.{align}".replace(" ", "").replace("(", "").replace(")", "").replace(",", "x")
                case(name, lambda x, m=mode, t=target, a=align: F.interpolate(x, mode=m, align_corners=a, **t), x)
    for mode in ("bilinear", "bicubic"):
        for size in ((9, 9), (3, 4)):
            case(f"resize.aa.{mode}.{size[0]}", lambda x, m=mode, s=size: F.interpolate(x, size=s, mode=m, antialias=True), two)
    for name, dtype in list(FLOATS.items())[1:]:
        for mode in ("nearest", "bilinear", "bicubic"):
            case(f"resize.{mode}.{name}", lambda x, m=mode: F.interpolate(x, scale_factor=2, mode=m), two.to(dtype))
    case("resize.u8", lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), ints(255, 1, 3, 4, 4, dtype=torch.uint8))
    for mode, pad, align in itertools.product(("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (False, True)):
        grid = torch.rand(2, 4, 6, 2) * 2.6 - 1.3
        case(f"grid.{mode}.{pad}.{align}", lambda x, g, m=mode, p=pad, a=align: F.grid_sample(x, g, mode=m, padding_mode=p, align_corners=a), two, grid)
    case("grid.3d", lambda x, g: F.grid_sample(x, g, align_corners=False), three, torch.rand(1, 2, 3, 4, 3) * 2.6 - 1.3)
    case("grid.affine", lambda x, t: F.grid_sample(x, F.affine_grid(t, (2, 3, 6, 5), align_corners=False), align_corners=False), two, randn(2, 2, 3))
    case("grid.affine_only", lambda t: F.affine_grid(t, (2, 3, 6, 5), align_corners=True), randn(2, 2, 3))
    case("resize.unfold", lambda x: F.unfold(x, (2, 3), dilation=(1, 2), padding=1, stride=(2, 1)), two)
    case("resize.fold", lambda x: F.fold(x, (6, 5), (2, 3), padding=1, stride=(2, 1)), randn(2, 12, 20))
    case("resize.fold_unfold", lambda x: F.fold(F.unfold(x, 3, padding=1), (5, 7), 3, padding=1), two)


def pooling_and_conv():
    two = randn(2, 4, 9, 11)
    for k, s, p, d, c in itertools.product((2, 3), (1, 2, 3), (0, 1), (1, 2), (False, True)):
        case(f"pool.max.{k}{s}{p}{d}{int(c)}", lambda x, a=(k, s, p, d, c): F.max_pool2d(x, a[0], a[1], a[2], a[3], a[4], return_indices=True), two)
    for k, s, p, c, i, o in itertools.product((2, 3), (1, 2), (0, 1), (False, True), (False, True), (None, 3)):
        case(f"pool.avg.{k}{s}{p}{int(c)}{int(i)}{o}", lambda x, a=(k, s, p, c, i, o): F.avg_pool2d(x, *a), two)
    for out in ((1, 1), (3, 2), (None, 5), (9, 11), (4, 4), (12, 13)):
        case(f"pool.adaptive_avg.{out}".replace(" ", ""), lambda x, o=out: F.adaptive_avg_pool2d(x, o), two)
        case(f"pool.adaptive_max.{out}".replace(" ", ""), lambda x, o=out: F.adaptive_max_pool2d(x, o, return_indices=True), two)
    case("pool.adaptive_max1", lambda x: F.adaptive_max_pool1d(x[:, :, 0], 4, return_indices=True), two)
    case("pool.adaptive_max3", lambda x: F.adaptive_max_pool3d(x, (2, 3, 2), return_indices=True), randn(1, 2, 4, 5, 6))
    case("pool.lp", nn.LPPool2d(2, 3, 2), two)
    case("pool.lp1", nn.LPPool1d(3, 2), two[:, :, 0])
    case("pool.unbatched", nn.MaxPool2d(2, return_indices=True), two[0])
    case("pool.int", lambda x: F.max_pool2d(x, 2), ints(99, 1, 2, 6, 6, dtype=torch.int64))
    case("pool.unpool", lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=(9, 11)), two)
    for k, s, p, d, g in itertools.product((1, 3), (1, 2), (0, 1, "same"), (1, 2), (1, 2, 4)):
        if p == "same" and s != 1:
            continue
        case(f"conv.{k}{s}{p}{d}{g}", nn.Conv2d(4, 8, k, s, p, d, g), two)
    for s, p, o, g, d in itertools.product((1, 2), (0, 1), (0, 1), (1, 2), (1, 2)):
        if o >= max(s, d):
            continue
        case(f"convt.{s}{p}{o}{g}{d}", nn.ConvTranspose2d(4, 6, 3, s, p, o, g, dilation=d), two)
    for mode in ("zeros", "reflect", "replicate", "circular"):
        case(f"conv.pad.{mode}", nn.Conv2d(4, 3, 3, padding=2, padding_mode=mode), two)
    case("conv.unbatched", nn.Conv2d(4, 3, 3), two[0])
    case("conv.1d_unbatched", nn.Conv1d(4, 3, 3), two[0, :, 0])
    case("conv.3d_group", nn.Conv3d(4, 8, 3, groups=2, padding=1), randn(1, 4, 5, 5, 5))
    case("convt.3d_group", nn.ConvTranspose3d(4, 8, 3, groups=2, stride=2), randn(1, 4, 3, 3, 3))
    case("convt.1d", nn.ConvTranspose1d(4, 8, 4, stride=3, padding=1, output_padding=2, groups=2), randn(2, 4, 7))
    case("conv.weight_input", lambda x, w, b: F.conv2d(x, w, b, padding=1), two, randn(3, 4, 3, 3), randn(3))
    case("conv.same_even", lambda x, w: F.conv2d(x, w, padding="same"), two, randn(3, 4, 2, 4))
    case("convt.weight_input", lambda x, w: F.conv_transpose2d(x, w, stride=2), two, randn(4, 3, 3, 3))
    for name, dtype in list(FLOATS.items())[1:]:
        case(f"conv.{name}", nn.Conv2d(4, 8, 3, padding=1).to(dtype), two.to(dtype))
        case(f"convt.{name}", nn.ConvTranspose2d(4, 8, 3, stride=2).to(dtype), two.to(dtype))


def indexing():
    x = randn(4, 5, 6)
    i, j = torch.tensor([0, 3, 1]), torch.tensor([2, 2, 4])
    ii = torch.tensor([[0, -1], [2, 1]])
    case("index.first", lambda x, i: x[i], x, i)
    case("index.negative", lambda x, i: x[i], x, torch.tensor([-1, 0, -4]))
    case("index.middle", lambda x, i: x[:, i], x, i)
    case("index.pair", lambda x, i, j: x[i, j], x, i, j)
    case("index.pair_last", lambda x, i, j: x[:, i, j], x, i, j)
    case("index.split_pair", lambda x, i, j: x[i, :, j], x, i, j)
    case("index.matrix", lambda x, i: x[i], x, ii)
    case("index.matrix_mid", lambda x, i: x[:, i], x, ii)
    case("index.bcast", lambda x, i, j: x[i[:, None], j[None]], x, i, j)
    case("index.bcast_split", lambda x, i, j: x[i[:, None], :, j[None]], x, i, j)
    case("index.three", lambda x, i, j: x[i, j, i], x, i, j)
    case("index.none_mid", lambda x, i: x[:, None, i], x, i)
    case("index.rank_equal", lambda x, i: x[i], randn(4, 5), ii)
    case("index.i32", lambda x, i: x[i], x, i.int())
    case("index.dyn", lambda x, i: x[:, i], x, i, dyn={0: {0: N}, 1: {0: T}}, test=((randn(7, 5, 6), torch.tensor([4, 0, 1, 1, 2])), {}))
    case("index.dyn_pair", lambda x, i, j: x[i, j], x, i, j, dyn={0: None, 1: {0: T}, 2: {0: T}}, test=((x, torch.tensor([3, 0, 1, 1, 2]), torch.tensor([4, 0, 1, 1, 2])), {}))
    case("put.first", lambda x, i, v: x.index_put((i,), v), x, i, randn(3, 5, 6))
    case("put.pair", lambda x, i, j, v: x.index_put((i, j), v), x, i, j, randn(3, 6))
    case("put.accumulate", lambda x, i, v: x.index_put((i,), v, accumulate=True), x, torch.tensor([1, 1, 3]), randn(3, 5, 6))
    case("put.split", lambda x, i, j, v: (lambda y: (y.__setitem__((i, slice(None), j), v), y)[1])(x * 1), x, i, j, randn(3, 5))
    case("put.split_bcast", lambda x, i, j: (lambda y: (y.__setitem__((i, slice(None), j), 1.5), y)[1])(x * 1), x, i, j)
    case("put.split_acc", lambda x, i, j, v: x.index_put((i, None, j), v, accumulate=True), x, torch.tensor([1, 1, 3]), torch.tensor([2, 2, 0]), randn(3, 5))
    case("put.mid", lambda x, i, v: (lambda y: (y.__setitem__((slice(None), i), v), y)[1])(x * 1), x, i, randn(4, 3, 6))
    case("put.scalar", lambda x, i: (lambda y: (y.__setitem__(i, 0), y)[1])(x * 1), x, i)
    case("put.mask_value", lambda x, m: (lambda y: (y.__setitem__(m, 0.5), y)[1])(x * 1), x, x > 0)
    case("put.mask_rows", lambda x, m: (lambda y: (y.__setitem__(m, 0.5), y)[1])(x * 1), x, torch.tensor([True, False, True, False]))
    case("put.int", lambda x, i, v: x.index_put((i,), v), ints(9, 4, 3), i, ints(99, 3, 3))
    case("take_along", lambda x, i: torch.take_along_dim(x, i, 1), x, ints(5, 4, 2, 6))
    case("take_along_bcast", lambda x, i: torch.take_along_dim(x, i, 1), x, ints(5, 1, 2, 1))
    case("gather.small", lambda x, i: x.gather(1, i), x, ints(5, 3, 7, 2))
    case("scatter.reduce", lambda x, i, s: tuple(x.scatter_reduce(1, i, s, r, include_self=b) for r in ("sum", "prod", "mean", "amax", "amin") for b in (True, False)), x, ints(5, 4, 7, 6), randn(4, 7, 6))
    case("scatter.reduce_int", lambda x, i, s: tuple(x.scatter_reduce(1, i, s, r, include_self=b) for r in ("sum", "prod", "amax", "amin") for b in (True, False)), ints(9, 4, 5, lo=-9), ints(5, 4, 7), ints(9, 4, 7, lo=-9))
    case("scatter.src", lambda x, i, s: x.scatter(1, i, s), x, torch.stack([torch.randperm(5)[:3] for _ in range(24)]).view(4, 6, 3).transpose(1, 2), randn(4, 3, 6))
    case("scatter.value", lambda x, i: x.scatter(0, i, 2.5), x, ints(4, 2, 5, 6))
    case("scatter.add", lambda x, i, s: x.scatter_add(2, i, s), x, ints(6, 3, 5, 9), randn(4, 5, 9))
    case("index.add", lambda x, i, s: x.index_add(1, i, s, alpha=2), x, i, randn(4, 3, 6))
    case("index.fill", lambda x, i: x.index_fill(-1, i, 3), x, i)
    case("index.reduce", lambda x, i, s: tuple(x.index_reduce(0, i, s, r, include_self=b) for r in ("prod", "mean", "amax", "amin") for b in (True, False)), x, torch.tensor([1, 1, 3]), randn(3, 5, 6))
    case("select.scatter", lambda x, s: x.select_scatter(s, 1, -2), x, randn(4, 6))
    case("slice.scatter", lambda x, s: x.slice_scatter(s, 2, 1, -1, 2), x, randn(4, 5, 2))
    case("diagonal.scatter", lambda x, s: x.diagonal_scatter(s, 1, 0, 1), x, randn(6, 4))
    case("masked.scatter", lambda x, m, s: x.masked_scatter(m, s), x, x > 0, randn(120))
    case("searchsorted", lambda s, v: (torch.searchsorted(s, v), torch.searchsorted(s, v, right=True)), torch.sort(randn(3, 7))[0], randn(3, 4))
    case("nonzero", lambda x: torch.nonzero(x), (x > 0).int())
    case("nonzero.tuple", lambda x: x.nonzero(as_tuple=True), x > 1)
    case("masked_select", lambda x: torch.masked_select(x, x > 0), x)
    case("bool_index", lambda x: x[x > 0], x)
    case("bool_index_sum", lambda x: x[x > 0].sum() + 1, x)
    case("unique", lambda x: torch.unique(x), ints(5, 12))
    case("bincount", lambda x: torch.bincount(x, minlength=6), ints(5, 12))
    case("histc", lambda x: torch.histc(x, bins=5, min=-2, max=2), x)
    case("multinomial_shape", lambda x: torch.multinomial(x.abs(), 2).shape[0] + x, randn(3, 4))
    case("repeat_interleave.tensor", lambda x: x.repeat_interleave(torch.tensor([1, 2, 0, 3]), 0), x)
    case("repeat_interleave.input", lambda x, n: x.repeat_interleave(n, 0), x, torch.tensor([1, 2, 0, 3]))
    case("embedding_bag.offsets", lambda i, o, m=nn.EmbeddingBag(10, 4, mode="mean"): m(i, o), ints(10, 9), torch.tensor([0, 2, 2, 7]))
    case("embedding_bag.sum", lambda i, o, m=nn.EmbeddingBag(10, 4, mode="sum", padding_idx=3): m(i, o), ints(10, 9), torch.tensor([0, 2, 2, 7]))
    case("embedding_bag.max", lambda i, o, m=nn.EmbeddingBag(10, 4, mode="max"): m(i, o), ints(10, 9), torch.tensor([0, 2, 2, 7]))
    case("embedding_bag.weights", lambda i, o, w, m=nn.EmbeddingBag(10, 4, mode="sum", include_last_offset=True): m(i, o, w), ints(10, 9), torch.tensor([0, 2, 2, 7, 9]), randn(9))
    case("embedding_bag.2d", lambda i, m=nn.EmbeddingBag(10, 4, mode="mean", padding_idx=0): m(i), ints(10, 3, 5))
    case("embedding.padding", lambda i, m=nn.Embedding(10, 4, padding_idx=0): m(i), ints(10, 3, 5))


def einsums():
    shapes = {
        "ij,jk->ik": ((3, 4), (4, 5)), "bij,bjk->bik": ((2, 3, 4), (2, 4, 5)), "ij->ji": ((3, 4),), "ii->i": ((4, 4),), "ii": ((4, 4),), "ij->": ((3, 4),),
        "bhqd,bhkd->bhqk": ((2, 2, 3, 4), (2, 2, 5, 4)), "bqhd,bkhd->bhqk": ((2, 3, 2, 4), (2, 5, 2, 4)), "i,j->ij": ((3,), (4,)), "i,i->": ((3,), (3,)), "i,i->i": ((3,), (3,)),
        "...ij,...jk->...ik": ((2, 3, 4), (4, 5)), "b...d,d->b...": ((2, 3, 4, 5), (5,)), "ij,kj,lj->ikl": ((2, 3), (4, 3), (5, 3)), "abc,cd,de->abe": ((2, 3, 4), (4, 5), (5, 2)),
        "ijk,ijk->k": ((2, 3, 4), (2, 3, 4)), "bij->bj": ((2, 3, 4),), "iij->ij": ((3, 3, 4),), "bn,anm,bm->ba": ((2, 3), (4, 3, 5), (2, 5)), "ij, jk": ((3, 4), (4, 5)), "...->...": ((2, 3),),
        "bchw,cd->bdhw": ((2, 3, 4, 5), (3, 6)), "nkctv,kvw->nctw": ((2, 3, 2, 4, 5), (3, 5, 5)), "i...,i...->...": ((3, 4, 5), (3, 4, 5)), "ab,ab,ab->a": ((2, 3), (2, 3), (2, 3)), "aab,b->a": ((3, 3, 2), (2,)),
        "ij,ij->": ((1, 4), (3, 4)), "blhd,blhd->blh": ((2, 3, 2, 4), (2, 3, 2, 4)),
    }
    for n, (equation, operands) in enumerate(shapes.items()):
        case(f"einsum.{n}", lambda *xs, e=equation: torch.einsum(e, *xs), *(randn(*s) for s in operands))
        case(f"einsum.{n}.bf16", lambda *xs, e=equation: torch.einsum(e, *xs), *(randn(*s, dtype=torch.bfloat16) for s in operands))


def dtypes():
    binary = {
        "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "floor_divide": torch.floor_divide, "remainder": torch.remainder, "maximum": torch.maximum,
        "pow": torch.pow, "eq": torch.eq, "lt": torch.lt, "atan2": torch.atan2, "logical_and": torch.logical_and, "fmod": torch.fmod, "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        "floor_div": lambda a, b: torch.div(a, b, rounding_mode="floor"), "where": lambda a, b: torch.where(a > b, a, b), "hypot": torch.hypot, "alpha": lambda a, b: torch.add(a, b, alpha=2), "rsub": lambda a, b: torch.rsub(a, b, alpha=2),
    }
    for (name, fn), (da, ta), (db, tb) in itertools.product(binary.items(), ALL.items(), ALL.items()):
        a, b = some(ta, 2, 5), some(tb, 5)
        if name in ("div", "floor_divide", "remainder", "fmod", "trunc_div", "floor_div"):
            b = torch.where(b == 0, torch.ones_like(b), b)
        if name == "pow":
            a, b = a.abs() if ta != torch.bool else a, (b.abs() if tb != torch.bool else b)
        try:
            fn(a, b)
        except Exception:
            continue
        case(f"dtype.{name}.{da}.{db}", fn, a, b)
        case(f"dtype.{name}.{da}.{db}.scalar0", fn, a, b[0].clone())
    numbers = {"int": 3, "float": 2.5, "bool": True, "neg": -2}
    for (name, fn), (dtype, t), (kind, number) in itertools.product(list(binary.items())[:10], ALL.items(), numbers.items()):
        a = some(t, 2, 5)
        try:
            fn(a, number)
        except Exception:
            continue
        case(f"dtype.{name}.{dtype}.{kind}", lambda a, f=fn, n=number: f(a, n), a)
        if name in ("sub", "div", "pow", "remainder", "floor_divide"):
            ops = {"sub": lambda a, n: n - a, "div": lambda a, n: n / a, "pow": lambda a, n: n**a.abs() if a.dtype != torch.bool else n**a, "remainder": lambda a, n: n % a, "floor_divide": lambda a, n: n // a}
            a = torch.where(a == 0, torch.ones_like(a), a)
            try:
                ops[name](a, number)
            except Exception:
                continue
            case(f"dtype.r{name}.{dtype}.{kind}", lambda a, f=ops[name], n=number: f(a, n), a)
    for (da, ta), (db, tb) in itertools.product(ALL.items(), ALL.items()):
        case(f"dtype.cast.{da}.{db}", lambda a, t=tb: a.to(t), some(ta, 3, 4).abs() if ta != torch.bool else some(ta, 3, 4))
    reductions = {
        "sum": torch.sum, "mean": lambda a: a.mean(dtype=torch.float32), "prod": torch.prod, "amax": torch.amax, "any": torch.any, "all": torch.all, "argmax": torch.argmax, "argmin": lambda a: a.argmin(-1, keepdim=True),
        "cumsum": lambda a: a.cumsum(-1), "sum_keep": lambda a: a.sum((0, -1), keepdim=True), "sum_none": lambda a: a.sum(()), "amax_none": lambda a: a.amax(()), "max": lambda a: a.max(), "max_dim": lambda a: a.max(-1)[0], "min_dim": lambda a: a.min(0, keepdim=True)[0],
        "count": torch.count_nonzero, "sort": lambda a: a.sort(-1)[0], "sort_desc": lambda a: a.sort(0, descending=True)[0], "topk": lambda a: a.topk(2, 0, largest=False)[0], "sum_dtype": lambda a: a.sum(dtype=torch.float16), "cumsum_dtype": lambda a: a.cumsum(0, dtype=torch.float32),
        "cumprod": lambda a: a.cumprod(1), "median": lambda a: a.median(), "logcumsumexp": lambda a: a.logcumsumexp(1), "cummax": lambda a: a.cummax(1), "cummin": lambda a: a.cummin(0)[0], "mode": lambda a: a.mode(1)[0], "unique_max": lambda a: a.max(0)[0], "nansum": torch.nansum, "diff": lambda a: a.diff(dim=0), "var": lambda a: a.var(1), "std": lambda a: a.std(),
        "aminmax": lambda a: torch.aminmax(a, dim=0), "logsumexp": lambda a: a.logsumexp((0, 1)), "softmax": lambda a: a.softmax(0), "softmax_f32": lambda a: a.softmax(0, dtype=torch.float32), "log_softmax": lambda a: a.log_softmax(1), "norm1": lambda a: a.norm(1), "norm_inf": lambda a: a.norm(float("inf"), dim=1),
        "abs": torch.abs, "neg": torch.neg, "sign": torch.sign, "square": torch.square, "sqrt": lambda a: a.abs().sqrt(), "exp": torch.exp, "floor": torch.floor, "round": torch.round, "bitnot": torch.bitwise_not, "lshift": lambda a: a << 2, "rshift": lambda a: a >> 1, "clamp": lambda a: a.clamp(-1, 2), "clamp_f": lambda a: a.clamp(max=1.5), "relu": torch.relu, "isnan": torch.isnan, "isfinite": torch.isfinite, "flip": lambda a: a.flip(0), "roll": lambda a: a.roll((1, 2), (0, 1)), "tril": torch.tril,
        "pad": lambda a: F.pad(a, (1, 1), value=1), "cat": lambda a: torch.cat([a, a]), "gather": lambda a: a.gather(1, torch.tensor([[0, 1], [2, 2], [1, 0]])), "repeat": lambda a: a.repeat(2, 1), "masked_fill": lambda a: a.masked_fill(torch.tensor([True, False, True, False]), 1), "reciprocal": lambda a: torch.reciprocal(a + 20), "sigmoid": torch.sigmoid, "leaky": lambda a: F.leaky_relu(a, 0.1), "matmul": lambda a: a @ a.t(), "outer": lambda a: torch.outer(a[0], a[:, 0]), "eye": lambda a: torch.eye(4, dtype=a.dtype) + a[:1], "full_like": lambda a: torch.full_like(a, 3), "arange": lambda a: torch.arange(3, dtype=a.dtype) + a[:, :3], "where": lambda a: torch.where(a > 1, a, 0), "one_minus": lambda a: 1 - a, "scatter_add": lambda a: torch.zeros(3, 4, dtype=a.dtype).scatter_add(1, torch.tensor([[0, 1], [2, 2], [1, 0]]), a[:, :2]),
        "index_put": lambda a: a.index_put((torch.tensor([0, 2]),), a[:1]), "item_all": lambda a: a.sum() * a, "expand": lambda a: a[:, None].expand(3, 2, 4), "sinh": torch.sinh, "trace": lambda a: a[:3, :3].trace(), "isin": lambda a: torch.isin(a, torch.tensor([1, 2], dtype=a.dtype)), "cross": lambda a: torch.linalg.cross(a[:, :3], a[:, 1:4]), "triu": lambda a: a.triu(1), "lerp": lambda a: torch.lerp(a, a * 2, 0.3), "addcmul": lambda a: torch.addcmul(a, a, a, value=2), "stack": lambda a: torch.stack([a, a], -1), "bitand": lambda a: a & 3, "xor": lambda a: a ^ a.flip(0), "interleave": lambda a: a.repeat_interleave(2), "bmm": lambda a: torch.bmm(a[None], a.t()[None]), "linear": lambda a: F.linear(a, a), "addmm": lambda a: torch.addmm(a[:, :3], a, a.t(), beta=2, alpha=3),
    }
    for (name, fn), (dtype, t) in itertools.product(reductions.items(), ALL.items()):
        a = some(t, 3, 4)
        try:
            fn(a)
        except Exception:
            continue
        case(f"unary.{name}.{dtype}", fn, a)


def losses_and_activations():
    x, y = randn(4, 5), randn(4, 5)
    labels = ints(5, 4)
    p, q = torch.rand(4, 5), torch.rand(4, 5)
    losses = {
        "mse": lambda: F.mse_loss, "l1": lambda: F.l1_loss, "smooth_l1": lambda: F.smooth_l1_loss, "huber": lambda: F.huber_loss, "kl": lambda: F.kl_div, "soft_margin": lambda: F.soft_margin_loss, "poisson": lambda: F.poisson_nll_loss,
    }
    for (name, fn), reduction in itertools.product(losses.items(), ("none", "mean", "sum")):
        case(f"loss.{name}.{reduction}", lambda x, y, f=fn(), r=reduction: f(x, y, reduction=r), x, y)
    for reduction in ("none", "mean", "sum"):
        case(f"loss.ce.{reduction}", lambda x, t, r=reduction: F.cross_entropy(x, t, reduction=r), x, labels)
        case(f"loss.ce_ignore.{reduction}", lambda x, t, w, r=reduction: F.cross_entropy(x, t, weight=w, ignore_index=2, reduction=r), x, labels, p[0])
        case(f"loss.ce_smooth.{reduction}", lambda x, t, r=reduction: F.cross_entropy(x, t, label_smoothing=0.1, reduction=r), x, labels)
        case(f"loss.ce_prob.{reduction}", lambda x, t, r=reduction: F.cross_entropy(x, t, reduction=r), x, p)
        case(f"loss.nll.{reduction}", lambda x, t, r=reduction: F.nll_loss(x.log_softmax(1), t, reduction=r), x, labels)
        case(f"loss.bce.{reduction}", lambda x, t, r=reduction: F.binary_cross_entropy(x, t, reduction=r), p, q)
        case(f"loss.bce_logits.{reduction}", lambda x, t, r=reduction: F.binary_cross_entropy_with_logits(x, t, reduction=r, pos_weight=torch.tensor([1.0, 2, 3, 4, 5])), x, q)
    case("loss.ce_2d", lambda x, t: F.cross_entropy(x, t), randn(2, 5, 3, 4), ints(5, 2, 3, 4))
    case("loss.cosine", lambda a, b: F.cosine_embedding_loss(a, b, torch.tensor([1, -1, 1, -1])), x, y)
    case("loss.triplet", lambda a, b: F.triplet_margin_loss(a, b, a * 2), x, y)
    case("loss.margin", lambda a, b: F.margin_ranking_loss(a[:, 0], b[:, 0], torch.tensor([1, -1, 1, -1])), x, y)
    case("loss.gaussian", lambda a, b, v: F.gaussian_nll_loss(a, b, v), x, y, p)
    for name, make in {name: (lambda m=m: copy.deepcopy(m)) for name, m in {
        "celu": nn.CELU(0.7), "elu": nn.ELU(0.7), "selu": nn.SELU(), "hardswish": nn.Hardswish(), "hardsigmoid": nn.Hardsigmoid(), "mish": nn.Mish(), "softplus": nn.Softplus(2, 5), "softsign": nn.Softsign(), "tanhshrink": nn.Tanhshrink(), "softshrink": nn.Softshrink(0.3), "hardshrink": nn.Hardshrink(0.3), "threshold": nn.Threshold(0.2, 5),
        "prelu": nn.PReLU(), "prelu_c": nn.PReLU(5), "rrelu": nn.RReLU(), "logsigmoid": nn.LogSigmoid(), "relu6": nn.ReLU6(), "silu": nn.SiLU(), "gelu": nn.GELU(), "gelu_tanh": nn.GELU("tanh"), "hardtanh": nn.Hardtanh(-0.3, 0.8), "leaky": nn.LeakyReLU(0.2), "softmin": nn.Softmin(1), "glu": nn.GLU(0), "softmax2d": nn.Softmax2d(),
    }.items()}.items():
        for dtype_name, dtype in FLOATS.items():
            value = randn(4, 5, 3, 3, dtype=dtype) * 3 if name == "softmax2d" else randn(4, 5, dtype=dtype) * 3
            case(f"act.{name}.{dtype_name}", make().to(dtype), value)


class SmallViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.cls, self.pos = nn.Parameter(randn(1, 1, 16)), nn.Parameter(randn(1, 17, 16))
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True, activation="gelu") for _ in range(2)])
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class SmallUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, 2, 1), nn.Conv2d(24, 8, 3, padding=1)
        self.time, self.norm, self.out = nn.Linear(8, 16), nn.GroupNorm(4, 16), nn.Conv2d(8, 3, 1)

    def forward(self, x, t):
        freq = torch.exp(-torch.arange(4) / 4 * 9.2)
        emb = torch.cat([(t[:, None] * freq).sin(), (t[:, None] * freq).cos()], -1)
        a = F.silu(self.a(x))
        b = F.silu(self.norm(self.b(a)) + self.time(emb)[:, :, None, None])
        up = F.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        return self.out(F.silu(self.c(torch.cat([up, a], 1))))


class SmallMoE(nn.Module):
    def __init__(self, n=4, top=2, width=8):
        super().__init__()
        self.gate, self.top = nn.Linear(width, n, bias=False), top
        self.up, self.down = nn.Parameter(randn(n, width, 16)), nn.Parameter(randn(n, 16, width))

    def forward(self, x):
        scores = self.gate(x).softmax(-1)
        weights, chosen = scores.topk(self.top, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        y = torch.einsum("td,tkdh->tkh", x, self.up[chosen])
        y = torch.einsum("tkh,tkhd->tkd", F.silu(y), self.down[chosen])
        return (y * weights[..., None]).sum(1)


class DenseMoE(SmallMoE):
    def forward(self, x):
        scores = self.gate(x).softmax(-1)
        weights, chosen = scores.topk(self.top, -1)
        full = torch.zeros_like(scores).scatter(-1, chosen, weights)
        mask = F.one_hot(chosen, scores.shape[-1]).permute(2, 1, 0)
        y = torch.zeros_like(x)
        for e in range(scores.shape[-1]):
            y = y + full[:, e : e + 1] * (F.silu(x @ self.up[e]) @ self.down[e]) * (mask[e].sum(0) > 0)[:, None]
        return y


class SelectiveScan(nn.Module):
    def __init__(self, width=6, state=4):
        super().__init__()
        self.a, self.x, self.dt, self.conv = nn.Parameter(randn(width, state)), nn.Linear(width, 2 * state + 1), nn.Linear(1, width), nn.Conv1d(width, width, 3, padding=2, groups=width)

    def forward(self, u):
        u = F.silu(self.conv(u.transpose(1, 2))[..., : u.shape[1]].transpose(1, 2))
        dt, b, c = self.x(u).split([1, 4, 4], -1)
        dt = F.softplus(self.dt(dt))
        da = torch.exp(dt[..., None] * -torch.exp(self.a))
        dbu = dt[..., None] * b[:, :, None] * u[..., None]
        h, ys = torch.zeros_like(da[:, 0]), []
        for t in range(u.shape[1]):
            h = da[:, t] * h + dbu[:, t]
            ys.append((h * c[:, t, None]).sum(-1))
        return torch.stack(ys, 1)


class RopeDecoder(nn.Module):
    def __init__(self, width=16, heads=4, kv=2, layers=2, vocab=32):
        super().__init__()
        self.heads, self.kv, self.dim = heads, kv, width // heads
        self.embed = nn.Embedding(vocab, width)
        self.q = nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(layers)])
        self.k = nn.ModuleList([nn.Linear(width, kv * self.dim, bias=False) for _ in range(layers)])
        self.v = nn.ModuleList([nn.Linear(width, kv * self.dim, bias=False) for _ in range(layers)])
        self.o = nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(layers)])
        self.gate = nn.ModuleList([nn.Linear(width, 24, bias=False) for _ in range(layers)])
        self.up = nn.ModuleList([nn.Linear(width, 24, bias=False) for _ in range(layers)])
        self.down = nn.ModuleList([nn.Linear(24, width, bias=False) for _ in range(layers)])
        self.n1 = nn.ModuleList([nn.RMSNorm(width, eps=1e-5) for _ in range(layers)])
        self.n2 = nn.ModuleList([nn.RMSNorm(width, eps=1e-5) for _ in range(layers)])
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.register_buffer("inv", 1.0 / 10000 ** (torch.arange(0, self.dim, 2) / self.dim))

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(self, ids):
        b, t = ids.shape
        x = self.embed(ids)
        angle = torch.arange(t, device=ids.device)[:, None] * self.inv[None].float()
        angle = torch.cat([angle, angle], -1)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for i in range(len(self.q)):
            h = self.n1[i](x)
            q = self.rotate(self.q[i](h).view(b, t, self.heads, -1).transpose(1, 2), cos, sin)
            k = self.rotate(self.k[i](h).view(b, t, self.kv, -1).transpose(1, 2), cos, sin)
            v = self.v[i](h).view(b, t, self.kv, -1).transpose(1, 2)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.o[i](y.transpose(1, 2).reshape(b, t, -1))
            h = self.n2[i](x)
            x = x + self.down[i](F.silu(self.gate[i](h)) * self.up[i](h))
        return self.norm(x) @ self.embed.weight.t()


def models():
    case("model.vit", SmallViT(), randn(2, 3, 16, 16))
    case("model.vit_dyn", SmallViT(), randn(2, 3, 16, 16), dyn={0: {0: N}}, test=((randn(5, 3, 16, 16),), {}))
    case("model.unet", SmallUNet(), randn(2, 3, 8, 8), torch.tensor([1.0, 50.0]))
    case("model.moe", SmallMoE(), randn(5, 8))
    case("model.moe_dyn", SmallMoE(), randn(5, 8), dyn={0: {0: N}}, test=((randn(9, 8),), {}))
    case("model.moe_bf16", SmallMoE().bfloat16(), randn(5, 8, dtype=torch.bfloat16))
    case("model.moe_dense", DenseMoE(), randn(5, 8))
    case("model.ssm", SelectiveScan(), randn(2, 7, 6))
    for name, dtype in FLOATS.items():
        case(f"model.decoder.{name}", RopeDecoder().to(dtype), ints(32, 2, 6), dyn={0: {0: N, 1: T}}, test=((ints(32, 3, 11),), {}), atol=None if name == "f32" else 0.15)
    case("model.transformer", nn.Transformer(8, 2, 1, 1, 16, batch_first=True), randn(2, 5, 8), randn(2, 3, 8))
    case("model.encoder_mask", lambda x, p, m=nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(): m(x, src_key_padding_mask=p), randn(2, 5, 8), torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 1]], dtype=torch.bool))
    res = lambda: nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(), nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.BatchNorm2d(8), nn.Hardswish(), nn.AdaptiveAvgPool2d((3, 3)), nn.Flatten(), nn.Dropout(0.2), nn.Linear(72, 5), nn.LogSoftmax(1))
    case("model.mobile", res(), randn(2, 3, 16, 16))
    case("model.autoencoder", nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(4, 1, 3, 2, 1, 1), nn.Sigmoid()), randn(2, 1, 8, 8))
    case("model.wavenet", nn.Sequential(nn.Conv1d(1, 4, 2, dilation=1), nn.Tanh(), nn.Conv1d(4, 4, 2, dilation=2), nn.GLU(1), nn.Conv1d(2, 1, 2, dilation=4)), randn(2, 1, 20))
    case("model.norms", nn.Sequential(nn.InstanceNorm2d(4, affine=True), nn.GroupNorm(2, 4), nn.BatchNorm2d(4), nn.LocalResponseNorm(2), nn.LayerNorm([4, 6, 6])), randn(2, 4, 6, 6))
    case("model.instance_stats", nn.InstanceNorm1d(4, track_running_stats=True), randn(2, 4, 6))
    case("model.bn1d", nn.BatchNorm1d(6), randn(4, 6))
    case("model.bn3d", nn.BatchNorm3d(2), randn(2, 2, 3, 4, 5))
    case("model.bilinear", nn.Bilinear(3, 4, 5), randn(2, 3), randn(2, 4))
    case("model.weight_norm", nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), randn(2, 4))
    case("model.spectral_norm", nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)).eval(), randn(2, 4))
    case("model.graph", lambda x, s, d: torch.zeros_like(x).index_add(0, d, x[s]) / torch.zeros(x.shape[0]).index_add(0, d, torch.ones(d.shape[0])).clamp(min=1)[:, None], randn(5, 3), torch.tensor([0, 1, 2, 4]), torch.tensor([1, 1, 0, 3]))
    case("model.kmeans", lambda x, c: (torch.cdist(x, c).argmin(1), torch.cdist(x, c, p=1).min(1)[0]), randn(8, 3), randn(4, 3))
    case("model.pdist", lambda x: torch.nn.functional.pdist(x), randn(5, 3))
    case("model.fourier", lambda x, f: torch.cat([(x @ f).sin(), (x @ f).cos()], -1), randn(5, 2), randn(2, 4))
    case("model.autocast", lambda x, w: autocast(x, w), randn(3, 4), randn(4, 5))
    case("model.no_grad", lambda x: no_grad(x), randn(3, 4))
    case("model.stft", lambda x: torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True).abs(), randn(1, 64))
    case("model.rfft", lambda x, m: torch.view_as_real(torch.fft.rfft(x * m)), randn(2, 16), torch.hann_window(16))
    case("model.fft_conv", lambda x, k: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(k), n=16), randn(2, 16), randn(16))
    case("model.rope_complex", lambda x, f: torch.view_as_real(torch.view_as_complex(x.reshape(2, 5, 4, 2)) * torch.polar(torch.ones(5, 4), f)).flatten(-2), randn(2, 5, 8), randn(5, 4))


def autocast(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ w).softmax(-1)


def no_grad(x):
    with torch.no_grad():
        return x * 2 + 1


def quantized():
    import torchao
    from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerAxis, PerGroup, quantize_

    widths = {2: torch.int2, 3: torch.int3, 4: torch.int4, 5: torch.int5, 6: torch.int6, 7: torch.int7, 8: torch.int8}
    for (bits, kind), (name, dtype) in itertools.product(widths.items(), FLOATS.items()):
        for group in (32, 64, 0):
            granularity = PerGroup(group) if group else PerAxis(0)
            module = nn.Linear(64, 16, bias=group != 64).to(dtype)
            quantize_(module, IntxWeightOnlyConfig(weight_dtype=kind, granularity=granularity))
            case(f"quant.linear.{bits}.{group}.{name}", module, randn(3, 64, dtype=dtype), atol=0.05, rtol=0.05)
            table = nn.Sequential(nn.Embedding(20, 64)).to(dtype)
            quantize_(table, IntxWeightOnlyConfig(weight_dtype=kind, granularity=granularity), lambda m, _: isinstance(m, nn.Embedding))
            case(f"quant.embedding.{bits}.{group}.{name}", table, ints(20, 2, 3), atol=0.02, rtol=0.02)
    module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
    quantize_(module, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)))
    case("quant.mlp_dyn", module, randn(3, 64), dyn={0: {0: N}}, test=((randn(9, 64),), {}), atol=0.02, rtol=0.02)


GROUPS = [dynamic_elementwise_and_shape, dynamic_layers, attention_masks, writes, inputs_and_outputs, control_flow, recurrences, resampling, pooling_and_conv,
          indexing, einsums, losses_and_activations, models, quantized, dtypes]


def shapes(args, dyn):
    if dyn is None:
        return None
    return tuple(dyn.get(i) for i in range(len(args)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--only", default="")
    parser.add_argument("--core", action="store_true")
    args = parser.parse_args()
    for group in GROUPS:
        torch.manual_seed(0)
        try:
            group()
        except Exception:
            traceback.print_exc()
    written = failed = 0
    for name, module, inputs, kwargs, dyn, test, more in CASES:
        if not name.startswith(args.only):
            continue
        dynamic = shapes(inputs, dyn)
        if dynamic is not None and isinstance(module, Fn):
            dynamic = (dynamic,)
        try:
            cases.write(args.out, name, module, inputs, kwargs, op=name.split(".")[0], test=test, dynamic_shapes=dynamic, core=args.core, **more)
            written += 1
        except Exception as error:
            failed += 1
            print(f"not exported: {name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}", file=sys.stderr)
    print(f"{written} written, {failed} not exported")


if __name__ == "__main__":
    main()
