"""Small models, autocast, quantized layers."""
import itertools

import torch
import torch.nn.functional as F
from torch import nn

from modules.common import FLOATS, N, T, case, ints, randn


class SmallViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.cls, self.pos = nn.Parameter(randn(1, 1, 16)), nn.Parameter(randn(1, 17, 16))
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True, activation="gelu") for _ in range(2)])
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class SmallUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, 2, 1), nn.Conv2d(24, 8, 3, padding=1)
        self.time, self.norm, self.out = nn.Linear(8, 16), nn.GroupNorm(4, 16), nn.Conv2d(8, 3, 1)

    def forward(self, x, t):
        freq = torch.exp(-torch.arange(4) / 4 * 9.2)
        emb = torch.cat([(t[:, None] * freq).sin(), (t[:, None] * freq).cos()], -1)
        a = F.silu(self.a(x))
        b = F.silu(self.norm(self.b(a)) + self.time(emb)[:, :, None, None])
        up = F.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        return self.out(F.silu(self.c(torch.cat([up, a], 1))))


class SmallMoE(nn.Module):
    def __init__(self, n=4, top=2, width=8):
        super().__init__()
        self.gate, self.top = nn.Linear(width, n, bias=False), top
        self.up, self.down = nn.Parameter(randn(n, width, 16)), nn.Parameter(randn(n, 16, width))

    def forward(self, x):
        scores = self.gate(x).softmax(-1)
        weights, chosen = scores.topk(self.top, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        y = torch.einsum("td,tkdh->tkh", x, self.up[chosen])
        y = torch.einsum("tkh,tkhd->tkd", F.silu(y), self.down[chosen])
        return (y * weights[..., None]).sum(1)


class DenseMoE(SmallMoE):
    def forward(self, x):
        scores = self.gate(x).softmax(-1)
        weights, chosen = scores.topk(self.top, -1)
        full = torch.zeros_like(scores).scatter(-1, chosen, weights)
        mask = F.one_hot(chosen, scores.shape[-1]).permute(2, 1, 0)
        y = torch.zeros_like(x)
        for e in range(scores.shape[-1]):
            y = y + full[:, e : e + 1] * (F.silu(x @ self.up[e]) @ self.down[e]) * (mask[e].sum(0) > 0)[:, None]
        return y


class SelectiveScan(nn.Module):
    def __init__(self, width=6, state=4):
        super().__init__()
        self.a, self.x, self.dt, self.conv = nn.Parameter(randn(width, state)), nn.Linear(width, 2 * state + 1), nn.Linear(1, width), nn.Conv1d(width, width, 3, padding=2, groups=width)

    def forward(self, u):
        u = F.silu(self.conv(u.transpose(1, 2))[..., : u.shape[1]].transpose(1, 2))
        dt, b, c = self.x(u).split([1, 4, 4], -1)
        dt = F.softplus(self.dt(dt))
        da = torch.exp(dt[..., None] * -torch.exp(self.a))
        dbu = dt[..., None] * b[:, :, None] * u[..., None]
        h, ys = torch.zeros_like(da[:, 0]), []
        for t in range(u.shape[1]):
            h = da[:, t] * h + dbu[:, t]
            ys.append((h * c[:, t, None]).sum(-1))
        return torch.stack(ys, 1)


class RopeDecoder(nn.Module):
    def __init__(self, width=16, heads=4, kv=2, layers=2, vocab=32):
        super().__init__()
        self.heads, self.kv, self.dim = heads, kv, width // heads
        self.embed = nn.Embedding(vocab, width)
        self.q = nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(layers)])
        self.k = nn.ModuleList([nn.Linear(width, kv * self.dim, bias=False) for _ in range(layers)])
        self.v = nn.ModuleList([nn.Linear(width, kv * self.dim, bias=False) for _ in range(layers)])
        self.o = nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(layers)])
        self.gate = nn.ModuleList([nn.Linear(width, 24, bias=False) for _ in range(layers)])
        self.up = nn.ModuleList([nn.Linear(width, 24, bias=False) for _ in range(layers)])
        self.down = nn.ModuleList([nn.Linear(24, width, bias=False) for _ in range(layers)])
        self.n1 = nn.ModuleList([nn.RMSNorm(width, eps=1e-5) for _ in range(layers)])
        self.n2 = nn.ModuleList([nn.RMSNorm(width, eps=1e-5) for _ in range(layers)])
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.register_buffer("inv", 1.0 / 10000 ** (torch.arange(0, self.dim, 2) / self.dim))

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(self, ids):
        b, t = ids.shape
        x = self.embed(ids)
        angle = torch.arange(t, device=ids.device)[:, None] * self.inv[None].float()
        angle = torch.cat([angle, angle], -1)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for i in range(len(self.q)):
            h = self.n1[i](x)
            q = self.rotate(self.q[i](h).view(b, t, self.heads, -1).transpose(1, 2), cos, sin)
            k = self.rotate(self.k[i](h).view(b, t, self.kv, -1).transpose(1, 2), cos, sin)
            v = self.v[i](h).view(b, t, self.kv, -1).transpose(1, 2)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.o[i](y.transpose(1, 2).reshape(b, t, -1))
            h = self.n2[i](x)
            x = x + self.down[i](F.silu(self.gate[i](h)) * self.up[i](h))
        return self.norm(x) @ self.embed.weight.t()


def models():
    case("model.vit", SmallViT(), randn(2, 3, 16, 16))
    case("model.vit_dyn", SmallViT(), randn(2, 3, 16, 16), dyn={0: {0: N}}, test=((randn(5, 3, 16, 16),), {}))
    case("model.unet", SmallUNet(), randn(2, 3, 8, 8), torch.tensor([1.0, 50.0]))
    case("model.moe", SmallMoE(), randn(5, 8))
    case("model.moe_dyn", SmallMoE(), randn(5, 8), dyn={0: {0: N}}, test=((randn(9, 8),), {}))
    case("model.moe_bf16", SmallMoE().bfloat16(), randn(5, 8, dtype=torch.bfloat16))
    case("model.moe_dense", DenseMoE(), randn(5, 8))
    case("model.ssm", SelectiveScan(), randn(2, 7, 6))
    for name, dtype in FLOATS.items():
        case(f"model.decoder.{name}", RopeDecoder().to(dtype), ints(32, 2, 6), dyn={0: {0: N, 1: T}}, test=((ints(32, 3, 11),), {}), atol=None if name == "f32" else 0.15)
    case("model.transformer", nn.Transformer(8, 2, 1, 1, 16, batch_first=True), randn(2, 5, 8), randn(2, 3, 8))
    case("model.encoder_mask", lambda x, p, m=nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(): m(x, src_key_padding_mask=p), randn(2, 5, 8), torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 1]], dtype=torch.bool))
    res = lambda: nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(), nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.BatchNorm2d(8), nn.Hardswish(), nn.AdaptiveAvgPool2d((3, 3)), nn.Flatten(), nn.Dropout(0.2), nn.Linear(72, 5), nn.LogSoftmax(1))
    case("model.mobile", res(), randn(2, 3, 16, 16))
    case("model.autoencoder", nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(4, 1, 3, 2, 1, 1), nn.Sigmoid()), randn(2, 1, 8, 8))
    case("model.wavenet", nn.Sequential(nn.Conv1d(1, 4, 2, dilation=1), nn.Tanh(), nn.Conv1d(4, 4, 2, dilation=2), nn.GLU(1), nn.Conv1d(2, 1, 2, dilation=4)), randn(2, 1, 20))
    case("model.norms", nn.Sequential(nn.InstanceNorm2d(4, affine=True), nn.GroupNorm(2, 4), nn.BatchNorm2d(4), nn.LocalResponseNorm(2), nn.LayerNorm([4, 6, 6])), randn(2, 4, 6, 6))
    case("model.instance_stats", nn.InstanceNorm1d(4, track_running_stats=True), randn(2, 4, 6))
    case("model.bn1d", nn.BatchNorm1d(6), randn(4, 6))
    case("model.bn3d", nn.BatchNorm3d(2), randn(2, 2, 3, 4, 5))
    case("model.bilinear", nn.Bilinear(3, 4, 5), randn(2, 3), randn(2, 4))
    case("model.weight_norm", nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), randn(2, 4))
    case("model.spectral_norm", nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)).eval(), randn(2, 4))
    case("model.graph", lambda x, s, d: torch.zeros_like(x).index_add(0, d, x[s]) / torch.zeros(x.shape[0]).index_add(0, d, torch.ones(d.shape[0])).clamp(min=1)[:, None], randn(5, 3), torch.tensor([0, 1, 2, 4]), torch.tensor([1, 1, 0, 3]))
    case("model.kmeans", lambda x, c: (torch.cdist(x, c).argmin(1), torch.cdist(x, c, p=1).min(1)[0]), randn(8, 3), randn(4, 3))
    case("model.pdist", lambda x: torch.nn.functional.pdist(x), randn(5, 3))
    case("model.fourier", lambda x, f: torch.cat([(x @ f).sin(), (x @ f).cos()], -1), randn(5, 2), randn(2, 4))
    case("model.autocast", lambda x, w: autocast(x, w), randn(3, 4), randn(4, 5))
    case("model.no_grad", lambda x: no_grad(x), randn(3, 4))
    case("model.stft", lambda x: torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True).abs(), randn(1, 64))
    case("model.rfft", lambda x, m: torch.view_as_real(torch.fft.rfft(x * m)), randn(2, 16), torch.hann_window(16))
    case("model.fft_conv", lambda x, k: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(k), n=16), randn(2, 16), randn(16))
    case("model.rope_complex", lambda x, f: torch.view_as_real(torch.view_as_complex(x.reshape(2, 5, 4, 2)) * torch.polar(torch.ones(5, 4), f)).flatten(-2), randn(2, 5, 8), randn(5, 4))


def autocast(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ w).softmax(-1)


def no_grad(x):
    with torch.no_grad():
        return x * 2 + 1


def quantized_activations():
    """Classes of torchao's tensors beside those of integers, activations that are quantized as the program runs, and PT2E."""
    import torchao.quantization as q
    from torchao.prototype.mx_formats.inference_workflow import NVFP4WeightOnlyConfig
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

    configs = {
        "int8": q.Int8DynamicActivationInt8WeightConfig(), "int8_uneven": q.Int8DynamicActivationInt8WeightConfig(act_mapping_type=q.quant_primitives.MappingType.ASYMMETRIC),
        "8da4w": q.Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=q.PerGroup(32)), "float8": q.Float8WeightOnlyConfig(),
        "float8_e5m2": q.Float8WeightOnlyConfig(weight_dtype=torch.float8_e5m2), "nvfp4": NVFP4WeightOnlyConfig(),
    }
    for (kind, config), (name, dtype) in itertools.product(configs.items(), FLOATS.items()):
        if (kind, name) == ("nvfp4", "f16"):
            continue
        module = nn.Linear(64, 32).to(dtype)
        q.quantize_(module, config)
        case(f"quant.{kind}.{name}", module, randn(3, 64, dtype=dtype), atol=0.03, rtol=0.03)
    for dynamic in (False, True):
        quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic))
        layers, x = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)).eval(), randn(3, 64)
        prepared = prepare_pt2e(torch.export.export(layers, (x,)).module(), quantizer)
        prepared(x)
        converted = convert_pt2e(prepared)
        case(f"quant.pt2e.{'dynamic' if dynamic else 'static'}", lambda x, m=converted: m(x), x, atol=0.03, rtol=0.03)


def quantized():
    from torchao.quantization import IntxWeightOnlyConfig, PerAxis, PerGroup, quantize_

    widths = {2: torch.int2, 3: torch.int3, 4: torch.int4, 5: torch.int5, 6: torch.int6, 7: torch.int7, 8: torch.int8}
    for (bits, kind), (name, dtype) in itertools.product(widths.items(), FLOATS.items()):
        for group in (32, 64, 0):
            granularity = PerGroup(group) if group else PerAxis(0)
            module = nn.Linear(64, 16, bias=group != 64).to(dtype)
            quantize_(module, IntxWeightOnlyConfig(weight_dtype=kind, granularity=granularity))
            case(f"quant.linear.{bits}.{group}.{name}", module, randn(3, 64, dtype=dtype), atol=0.05, rtol=0.05)
            table = nn.Sequential(nn.Embedding(20, 64)).to(dtype)
            quantize_(table, IntxWeightOnlyConfig(weight_dtype=kind, granularity=granularity), lambda m, _: isinstance(m, nn.Embedding))
            case(f"quant.embedding.{bits}.{group}.{name}", table, ints(20, 2, 3), atol=0.02, rtol=0.02)
    module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
    quantize_(module, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)))
    case("quant.mlp_dyn", module, randn(3, 64), dyn={0: {0: N}}, test=((randn(9, 64),), {}), atol=0.02, rtol=0.02)
