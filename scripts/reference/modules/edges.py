"""Operators at the edges of their rules: one element, odd sizes, both signs of offsets, every rank that a rule accepts."""
import torch
import torch.nn.functional as F

from torch.export import Dim

from modules.common import case, ints, randn


def created():
    case("edges.create", lambda x: (
        torch.arange(0.5, 4.2, 0.7) + x[0], torch.arange(5.5, 1.0, -1.5) + x[0], torch.linspace(1.25, 9.5, 1) + x[0], torch.linspace(-1.5, 9.5, 7) * x[0],
        *(torch.linspace(x[0], x[1], steps) for steps in (1, 2, 5))), randn(2))
    case("edges.bins", lambda x: (
        torch.histc(x, 5, -1, 1), torch.histc(x, 1, 0, 2), torch.histc(x, 4), torch.histogram(x, 3, range=(-2.0, 1.5))[0]), randn(20))


def diagonals():
    case("edges.diagonal", lambda x, m: (
        torch.diag_embed(x, 1), torch.diag_embed(x, -2), torch.diag_embed(x, 1, 0, 2), m.diagonal(-1), m.diagonal(2), torch.diagonal_scatter(m, x[0, :2], 2),
        torch.diagonal_scatter(m, x[1, :2], -1), m.trace()), randn(2, 3), randn(3, 4))
    case("edges.open_diagonal", lambda x: (x.diagonal(-1), x.diagonal(1), x.T.diagonal(2)), randn(5, 4), dyn={0: {0: Dim("rows", min=5, max=16)}})


def parts():
    case("edges.parts", lambda v, x: (
        *v.tensor_split(3), *v.tensor_split((-4, 5)), *v[:6].hsplit(3), *x.hsplit(2), *x.tensor_split(3, 1), *x.chunk(3, 1)), randn(7), randn(3, 4))


def convolutions():
    case("edges.conv", lambda x, d, y, w, u, v: (
        F.conv3d(x, d, stride=2, padding=1, dilation=(2, 1, 1), groups=4), F.conv2d(y, w, padding="same"), F.conv2d(y[0], w, padding="same", dilation=(1, 3)),
        F.conv1d(y[:, :, 0], u, padding="same", dilation=3), F.conv_transpose1d(y[0, :, 0], v, stride=3, padding=2)),
        randn(2, 4, 5, 6, 6), randn(4, 1, 2, 3, 3), randn(2, 3, 5, 6), randn(2, 3, 2, 3), randn(4, 3, 4), randn(3, 2, 2))
    case("edges.integer_conv", lambda x, w, v: (
        F.conv1d(x, w, padding=2, stride=2, dilation=2), F.conv_transpose1d(x, v, stride=3, padding=2, output_padding=1), F.conv_transpose1d(x, v, padding=1)),
        ints(9, 2, 3, 6, lo=-9), ints(9, 4, 3, 2, lo=-9), ints(9, 3, 2, 2, lo=-9))


def masks():
    sdpa = F.scaled_dot_product_attention
    case("edges.masks", lambda q, k, m, p: (
        sdpa(q, k, k, attn_mask=m), sdpa(q[0], k[0], k[0], attn_mask=m), sdpa(q, k, k, attn_mask=p), sdpa(q, k, k, attn_mask=p[:, :1]),
        sdpa(q[None], k[None], k[None], attn_mask=m), sdpa(q[None], k[None], k[None], attn_mask=p[None] > 0), sdpa(q[:, :1], k[:, :1], k[:, :1], attn_mask=p[0, 0])),
        randn(2, 3, 4, 8), randn(2, 3, 5, 8), randn(4, 5), randn(2, 3, 4, 5))


def quotients():
    case("edges.division", lambda i, x, h: (
        torch.div(i, 3, rounding_mode="trunc"), torch.div(i, torch.tensor(-3), rounding_mode="trunc"), torch.div(i, 2.5, rounding_mode="floor"), i // 2,
        torch.div(x, 0.7, rounding_mode="trunc"), x // 0.7, torch.div(h, 0.7, rounding_mode="floor"), i % torch.tensor(4), x % -1.5, i >> 2, i << 3),
        ints(20, 7, lo=-20), 3 * randn(7), (3 * randn(7)).half())


def sampled():
    line = torch.rand(1, 2, 3, 4, 3) * 2.4 - 1.2
    case("edges.grid", lambda x, g: tuple(
        F.grid_sample(x, g, mode=mode, padding_mode=padding, align_corners=aligned)
        for mode, padding, aligned in (("bilinear", "zeros", False), ("bilinear", "border", True), ("bilinear", "reflection", True), ("nearest", "reflection", False))),
        randn(1, 2, 3, 4, 1), line)


def chosen():
    case("edges.index", lambda x, i, j: (
        x[:, i, j], x[i, :, j], x[:, i], x[..., j, j], x[:, i[:, None], j], x[i, :, None, j], x[i][:, j]), randn(4, 5, 3), ints(4, 3), ints(3, 3))
    bag = F.embedding_bag
    offsets = torch.tensor([0, 2, 2, 5])
    case("edges.bags", lambda w, i, o: (
        bag(i, w, o, mode="sum", include_last_offset=True), bag(i, w, o[:3], mode="mean", padding_idx=1), bag(i, w, o[:3], mode="max", padding_idx=-2),
        bag(i, w, torch.arange(0, 6, 2), mode="sum", padding_idx=2), bag(i, w, torch.arange(0, 6, 2), mode="mean"), bag(i, w, torch.arange(0, 6, 2), mode="mean", include_last_offset=True)),
        randn(5, 3), ints(5, 6), offsets)


def products():
    case("edges.products", lambda a, b, c, i, j: (
        torch.addmm(c, a, b, beta=0, alpha=2), torch.addmm(c, a, b, beta=0.5, alpha=2), torch.addmm(i @ j, i, j, beta=3, alpha=2), torch.baddbmm(c, a[None], b[None], beta=2),
        i @ j[:, 0], i[0] @ j, i[0] @ j[:, 0], i[None] @ j[None], i @ j[None], i[None] @ j), randn(2, 4), randn(4, 3), randn(3), ints(9, 2, 4, lo=-9), ints(9, 4, 3, lo=-9))


def losses():
    case("edges.losses", lambda x, t, p, w: (
        F.cross_entropy(x[0], t[0]), F.cross_entropy(x[0], t[0], label_smoothing=0.2), F.cross_entropy(x, t, weight=w, label_smoothing=0.2),
        F.cross_entropy(x, p, weight=w, label_smoothing=0.1), F.cross_entropy(x[0], p[0]), F.nll_loss(x[0], t[0], weight=w), F.cross_entropy(x, t, ignore_index=2, reduction="none"),
        F.multi_margin_loss(x[0], t[0]), F.multi_margin_loss(x, t, p=2, weight=w)), randn(4, 5), ints(5, 4), torch.rand(4, 5), torch.rand(5))


def borders():
    case("edges.pad", lambda x: (
        F.pad(x, (-1, 2, 0, -2)), F.pad(x, (2, -1, -1, 3), value=1.5), F.pad(x, (3, 1), mode="circular"), F.pad(x, (2, -1), mode="reflect"), F.pad(x, (-1, 2), mode="replicate"),
        F.pad(x, (0, 0, 1, 0)), F.pad(x[None], (1, 2, 2, 1), mode="reflect"), F.pad(x[None], (0, 3, 2, 0), mode="replicate")), randn(2, 4, 5))


def pools():
    case("edges.pools", lambda x, c: (
        F.adaptive_avg_pool2d(x[0], (1, 3)), F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool1d(x[0], 4), *F.adaptive_max_pool2d(x[0], (2, 3), return_indices=True),
        F.adaptive_avg_pool3d(c, (2, 1, 3)), F.adaptive_avg_pool3d(c[0].half(), (2, 2, 2)), F.avg_pool2d(x, 2, 3), F.avg_pool2d(x[0], 2, 1, 1, divisor_override=3),
        *F.max_pool2d(x[0], 2, 3, 1, return_indices=True), F.max_pool1d(x[0], 3, 4, ceil_mode=True), F.lp_pool1d(x[0], 2, 3)),
        randn(1, 2, 5, 7), randn(1, 2, 3, 4, 5))


def padded_pools():
    case("edges.padded_pools", lambda x: tuple(
        F.avg_pool2d(x, 3, stride, 1, ceil_mode=ceil, count_include_pad=counts) for stride, ceil, counts in ((2, True, True), (2, True, False), (4, True, True), (2, False, False)))
        + (F.avg_pool2d(x, 3, 2, 1, True, True, 5), F.avg_pool2d(x, (2, 3), 3, (0, 1), True), F.avg_pool1d(x[0], 2, 4, 0, True)), randn(1, 2, 6, 8))


def chains():
    case("edges.chains", lambda a, b, c, d, v, w: (
        torch.linalg.multi_dot([a, b, c, d]), torch.linalg.multi_dot([v, a, b, c]), torch.linalg.multi_dot([b, c, d, w]), torch.linalg.multi_dot([v, a, b, c, d, w]),
        torch.einsum("ij,kj->i", a, b.T[:1]), torch.einsum("ij,jk->k", a[:, :1], b), torch.einsum("i,ij,j->", v, a, b[:, 0]), torch.linalg.cross(a[:, :3], b.T[:2, :3])),
        randn(2, 7), randn(7, 3), randn(3, 6), randn(6, 4), randn(2), randn(4))


def lengths():
    norm = torch.linalg.vector_norm
    case("edges.lengths", lambda x, h: (
        *(norm(x, p) for p in (0, 1, 2, 3, -1, float("inf"), -float("inf"))), *(norm(x, p, dim=1) for p in (0, 0.5, -2)), norm(x, dim=(0, 1), keepdim=True), norm(h, 3, dim=0),
        x.norm(), x.norm(1, 0), torch.linalg.matrix_norm(x), F.normalize(x, dim=0), torch.renorm(x, 2, 0, 1.0), torch.dist(x, x.flip(0), 3)), randn(3, 4), randn(3, 4).half())


def ordered():
    case("edges.ordered", lambda x, s, q, h: (
        *x.median(1), *x.median(0, keepdim=True), x.median(), *x.kthvalue(1), *x.kthvalue(4, 1), *s.median(0), *s.kthvalue(1, 0), *s.mode(0), *x.round().mode(1), x.quantile(0.4), x.quantile(q, 0),
        x.quantile(q, keepdim=True), x.nanquantile(q[0], 1), s.quantile(q), *h.round().mode(0), *x.sort(0, descending=True), *s.sort(), *s.topk(1)),
        randn(5, 4), torch.tensor(1.5), torch.tensor([0.0, 0.3, 1.0]), randn(6).half())


def cells():
    class Cells(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = torch.nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2)
            self.bare = torch.nn.LSTM(3, 4, bias=False, batch_first=True)
            self.gru = torch.nn.GRU(3, 4, 2, bidirectional=True, batch_first=True)
            self.rnn = torch.nn.RNN(3, 2, bidirectional=True, nonlinearity="relu")

        def forward(self, x):
            (a, (b, c)), (d, (e, f)), (g, h), (i, j) = self.lstm(x), self.bare(x), self.gru(x), self.rnn(x[:, 0])
            return a, b, c, d, e, f, g, h, i, j

    case("edges.cells", Cells(), randn(3, 2, 3))


def resized():
    size = F.interpolate
    case("edges.resize", lambda x, h, v, b: (
        *(size(x, scale_factor=f, mode="nearest") for f in (2, 1.5, 0.6)), size(x, scale_factor=(2.0, 0.5), mode="nearest-exact"), size(x, (1, 9), mode="bilinear", align_corners=True),
        size(x, (5, 6), mode="bilinear"), size(x, (3, 11), mode="bicubic"), size(x, scale_factor=0.45, mode="bilinear", antialias=True), size(x, (4, 3), mode="bicubic", antialias=True),
        size(x, (2, 3), mode="area"), size(h, (4, 9), mode="bilinear"), size(h, (3, 3), mode="bicubic"), size(x[0], 13, mode="linear"), size(x[0], 1, mode="linear", align_corners=True),
        size(v, (2, 5, 3), mode="trilinear"), size(v.half(), (4, 2, 5), mode="trilinear", align_corners=True), size(v, scale_factor=2, mode="nearest"), size(b, (9, 3), mode="nearest"),
        size(b, (3, 5), mode="bicubic")), randn(1, 2, 5, 6), randn(1, 2, 5, 6).half(), randn(1, 2, 3, 4, 3), ints(256, 1, 2, 4, 7, dtype=torch.uint8))


def arranged():
    case("edges.shapes", lambda x, v: (
        x.unflatten(2, (-1, 2)), x.unflatten(0, (2, 1)), x.reshape(-1, 4), x[:1].expand(3, -1, -1), x[:1].squeeze(0), x[:1].squeeze((0, 1)), v.T, v.expand(2, 3), x.mT, v.unsqueeze(-1),
        torch.cat([v, x[0, 0], v[:0]]), torch.meshgrid(v, x[0, 0], indexing="xy")[1], x.movedim((0, 1), (2, 0)), x.flatten(1), v.flatten(), x[0, 0, 0].flatten(), x.repeat(2, 1, 1, 3),
        x.roll((1, -2), (0, 2)), x.roll(3), x.rot90(1, (1, 2)), x.narrow(1, -2, 2), x[:, -2:, 1:-1], v.tile(2, 2), x.repeat_interleave(2, 1), torch.stack([v, v], -1), x.unfold(2, 3, 1)),
        randn(2, 3, 4), randn(3))


def placed():
    case("edges.placed", lambda x, i, j, m, v: (
        torch.ops.aten.index_put(x, [i, j], v[0]), torch.ops.aten.index_put(x, [None, j], v[:, :1], True), torch.ops.aten.index_put(x, [m], v[0, 0]), x.index_add(1, j, x[:, :3], alpha=2),
        x.scatter(1, j[None], 2.0), x.scatter_reduce(0, i[None], x[:1, :3], "amax"), x.scatter_reduce(1, j[None], x[:1], "mean", include_self=False), x.index_copy(0, i[:1], x[:1]),
        torch.ops.aten.index_put(x, [i, None], x[:3] * 2, True), x.masked_scatter(m, x * 3), x.scatter_add(0, i[:, None], x[:3])), randn(4, 5), ints(4, 3), torch.tensor([4, 0, 2]), randn(4, 5) > 0, randn(4, 3))


def scaled():
    case("edges.norms", lambda x, w, m, v: (
        F.batch_norm(x, m, v, w), F.batch_norm(x, m, v, None, w), F.batch_norm(x, m, v), F.batch_norm(x[:, :, 0], m, v, w, m), F.layer_norm(x, (5,)), F.layer_norm(x, (3, 5)), F.group_norm(x, 3),
        F.group_norm(x, 1, w, m), F.instance_norm(x, m, v, w), F.local_response_norm(x, 2), torch.var_mean(x, (0, 2), correction=0)[0], *torch.std_mean(x, 1), x.softmax(0), x.log_softmax(2)),
        randn(2, 3, 5), torch.rand(3), randn(3), torch.rand(3))


def edges():
    for group in (created, diagonals, parts, convolutions, masks, quotients, sampled, chosen, products, losses, borders, pools, padded_pools, chains, lengths, ordered, cells, resized, arranged, placed, scaled):
        group()
