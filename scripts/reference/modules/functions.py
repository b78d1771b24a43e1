"""Functions that models rarely use, losses with margins, histograms, and what is arranged from several tensors."""
import torch
import torch.nn.functional as F

from modules.common import case, ints, randn


def special_functions():
    x = torch.cat([torch.linspace(-5.3, 9.7, 31), torch.tensor([0.0, 20.0, 90.0, -30.5])])
    p = torch.tensor([0.0, 1e-30, 1e-4, 0.02, 0.3, 0.5, 0.8, 0.999, 1.0])
    s = torch.special
    case("functions.normal", lambda x, p: (torch.erfc(x), s.erfcx(x), s.ndtr(x), s.log_ndtr(x), s.ndtri(p)), x, p)
    case("functions.gamma", lambda x: (torch.lgamma(x), torch.digamma(x), torch.mvlgamma(x.abs() + 1.3, 3)), x)
    case("functions.bessel", lambda x: (torch.i0(x), s.i0e(x), s.i1(x), s.i1e(x)), x)
    case("functions.near_poles", lambda x: (torch.lgamma(x), torch.digamma(x)), torch.tensor([-1e-8, 1e-8, -1e-20, -0.4, -0.5, -0.6, -1.01, -2.5, -3.75]))
    case("functions.windows", lambda x: (
        torch.kaiser_window(9), torch.kaiser_window(8, periodic=False, beta=5.5), torch.kaiser_window(1), torch.bartlett_window(7), torch.bartlett_window(6, periodic=False),
        torch.chain_matmul(x, x.t(), x)), x[:2, None] + x)
    case("functions.halves", lambda x: (torch.lgamma(x), torch.digamma(x), torch.erfc(x), s.i0e(x)), x.bfloat16())


def host_functions():
    x, n = torch.tensor([0.3, 1.0, 2.5, 7.75]), torch.tensor([0.0, 3.0, 5.0, 2.0])
    i, j = torch.tensor([12, -9, 0, 35]), torch.tensor([18, 6, 5, 21])
    s = torch.special
    case("functions.outside", lambda x, n, i, j: (
        s.zeta(x + 1, n + 0.5), torch.polygamma(2, x), torch.igamma(n + 0.5, x), torch.igammac(x, n), s.bessel_j1(x), s.bessel_y0(x), s.modified_bessel_k1(x),
        s.airy_ai(-x), s.spherical_bessel_j0(x), s.legendre_polynomial_p(x - 1, n), s.hermite_polynomial_he(x, 4), torch.gcd(i, j), torch.lcm(i, j),
        *torch.frexp(x), torch.nextafter(x, n)), x, n, i, j)
    values = torch.tensor([[3, 1, 3], [3, 1, 3], [0, 1, 2]])
    case("functions.distinct", lambda v: (
        *torch.unique(v, return_inverse=True, return_counts=True), *torch.unique(v, dim=0, return_counts=True), *torch.unique_consecutive(v.flatten(), return_inverse=True),
        torch.unique_consecutive(v, dim=1), torch.bincount(v.flatten(), minlength=9)), values)


def margin_losses():
    x, y, z = randn(3, 5), randn(3, 5), randn(3, 5)
    label, sign, listed = ints(5, 3), torch.tensor([1.0, -1.0, 1.0]), torch.tensor([[3, 0, -1, 1, 2], [4, -1, 0, 0, 0], [1, 2, 3, 4, 0]])
    w = randn(5).abs()
    case("losses.margin", lambda x, y, z, t, s, m, w: (
        F.cosine_embedding_loss(x, y, s, 0.2), F.hinge_embedding_loss(x, y.sign(), 0.5), F.multi_margin_loss(x, t, p=2, weight=w, reduction="none"),
        F.multilabel_margin_loss(x, m), F.triplet_margin_loss(x, y, z, swap=True, p=1.5), F.poisson_nll_loss(x, y.abs() * 3, full=True),
        F.multilabel_soft_margin_loss(x, (y > 0).float()), torch.ops.aten.nll_loss_forward(x, t, w, 1, -100)[1]), x, y, z, label, sign, listed, w)


def counts_and_quantiles():
    x, q = randn(3, 7), torch.tensor([0.1, 0.5, 0.9])
    holes = torch.where(x > 1, torch.nan, x)
    case("statistics.counts", lambda x, h, q, w: (
        x.quantile(q, 1), h.nanquantile(q, 0, keepdim=True), h.quantile(0.4, 1, interpolation="nearest"), torch.histc(x, 5, -1, 1), torch.histc(x, 4),
        *torch.histogram(x, 4, range=(-1.0, 2.0), weight=w, density=True), torch.histogram(x, q)[0], *x.round().mode(1),
        torch.searchsorted(x, q.expand(3, 3).contiguous(), sorter=x.argsort(1))), x, holes, q, randn(3, 7).abs())
    case("statistics.segments", lambda x, n: (
        *(torch.segment_reduce(x, r, lengths=n, unsafe=True) for r in ("sum", "mean", "max", "min", "prod")),
        torch.segment_reduce(x, "mean", offsets=torch.tensor([0, 2, 2, 7]), initial=1, unsafe=True)), randn(7, 2), torch.tensor([2, 0, 4, 1]))


def arrangements():
    x, mask = randn(4, 5), torch.tensor([True, False, True])
    far, index = torch.tensor([9, -7, 2]), torch.tensor([1, -1, 7])
    case("arrange.chosen", lambda x, v: (
        torch.combinations(v, 3), torch.combinations(v, 2, True), torch.vander(v, 3), torch.linalg.vander(x), torch.nonzero_static(x > 0, size=7),
        torch.nonzero_static(x > 0, size=40, fill_value=9), torch._chunk_cat([x, x[:3], x[:, :2]], 0, 2)), x, randn(4))
    case("arrange.masked_index", lambda x, m, i, j, v: (
        torch._unsafe_masked_index(x, m[:, None], [i], 2.5),
        torch._unsafe_masked_index_put_accumulate(x, m[:, None], [i], v), x.put(j, v[0, :3], accumulate=True)), x, mask, far, index, randn(3, 5))
    case("arrange.tensor_split", lambda x, at: [part * 2 for part in torch.tensor_split(x, at, 1)], x, torch.tensor([1, 4]))
    image, samples = randn(2, 3, 7, 8), torch.rand(2, 3, 2)
    case("arrange.fractional", lambda x, s: F.fractional_max_pool2d(x, (2, 3), output_size=(3, 4), return_indices=True, _random_samples=s), image, samples)
    case("arrange.lines", lambda a, b, i: (
        torch.linspace(a, b, 6), torch.linspace(a, 3, 5, dtype=torch.int64), torch.logspace(a, b, 4, base=2), torch.bitwise_and(6, i), torch.bitwise_left_shift(1, i % 8),
        torch.argwhere(i > 4), torch.where(i > 4)[0]), torch.tensor(-3.7), torch.tensor(9.4), ints(9, 6))


def in_place():
    def dropped(x):
        y = F.dropout(x * 1, 0.3, training=False, inplace=True)
        y = F.alpha_dropout(y, 0.3, training=False, inplace=True)
        y = F.feature_alpha_dropout(y, 0.3, training=False, inplace=True)
        y.add_(1)
        return F.dropout2d(y, 0.3, training=False, inplace=True)

    def renormed(w, i):
        w = w * 1
        return F.embedding(i, w, max_norm=1.0), w

    class Trained(torch.nn.Module):
        """A batch norm in training mode, with what it writes."""

        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm2d(3, momentum=0.3).train()

        def forward(self, x):
            y = self.norm(x)
            return y, self.norm.running_mean * 1, self.norm.running_var * 1, self.norm.num_batches_tracked * 1

    case("write.batch_norm", Trained(), randn(2, 3, 4, 5))
    case("write.dropout", dropped, randn(2, 3, 4, 5))
    case("write.renorm", renormed, randn(5, 3), torch.tensor([1, 3, 1]))


def functions():
    special_functions()
    host_functions()
    margin_losses()
    counts_and_quantiles()
    arrangements()
    in_place()
