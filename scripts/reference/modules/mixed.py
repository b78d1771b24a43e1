"""Calls with operands of several element types: writes, regions of autocast, numbers beyond a type, bits of another type."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from modules.common import case, ints, randn


def written(h, b, u, x, i):
    """Operands that are wider than what they are written to."""
    scaled, rest, small = h.clone(), b.clone(), u.clone()
    scaled.mul_(x * 1e5).div_(x * 1e4)
    rest.remainder_(x)
    small.remainder_(i).sub_(i)
    out = torch.empty(3, dtype=torch.float16)
    torch.sub(x * 7e4, x * 6.9e4, out=out)
    return scaled, rest, small, out, u.clone().lcm_(i)


def numbers(i, u, x):
    """Numbers that an integer type cuts, and numbers that a float cannot represent."""
    big = 2**60 + 1
    return (i << 2**40, i >> 2**32, i << 257, u << 2**40, u >> 257, torch.lcm(u, torch.tensor(-6)), torch.gcd(u, torch.tensor(-6)),
            torch.full((2,), big), torch.full_like(i, big, dtype=torch.int64), torch.full((2, 2), x.max().item()), torch.full_like(i, x.sum().item(), dtype=torch.float32))


class Autocast(nn.Module):
    """Layers in bf16 around one that is not, as training code writes them."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear, self.norm, self.head = nn.Conv1d(4, 6, 3), nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.linear(F.relu(self.conv(x)).mT)
            with torch.autocast("cpu", enabled=False):
                z = self.norm(y.float())
            scores = F.scaled_dot_product_attention(z, z, z)
            w = self.head(z) + y.sum(-1, keepdim=True)
            return y, z, scores, w, torch.einsum("btd,bsd->bts", z, y), (z + y).softmax(-1)


def bits(x, i):
    """Bits of computed tensors as elements of another type and size."""
    y = x * 2
    return (y.view(torch.int32), (y.view(torch.int32) & 0x7FFFFF).view(torch.float32), y.half().view(torch.int16).int(), (y + 1).view(torch.uint8),
            (i + 1).view(torch.float32), y.bfloat16().view(torch.uint8).reshape(3, 8).view(torch.bfloat16))


def floats(x):
    """Arithmetic on floats that are read from tensors, and numbers as results."""
    mean, total = x.mean().item(), x.sum().item()
    return x * (mean * 2 + 1), x / total, x * (1 / total - mean), x + -mean, x - mean * x.shape[0], x.shape[0] * 0.5, x.shape[0] / 2, mean + 1


def wide(x, w):
    """Calls in 64-bit floats without a kernel."""
    d = x.double()
    results = (F.layer_norm(d, (4,)), d.max(1).values, F.gelu(d), torch.erf(d), torch.where(x > 0, d, 0.0), F.linear(d, w.double()), d.norm(dim=1), d.masked_fill(x > 0, 2.0), d.logsumexp(1))
    return (*(r.float() for r in results), d.argmax(1))


def masks(x, m, n, v):
    """Writes by several masks, by a mask of a later axis, and sums by a mask."""
    y, z, w = x.clone(), x.clone(), x.clone()
    y[m, n] = 2.0
    z[..., n] *= 2
    w[:, n] = v
    return y, z, w, x.index_put((m,), v[:2, :1], accumulate=True)


def mixed():
    case("mixed.writes", written, randn(3).half(), (randn(3) * 9).bfloat16(), ints(200, 3, dtype=torch.uint8), randn(3), torch.tensor([-3, 7, -250], dtype=torch.int32))
    case("mixed.numbers", numbers, ints(99, 3, lo=-99, dtype=torch.int32), ints(200, 3, dtype=torch.uint8), randn(4))
    case("mixed.autocast", Autocast(), randn(2, 4, 7), rtol=1.6e-2, atol=1e-2)
    case("mixed.bits", bits, randn(3, 4), ints(99, 2, 3), dyn={0: {0: Dim.AUTO}})
    case("mixed.floats", floats, randn(3, 4), dyn={0: {0: Dim.AUTO}}, test=((randn(5, 4),), {}))
    case("mixed.wide", wide, randn(3, 4), randn(2, 4))
    case("write.masks", masks, randn(4, 5), torch.tensor([True, False, False, True]), torch.tensor([False, True, False, True, False]), randn(4, 2))
    case("cond.of_sizes", lambda x: torch.cond(torch.tensor(x.shape[0] > 4), lambda a: a * 2, lambda a: a + 1, (x,)), randn(3, 4), dyn={0: {0: Dim.AUTO}}, test=((randn(6, 4),), {}))
