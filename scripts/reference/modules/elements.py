"""Indexing, einsum, element types."""
import itertools

import torch
import torch.nn.functional as F
from torch import nn

from modules.common import ALL, N, T, case, ints, randn, some


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
    case("scatter.many", lambda x, i, s: (x.scatter_reduce(0, i, s, "amax"), x.scatter_reduce(0, i, s, "prod", include_self=False), x.index_reduce(0, i[:, 0], s, "amin")),
         ints(9, 600, 1), ints(600, 2000, 1), ints(9, 2000, 1, lo=1))
    long = torch.arange(700) // 3
    case("searchsorted.long", lambda s, r, v, w: (
        *(torch.searchsorted(s, v, right=right) for right in (False, True)), *(torch.bucketize(w, r, right=right) for right in (False, True)), torch.bucketize(w.long(), r.long())),
         torch.stack([long / 2 - 40, long * 1.0]), long * 0.5, randn(2, 9) * 60, torch.tensor([-1.0, 0, 0.5, 7, 116, 116.5, 117, float("nan"), float("inf")]), dyn={3: {0: N}})
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


def foreign():
    """64-bit and 8-bit floats, which graphs do not have."""

    def requests(x):
        grid = torch.arange(4, dtype=torch.float64) / torch.linspace(1, 2, 4, dtype=torch.float64)
        wide = [torch.full_like(x, 0.1, dtype=torch.float64), x.new_zeros(2, dtype=torch.float64), torch.float_power(x, 2), x.log_softmax(-1, dtype=torch.float64)]
        return tuple(w.float() for w in wide) + (x * grid.float(), (x.double() @ x.double().t()).std(1).float(), x * torch.tensor(0.3, dtype=torch.float64))

    case("f64.requests", requests, randn(3, 4))
    case("f64.dynamic", lambda x: (torch.zeros_like(x, dtype=torch.float64) + x).clamp(min=0.1).float(), randn(3, 4), dyn={0: {0: N}}, test=((randn(7, 4),), {}))
    edges = torch.tensor([0.0, -0.0, 1.0625, 1.1875, 464.0, 464.5, -1e5, 2.0**-10, 3 * 2.0**-11, 61440.0, float("inf"), float("nan")])
    values = torch.cat([edges, randn(52) * 30])
    case("float8.casts", lambda x: (x.to(torch.float8_e4m3fn).float(), x.to(torch.float8_e5m2).reshape(8, 8).t().to(torch.float16)), values)


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
    ends = torch.tensor([1, -1, 2, 1 - 2**-20, 2**-20, float("nan")])
    case("erfinv.f32", torch.erfinv, torch.cat([torch.linspace(-0.999, 0.999, 41), ends]))
    case("renorm.f16", lambda x: torch.renorm(x, 2, 1, 1.5), randn(4, 3, 5, dtype=torch.float16))
    case("renorm.inf", lambda x: torch.renorm(x, float("inf"), -2, 1.5), randn(4, 3, 5))
    case("erfinv.bf16", torch.special.erfinv, torch.linspace(-1, 1, 41, dtype=torch.bfloat16))


def ends_of_types():
    """Quotients, remainders, shifts and bounds at the ends of types; sums and norms that halves cannot hold."""
    inf = float("inf")
    modes = (None, "trunc", "floor")
    divided = lambda a, b: tuple(torch.div(a, b, rounding_mode=m) for m in modes[1:]) + (a // b, torch.fmod(a, b), torch.remainder(a, b))
    floats = torch.tensor([3.0, -3.0, 0.3, 7.5, -0.0, inf, -inf, 1.0, -1.0, 5.0, 1e-30])
    by = torch.tensor([0.1, 0.1, 0.1, -2.5, 3.0, 2.0, 2.0, inf, inf, 0.0, 3.0])
    lowest = torch.tensor([-2**31, 2**31 - 1, -7, 7, 0, -1], dtype=torch.int32)
    longest = torch.tensor([-2**63, 2**63 - 1, -7, 7, 0, -1])
    case("ends.division", lambda a, b, i, j, k: divided(a, b) + (a // 0.1,) + divided(i, k) + divided(i, 3) + (i // -1,) + divided(j, -3),
         floats, by, lowest, longest, torch.tensor([3, -3, 2, -2, 5, -1], dtype=torch.int32))
    case("ends.shifts", lambda a, s, b, i: (a << s, a >> s, a << 33, a >> 70, a >> 63, b << 7, b >> 7, b << 9, b >> 8, i << 31, i >> 31, torch.bitwise_and(5, i), torch.bitwise_or(5, i), a + (2**53 + 1)),
         torch.tensor([1, -1, 2**40, -2**62]), torch.tensor([0, 63, 64, -1]), torch.tensor([255, 1, 128], dtype=torch.uint8), lowest)
    case("ends.bounds", lambda b, i: (F.hardtanh(b, -1.0, 1.0), b.clamp(-5, 300), b.clamp(-1, 2), F.hardtanh(i, -2.5, 1e12), b.clamp(min=3)),
         torch.tensor([0, 1, 2, 3, 200, 255], dtype=torch.uint8), lowest)
    case("ends.integer_conv", lambda x, w, y, v: (F.conv2d(x, w, padding=1, stride=2), F.conv2d(x, w[:, :1], groups=2, dilation=2), F.conv1d(x[0, :, :, 0], w[:, :, 0], padding="same"),
         F.conv_transpose2d(y, v, stride=2, padding=1, output_padding=1, dilation=2), F.conv_transpose1d(y[0, :, :, 0], v[:, :, 0], groups=2, stride=3)),
         ints(9, 1, 2, 6, 5, lo=-9), ints(9, 4, 2, 3, 3, lo=-9), ints(9, 1, 4, 3, 4, lo=-9), ints(9, 4, 2, 2, 3, lo=-9))
    rows = torch.tensor([[1.0, 3.0, inf, 5.0], [inf, 2.0, 3.0, inf], [-inf, 1.0, 2.0, 0.0]])
    case("ends.halves", lambda x, y, w, b, r, v: (F.cosine_similarity(x, y), torch.dist(x, y, 3), F.pairwise_distance(x, y, 3.0), F.layer_norm(x, (64,), w, b),
         torch.addr(x, v, w, beta=0.7, alpha=0.3), F.log_softmax(r, 1), torch.logsumexp(r, 1), F.cross_entropy(x / 50, torch.tensor([3, 60, 0, 7]), reduction="none")),
         *(t.half() for t in (randn(4, 64) * 100, randn(4, 64) * 100, randn(64), randn(64), rows, randn(4))))
    case("ends.large_mean", lambda x: (x.std(1), x.var(1), x.std(), x.var(0, correction=0)), randn(4, 64) * 0.01 + 10000)
    case("ends.nonzero_rank0", lambda x, z: (x.nonzero(as_tuple=True)[0], z.nonzero(as_tuple=True)[0]), torch.tensor(3), torch.tensor(0))
