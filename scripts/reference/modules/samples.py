"""Operators as PyTorch's own samples use them: halves, empty axes, tensors of other ranks, strides, complex halves."""
import torch
import torch.nn.functional as F
from torch.export import Dim

from modules.common import N, case, ints, randn


def attention_ranks():
    sdpa, mask = F.scaled_dot_product_attention, randn(2, 1, 1, 4, 3)
    case("samples.attention", lambda q, k, v, m: (
        sdpa(q[0, 0], k, v), sdpa(q, k, v, attn_mask=m), sdpa(q[:, :, :1], k, v), sdpa(q[0, 0, 0], k[0, 0], v[0, 0], is_causal=True), sdpa(q[:1], k, v, attn_mask=m > 0)),
        randn(2, 3, 2, 4, 8), randn(2, 3, 2, 3, 8), randn(2, 3, 2, 3, 8), mask)


def casts():
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 3e9, -3e9, 1e19, 300.7, -300.7, 70000.0])
    case("samples.casts", lambda x, h: tuple(t.to(d) for t in (x, h) for d in (torch.uint8, torch.int32, torch.int64)) + (x.to(torch.int16).int(), h.char().int()),
         x, x.half())


def running_extremes():
    case("samples.running", lambda x: (*x.chunk(3)[2].cummax(0), *x.chunk(3)[2].cummin(0), *(x > 0).cummax(1), *x.long().cummin(0)), randn(13, 4), dyn={0: {0: Dim.AUTO}})


def carried_halves():
    case("samples.carried", lambda x, y: tuple(r for t in (x, y) for r in (t.cumprod(0), t.logcumsumexp(0))),
         (1 + randn(200, 2) / 20).half(), (1 + randn(200, 2) / 20).bfloat16(), rtol=4e-3)


def apart_windows():
    case("samples.apart_windows", lambda x: (
        *F.max_pool2d(x, (1, 2), dilation=2, stride=(3, 1), return_indices=True), F.max_pool1d(x[0], 2, 1, 0, 2), F.max_pool2d(x, (2, 1), 1, 0, (2, 1)),
        x.as_strided((3, 5, 2), (9, 1, 2)).sum(2)), randn(2, 3, 7, 9))


def turned_nothing():
    case("samples.turned_nothing", lambda x: (
        x.transpose(0, 1).sum(1), x.transpose(0, 1).prod(1), x.transpose(0, 1).all(1), x.permute(1, 2, 3, 0).mean(3)), randn(0, 3, 8, 8))


def complex_halves():
    def halves(x, y, length, angle):
        a, b = torch.view_as_complex(x), torch.view_as_complex(y)
        return torch.view_as_real(a * b), torch.view_as_real(torch.polar(length, angle)), a.real, torch.view_as_real(x[:, 0].chalf())

    case("samples.complex", halves, *(t.half() for t in (randn(5, 2), randn(5, 2), randn(3, 4).abs(), randn(3, 4))))


def empty_axes():
    case("samples.empty", lambda x, m, v: (
        torch.logsumexp(x, 0), torch.logsumexp(x.reshape(0, 3), 0, keepdim=True), F.batch_norm(x, m, v, training=True), F.batch_norm(x, m, v)),
        randn(0), randn(0), randn(0))


def strides_and_cubes():
    case("samples.strides", lambda x, y: torch.as_strided_scatter(x, y, (2, 2), (1, 3), 1), randn(3, 4), randn(2, 2))
    case("samples.grid", lambda x, g: (
        F.grid_sample(x, g, mode="bicubic", align_corners=False), F.grid_sample(x.half(), g.half(), mode="bicubic", padding_mode="border", align_corners=True)),
        randn(1, 2, 3, 4, 3), torch.rand(1, 2, 3, 2, 3) * 2.2 - 1.1)


def truth_as_labels():
    case("samples.labels", lambda x, y, t: (F.cosine_embedding_loss(x, y, t, 0.3, reduction="none"), F.hinge_embedding_loss(x[:, 0], t, reduction="none")),
         randn(4, 5), randn(4, 5), torch.tensor([True, False, False, True]))


def many_groups():
    case("samples.conv3d", lambda x, w, v: (
        F.conv3d(x, w, padding=1, stride=(2, 1, 1), groups=72), F.conv3d(x, v, dilation=(2, 1, 1), groups=36)),
        randn(2, 72, 7, 4, 5), randn(72, 1, 3, 3, 3), randn(36, 2, 2, 3, 3), dyn={0: {0: N}})


def sums_of_halves():
    weight, shares = (randn(10, 5) * 4).bfloat16(), (randn(5, 5) * 4).bfloat16()
    case("samples.bags", lambda i, w, s: F.embedding_bag(i, w, mode="sum", per_sample_weights=s), ints(10, 5, 5), weight, shares)
    image, kernel = (randn(1, 8, 9, 9) * 4).bfloat16(), (randn(8, 8, 3, 3) * 4).bfloat16()
    # The bias takes away most of the sums, so that their rounding shows.
    bias = -F.conv2d(image.float(), kernel.float()).mean((0, 2, 3)).bfloat16()
    case("samples.conv", lambda x, w, b: (F.conv2d(x, w, b), F.conv1d(x[:, :, 0], w[:, :, 0], b)), image, kernel, bias)


def updated_statistics():
    def updated(x, w, b, m, v):
        m, v = m * 1, v * 1
        y, mean, scale, _ = torch.ops.aten._batch_norm_with_update(x, w, b, m, v, 0.3, 1e-5)
        return y, mean, scale, m, v

    case("samples.batch_norm", updated, randn(4, 3, 5), randn(3), randn(3), randn(3), randn(3).abs())


def equal_elements():
    """Positions among equal elements, in a delegate and outside."""
    few, many = ints(3, 2, 70), ints(9, 40, 3)
    case("samples.ties", lambda x, y: (
        *torch.topk(x, 5, dim=1), torch.topk(x, 1, largest=False).indices, *torch.topk(y.bfloat16(), 9, dim=0), torch.topk(y.half(), 30, dim=0, sorted=False).values,
        *torch.kthvalue(x, 33), torch.kthvalue(y.bfloat16(), 7, dim=0, keepdim=True).indices, *torch.mode(x), torch.mode(y.float(), 0).indices,
        torch.argsort(x.to(torch.uint8), descending=True), torch.sort(y, 0).indices, torch.sort(y, dim=0, stable=True).indices, torch.median(x, 1).indices), few, many)


def rounded_halves():
    """Values that depend on where PyTorch rounds, and poles."""
    chain = [(torch.rand(*size) * 17 - 8.5).half() for size in ((2, 4), (4, 3), (3, 5), (5, 3), (3, 2))]
    table, rows, shares = (torch.rand(40, 5) * 17 - 8.5).bfloat16(), ints(40, 60), (torch.rand(60) * 17 - 8.5).bfloat16()
    lengths, whole = torch.tensor([3, 0, 20, 17]), -torch.arange(1, 7)
    case("samples.rounded", lambda w, i, s, n, x, *m: (
        torch.linalg.multi_dot(m), F.embedding_bag(i, w.clone(), torch.arange(0, 60, 6), mode="sum", max_norm=1.0, per_sample_weights=s),
        torch.segment_reduce(w, "sum", lengths=n, unsafe=True), torch.segment_reduce(w.half(), "mean", lengths=n, unsafe=True),
        torch.segment_reduce((w / 4).half(), "prod", lengths=n, unsafe=True, initial=0.7), torch.polygamma(1, x), torch.polygamma(1, x.bfloat16())),
        table, rows, shares, lengths, whole.float(), *chain)


def pools():
    """Random places for more images than there are, and means that PyTorch rounds after each addition."""
    volume = torch.rand(2, 8, 8, 6) * 17 - 8.5
    case("samples.pools", lambda x, s, v: (
        F.fractional_max_pool3d(x, 2, output_size=(2, 3, 3), _random_samples=s), F.adaptive_avg_pool3d(v.bfloat16(), (5, 7, None)),
        F.adaptive_avg_pool3d(v.half(), (None, 2, 3)), F.adaptive_avg_pool3d(v.bfloat16(), 1)), randn(4, 5, 5, 6), torch.rand(2, 4, 3), volume)


def calls_without_elements():
    empty = randn(0, 0, 4)
    case("samples.nothing", lambda x, y, w: (
        *x.split(2, 1), *y.chunk(2, -1), *x.cummax(1), F.conv1d(x, w), F.scaled_dot_product_attention(x, x, x),
        F.scaled_dot_product_attention(y, y, y), x[x > 0], y[y > 0]), empty, randn(2, 3, 0), randn(2, 0, 1))
    case("samples.open_nothing", torch.linalg.inv, randn(0, 5, 5), dyn={0: {1: Dim.AUTO, 2: Dim.AUTO}})


def roots_and_epsilons():
    """Roots spelt as powers, an unstated epsilon, axes of a rank-0 tensor."""
    ends = torch.tensor([-torch.inf, torch.inf, -1.0, 0.0, 4.0, 0.3])
    small = randn(3, 8) / 50
    case("samples.roots", lambda x, h: (x ** 0.5, x ** -0.5, h.sqrt(), h ** -0.5, x[4].swapaxes(0, -1)), ends, ends.bfloat16())
    case("samples.epsilon", lambda *x: tuple(F.rms_norm(t, (8,)) for t in x), small, small.half(), small.bfloat16())


def frequencies():
    case("samples.frequencies", lambda x: (x * torch.fft.fftfreq(9), torch.fft.fftfreq(6, 0.25), torch.fft.rfftfreq(9, 2), x[:5] + torch.fft.rfftfreq(8)), randn(9))


def decomposed_checks():
    """Errors that the program checks for, and the noise of inference, as decompositions leave them."""
    square = randn(2, 3, 3) + 3 * torch.eye(3)
    case("samples.effects", lambda x, y: (torch.linalg.inv(x), torch.linalg.cholesky(x @ x.mT), F.rrelu(y)), square, randn(4), core=True)


def fake_quantization():
    """Values rounded as in training for integers, and which of them were in range."""
    scales, zeros = torch.tensor([0.1, 0.2, 0.05]), torch.tensor([0, 1, -2], dtype=torch.int32)
    fq = torch.ops.aten
    case("samples.fake_quantized", lambda x, s, z: (
        torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 15), torch.fake_quantize_per_tensor_affine(x.bfloat16(), 0.05, 0, -128, 127),
        torch.fake_quantize_per_tensor_affine(x, s[0], z[1], -8, 7), torch.fake_quantize_per_channel_affine(x, s, z, 0, -8, 7),
        *fq.fake_quantize_per_channel_affine_cachemask(x, s, z, 0, -8, 7), fq.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 3, 0, 15)[1]),
        randn(3, 6), scales, zeros)


def samples():
    attention_ranks()
    casts()
    running_extremes()
    carried_halves()
    turned_nothing()
    apart_windows()
    complex_halves()
    empty_axes()
    strides_and_cubes()
    truth_as_labels()
    many_groups()
    sums_of_halves()
    updated_statistics()
    equal_elements()
    rounded_halves()
    pools()
    calls_without_elements()
    roots_and_epsilons()
    frequencies()
    decomposed_checks()
    fake_quantization()
