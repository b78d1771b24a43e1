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


def complex_and_linear():
    case("complex.rope", ComplexRope(), randn(2, 7, 3, 8), dyn={0: {1: N}})
    case("complex.spectrum", SpectralConv(), randn(2, 2, 6, 8))
    case("complex.frames", frames, randn(2, 24))
    case("linear.factors", factors, randn(4, 3, 3), randn(4, 3, 2))
