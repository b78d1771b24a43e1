"""Programs with dynamic sizes."""
import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from modules.attention import Attention
from modules.common import FLOATS, N, T, case, ints, randn


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


class Table(nn.Module):
    """Windows over a constant by lengths and places that only a run knows."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", randn(16, 6))

    def forward(self, x, n):
        rows = self.table[: x.shape[0]]
        length = n.item()
        torch._check(length >= 1)
        torch._check(length < 16)
        return x * rows, self.table[: x.shape[0] - 1] + x[1:], x + self.table.narrow(0, 0, x.shape[0]), self.table[length] * 2, self.table[:length].sum(0)


def parts(x):
    first, rest = x[:1], x[:, 1:]
    return (x * first, rest.chunk(2, 1)[0], x.narrow(0, -1, 1), x.narrow(1, -2, 2) * 2, x[-1:] + x, x.cummax(0)[0], x.cummin(1)[1], x.kthvalue(1, 0)[0],
            x.diff(n=2, dim=1), x.diff(n=0), torch.fft.fftshift(x), x.std(1, correction=0.5), x.diagonal(), x.trace(), x.diagonal_scatter(torch.zeros_like(x.diagonal())),
            x.median(), F.pdist(x), x.hsplit([2])[1])


def pools(x):
    return (F.adaptive_avg_pool2d(x, 3), F.adaptive_avg_pool2d(x, (x.shape[3], 2)), F.adaptive_max_pool2d(x, 3, return_indices=True), F.adaptive_max_pool1d(x[0], 2),
            F.max_pool2d(x, 2, ceil_mode=True), F.max_pool2d(x, 3, stride=2, padding=1, return_indices=True), F.avg_pool2d(x, 3, stride=2, padding=1, ceil_mode=True),
            F.avg_pool1d(x[0], 3, stride=2, padding=1, count_include_pad=False), F.instance_norm(x.transpose(1, 2)))


def resized(x, grid):
    def resize(mode, **kwargs):
        return F.interpolate(x, mode=mode, **kwargs)

    return (resize("bicubic", size=(6, 5)), resize("bicubic", size=(6, 5), align_corners=True), resize("bilinear", size=(4, 9), antialias=True),
            resize("bicubic", size=(4, 9), antialias=True), resize("bilinear", scale_factor=1.7), resize("bicubic", scale_factor=0.6, recompute_scale_factor=True),
            F.grid_sample(x, grid, align_corners=False), F.grid_sample(x, grid, mode="bicubic", padding_mode="reflection", align_corners=True))


def scattered(x, index, src):
    return (x.scatter_reduce(0, index, src, "amax"), x.scatter_reduce(0, index, src, "amin", include_self=False), x.scatter_reduce(0, index, src, "prod"),
            x.index_reduce(0, index[:, 0], src, "amax"))


def computed(x):
    n = torch.sym_ite(x.shape[0] > 4, x.shape[0] * 2, x.shape[0] + 1)
    return torch.ones(n), x * x.shape[0] ** -0.5, x * (1.0 / x.shape[0]), torch.ones(2 * (x.shape[0] // 2 + 1) ** 2), torch.ones(2 ** x.shape[0])


def patches(x):
    """Patches of an image, the image from its patches, and squares of it as channels."""
    unfolded = F.unfold(x, (3, 2), padding=(1, 0), stride=(2, 1), dilation=(1, 2))
    return unfolded, F.fold(unfolded, x.shape[2:], (3, 2), padding=(1, 0), stride=(2, 1), dilation=(1, 2)), F.pixel_unshuffle(x, 2)


def channels(x, y, w, v, u, q):
    """Numbers of channels, kernels and heads' elements that only a run tells."""
    return (F.group_norm(x, 2), F.conv1d(x, w, padding="same"), F.conv3d(y, v, groups=3, padding=1), F.conv3d(y, u, groups=3), F.scaled_dot_product_attention(q, q, q))


def open_sizes():
    """Sizes of slices, pools, resampled axes and scatters that the bounds of the program decide, or nodes compute."""
    any_size = Dim.AUTO
    case("open.table", Table(), randn(5, 6), torch.tensor(3), dyn={0: {0: Dim.AUTO(min=4, max=15)}, 1: None}, test=((randn(9, 6), torch.tensor(7)), {}))
    case("open.parts", parts, randn(5, 6), dyn={0: {0: Dim.AUTO(min=4, max=12), 1: Dim.AUTO(min=4, max=12)}}, test=((randn(8, 7), ), {}))
    case("open.pools", pools, randn(2, 3, 7, 6), dyn={0: {2: Dim.AUTO(min=4), 3: Dim.AUTO(min=4)}}, test=((randn(2, 3, 9, 8), ), {}))
    case("open.resized", resized, randn(2, 3, 7, 6), torch.rand(2, 4, 3, 2) * 2.4 - 1.2, dyn={0: {2: Dim.AUTO(min=4), 3: Dim.AUTO(min=4)}, 1: {1: any_size}},
         test=((randn(2, 3, 9, 10), torch.rand(2, 5, 3, 2) * 2.4 - 1.2), {}))
    case("open.scattered", scattered, randn(5, 3), ints(5, 7, 3), randn(7, 3), dyn={0: {0: any_size}, 1: {0: any_size}, 2: {0: any_size}},
         test=((randn(6, 3), ints(6, 4, 3), randn(4, 3)), {}))
    case("open.computed", computed, randn(3, 2), dyn={0: {0: Dim("n", min=2, max=12)}}, test=((randn(7, 2), ), {}))
    case("open.image", lambda x: F.conv2d(x, torch.ones(2, 3, 3, 3)), randn(2, 3, 5, 6), dyn={0: {0: any_size, 2: any_size, 3: any_size}}, test=((randn(1, 3, 8, 7), ), {}))
    case("open.channels", channels, randn(2, 4, 7), randn(1, 6, 4, 5, 5), randn(5, 4, 3), randn(6, 2, 3, 3, 3), randn(3, 2, 4, 2, 2), randn(2, 2, 3, 8),
         dyn={0: {1: any_size}, 1: {1: any_size}, 2: {1: any_size, 2: any_size}, 3: {1: any_size}, 4: {1: any_size}, 5: {3: any_size}},
         test=((randn(2, 6, 7), randn(1, 9, 4, 5, 5), randn(5, 6, 4), randn(6, 3, 3, 3, 3), randn(3, 3, 4, 2, 2), randn(2, 2, 3, 5)), {}))
    case("open.patches", patches, randn(2, 3, 6, 8), dyn={0: {2: any_size, 3: any_size}}, test=((randn(2, 3, 8, 10), ), {}))
    case("open.causal", lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True), randn(2, 2, 5, 8), randn(2, 2, 7, 8),
         dyn={0: {2: any_size}, 1: {2: any_size}}, test=((randn(2, 2, 6, 8), randn(2, 2, 4, 8)), {}))
