"""Writes, inputs and outputs of every kind, control flow, recurrences."""
import itertools

import torch
import torch.nn.functional as F
from torch import nn

from modules.common import FLOATS, N, T, case, ints, randn


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

    def old_inputs(x, y):
        same, copied, row, new = x * 1, y.clone(), x[1], x + y
        old = x.clone()
        x.copy_(y)
        y.copy_(old)
        x[2:].mul_(2)
        return same, copied, row * 1, new, x.view(-1), y

    def through_views(m, x, y):
        x.vsplit([1])[1].mul_(2)
        x.hsplit(3)[1].fill_(7)
        y.dsplit(2)[0].add_(1)
        y.tensor_split(2, 1)[1].neg_()
        x.unfold(1, 2, 2)[:, 0].sub_(3)
        y.unfold(0, 2, 1).mul_(2)
        m.c.as_strided((2, 3), (7, 2), 1).copy_(x[:2, :3])
        m.c.t().narrow(0, -2, 1).add_(5)
        x.movedim(0, 1).diagonal().zero_()
        return m.c.clone(), x * 1, y * 1

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
    views = {
        "ravel": lambda y: y.ravel(), "reshape_as": lambda y: y.reshape_as(torch.empty(6, 4)), "adjoint": lambda y: y.adjoint(),
        "movedim": lambda y: y.movedim(0, 1), "split": lambda y: y.split(2)[1], "unbind": lambda y: y.unbind(1)[2],
        "diagonal": lambda y: y.diagonal(), "narrow": lambda y: y.narrow(0, 1, 2),
    }
    for name, view in views.items():
        case(f"write.through_{name}", lambda x, view=view: (lambda y: (view(y).add_(1), y)[1])(x * 2), randn(4, 6))
    case("write.out", lambda x: torch.add(x, 1, out=torch.empty(4, 6)), randn(4, 6))
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
    case("write.old_inputs", old_inputs, randn(4, 6), randn(4, 6))
    case("write.views", Buffered(through_views, c=c()), randn(4, 6), randn(3, 4, 2))
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
    from torch._higher_order_ops.associative_scan import associative_scan
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
    case("while.linear", Repeated(nn.Linear(4, 4)), x)
    case("while.collatz", lambda n: while_loop(lambda n, k: n != 1, lambda n, k: (torch.where(n % 2 == 0, n // 2, 3 * n + 1), k + 1), (n, torch.tensor(0))), torch.tensor(27))
    case("cond.writes", Counting(), x[0].abs())
    case("vmap.pairs", lambda a, b: associative_scan(lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1]), (a, b), 1, combine_mode="generic"), x, randn(3, 4))
    case("vmap.reverse", lambda a: associative_scan(torch.maximum, a, 0, reverse=True, combine_mode="generic"), randn(5, 4))
    case("map.rows", lambda a, b: hop_map(lambda r, b: (r * b).sum(), a, b), x, randn(4))
    case("map.matrix", lambda a: hop_map(lambda r: r @ r.t(), a), randn(3, 4, 2))


class Counting(nn.Module):
    """Branches within branches that write to a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(4))

    def forward(self, x):
        def inner(x):
            self.n.add_(x)
            return x + 1

        def outer(x):
            return torch.cond(x.mean() > 0.1, inner, lambda x: x - 1, (x,))

        def other(x):
            self.n.mul_(0.5)
            return x * 2

        y = torch.cond(x.sum() > 0, outer, other, (x,))
        return y, self.n + 0


class Repeated(nn.Module):
    """A layer that is applied until the result is long enough, or twenty times."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, x):
        from torch._higher_order_ops import while_loop

        return while_loop(lambda i, v: (i < 20) & (v.norm() < 10), lambda i, v: (i + 1, torch.tanh(self.linear(v)) + v), (torch.tensor(0), x))


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
