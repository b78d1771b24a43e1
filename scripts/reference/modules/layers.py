"""Resampling, pooling, convolutions, losses and activations."""
import copy
import itertools

import torch
import torch.nn.functional as F
from torch import nn

from modules.common import FLOATS, case, ints, randn


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
