"""Complex numbers inside of programs, Fourier transforms, and linear algebra."""
import torch
from torch import nn

from modules.common import N, case, randn


class ComplexRope(nn.Module):
    def __init__(self):
        super().__init__()
        angles = torch.outer(torch.arange(16).float(), 1 / 100 ** (torch.arange(4) / 4))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, q):
        pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.turns[: q.shape[1], None]).flatten(3)


class SpectralConv(nn.Module):
    """A layer of a Fourier neural operator."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.complex(randn(2, 3, 2, 3), randn(2, 3, 2, 3)))

    def forward(self, x):
        found = torch.fft.rfft2(x)
        kept = torch.zeros(x.shape[0], 3, x.shape[-2], x.shape[-1] // 2 + 1, dtype=torch.cfloat)
        kept[:, :, :2, :3] = torch.einsum("bixy,ioxy->boxy", found[:, :, :2, :3], self.weight)
        return torch.fft.irfft2(kept, s=(x.shape[-2], x.shape[-1]), norm="backward"), found.abs(), found.angle().cos()


def functions(x):
    z = torch.view_as_complex(x)
    calls = (torch.sin, torch.cos, torch.tan, torch.sinh, torch.cosh, torch.tanh, torch.asin, torch.acos, torch.atan, torch.asinh, torch.acosh,
             torch.atanh, torch.log2, torch.log10, torch.log1p, torch.expm1, torch.rsqrt, torch.sgn, torch.sigmoid)
    return (*(torch.view_as_real(call(z)) for call in calls), z == z.flip(1), z != z[:1])


def arranged(x):
    z, columns = torch.view_as_complex(x), torch.tensor([[1, 0, 3], [2, 2, 1], [0, 1, 3]])
    made = (z.diagonal(1), torch.diag_embed(z), z.tril(), z.triu(1), z[:, :3].trace(), z.diff(), z.gather(1, columns), z.scatter_add(1, columns, z[:, :3]),
            torch.nn.functional.pad(z, (1, 2)), z.rot90(), z.unfold(1, 2, 1), z.tile(2), z.take(columns), z.repeat_interleave(2, 0), z.roll(1))
    return tuple(torch.view_as_real(z) for z in made)


def frames(x):
    window = torch.hann_window(8)
    found = torch.stft(x, 8, 2, window=window, return_complex=True)
    quiet = found * 0.5 * torch.exp(1j * torch.ones(5, 1))
    return torch.istft(quiet, 8, 2, window=window, length=x.shape[-1]), quiet.real, torch.fft.fftshift(x)


def factors(a, b):
    square = a @ a.mT + torch.eye(3)
    q, r = torch.linalg.qr(a)
    return (torch.linalg.inv(square), torch.linalg.solve(square, b), torch.linalg.cholesky(square), q, r, torch.linalg.det(a),
            torch.linalg.pinv(a), torch.linalg.eigvalsh(square), torch.linalg.matrix_exp(a * 0.1), torch.linalg.norm(a, 1, dim=(-2, -1)),
            torch.linalg.matrix_norm(a, "nuc"), torch.linalg.svdvals(a))


def statistics(x):
    """Variances and norms are real; products of a whole axis are not."""
    z = torch.view_as_complex(x)
    real = (z.var(), z.var(1), z.std(0, correction=0, keepdim=True), z.norm(), z.norm(dim=1), torch.linalg.vector_norm(z, 3, dim=0), torch.linalg.matrix_norm(z),
            torch.linalg.matrix_norm(z, 1), torch.linalg.norm(z))
    predicates = (z.isfinite(), z.isnan(), z.log().isinf(), z.isreal())
    return (*real, *predicates, *(torch.view_as_real(made) for made in (z.prod(), z.prod(1), z.prod(0, keepdim=True), z.cumprod(1))))


def complex_and_linear():
    case("complex.rope", ComplexRope(), randn(2, 7, 3, 8), dyn={0: {1: N}})
    case("complex.spectrum", SpectralConv(), randn(2, 2, 6, 8))
    case("complex.frames", frames, randn(2, 24))
    case("complex.functions", functions, randn(3, 4, 2))
    case("complex.statistics", statistics, randn(3, 4, 2))
    case("complex.arranged", arranged, randn(3, 4, 2))
    case("linear.factors", factors, randn(4, 3, 3), randn(4, 3, 2))
