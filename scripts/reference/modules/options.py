"""Operators with options away from their defaults, many to a case."""
import torch
import torch.nn.functional as F

from modules.common import N, case, ints, randn


def options():
    x, labels, shares = randn(4, 5), ints(5, 4), torch.rand(4, 5)
    case("options.losses", lambda x, t, p: (
        F.cross_entropy(x, t, weight=p[0]), F.cross_entropy(x, p), F.huber_loss(x, p, delta=0.3), F.smooth_l1_loss(x, p, beta=0.4)),
        x, labels, shares)

    image = randn(1, 2, 5, 6)
    case("options.resize", lambda x, b: (
        F.interpolate(x, size=(8, 9), mode="bilinear", align_corners=True),
        F.interpolate(x, scale_factor=(0.7, 1.6), mode="bilinear", recompute_scale_factor=False),
        F.interpolate(b, size=(3, 4), mode="bilinear", antialias=True)), image, ints(256, 1, 2, 7, 9, dtype=torch.uint8))
    case("options.grid", lambda x, t: (
        F.grid_sample(x, F.affine_grid(t, (1, 2, 3, 4), align_corners=False), mode="bicubic", align_corners=False),
        F.affine_grid(t, (1, 2, 3, 4), align_corners=True)), image, torch.tensor([[[0.8, 0.1, 0.05], [-0.2, 0.7, 0.1]]]))
    case("options.windows", lambda x: (
        F.pixel_unshuffle(x[..., :4, :], 2), F.unfold(x, (2, 3), padding=1, stride=2), F.adaptive_avg_pool2d(x, (3, 4))), image)

    case("options.layout", lambda x, b, e: (
        torch.cat([e, x, x], 0), torch.cat([e, e]), torch.diff(b, dim=1), torch.diagonal_scatter(x, e, 7), torch.fft.ifftshift(x), torch.fft.fftshift(x, 1)),
        x, x > 0, torch.zeros(0))
    case("options.sort", lambda x: (
        *x.topk(2, largest=False), *(x.quantile(0.3, 1, interpolation=i) for i in ("lower", "higher", "midpoint", "nearest", "linear")),
        x.round().mode(1)[0], x.round().int().mode(0)[0]), randn(3, 6))
    case("options.create", lambda x: (
        x + torch.linspace(-3.7, 9.4, 6), torch.linspace(-3.7, 9.4, 5, dtype=torch.int64) + x.long()[:5], x * torch.hann_window(6),
        x * torch.hamming_window(6, periodic=False)), randn(6))
    case("options.statistics", lambda x: (
        *torch.native_layer_norm(x, [5], None, None, 1e-5), torch.native_dropout(x, 0.5, False)[0], torch.aminmax(x, dim=1).max,
        torch.aminmax(x, dim=0).min), x)
    case("options.products", lambda x, i, v: (
        torch.einsum("...ij,...jk->...ik", x, x.mT), torch.einsum("...i->...", x), i @ i, i @ v, v @ i, v @ v), randn(2, 3, 4), ints(9, 4, 4), ints(9, 4))
    case("options.casts", lambda x, i: (x.half().float(), x.bfloat16().float() + 1, i.to(torch.uint8).long(), i.int().long()), 100 * x, ints(4000, 6))
    case("options.put", lambda x, i, j, v: torch.ops.aten.index_put(x, [i, None, j], v), randn(3, 4, 5), ints(3, 2), ints(5, 2), randn(2, 4))
    q, k, v = randn(1, 2, 2, 4, 8), randn(1, 2, 2, 3, 8), randn(1, 2, 2, 3, 8)
    sdpa = F.scaled_dot_product_attention
    case("options.attention", lambda q, k, v: (sdpa(q, k, v), sdpa(q[0], k[0], v[0], is_causal=True)), q, k, v)
    case("options.parts", lambda x: x.chunk(3, 1) + x.split(2, 1), randn(3, 7), dyn={0: {0: N}})
