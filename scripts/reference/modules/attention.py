"""Attention as PyTorch spells it, with masks of every kind."""
import torch
import torch.nn.functional as F
from torch import nn

from modules.common import FLOATS, case, randn


class Attention(nn.Module):
    def __init__(self, width, heads, causal=True):
        super().__init__()
        self.qkv, self.out, self.heads, self.causal = nn.Linear(width, 3 * width), nn.Linear(width, width), heads, causal

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


def attention_masks():
    for name, dtype in FLOATS.items():
        q, k, v = (randn(2, 4, 5, 8, dtype=dtype) for _ in range(3))
        k2, v2 = (randn(2, 2, 5, 8, dtype=dtype) for _ in range(2))
        keep = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
        keep[0, :, 2] = False
        keep[1, :, :, 3:] = False
        keep[1, :, 4] = False
        bias = torch.zeros(2, 1, 5, 5).masked_fill(~keep, float("-inf")).to(dtype)
        sdpa = F.scaled_dot_product_attention
        case(f"sdpa.bool_rows.{name}", lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), q, k, v, keep)
        case(f"sdpa.float_rows.{name}", lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), q, k, v, bias)
        case(f"sdpa.softmax_rows.{name}", lambda q, k, m: torch.nan_to_num((q @ k.transpose(-1, -2) + m).softmax(-1)), q, k, bias)
        case(f"sdpa.gqa.{name}", lambda q, k, v: sdpa(q, k, v, is_causal=True, enable_gqa=True), q, k2, v2)
        case(f"sdpa.repeat.{name}", lambda q, k, v: sdpa(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)), q, k2, v2)
        case(f"sdpa.cross_causal.{name}", lambda q, k, v: sdpa(q[:, :, :3], k, v, is_causal=True), q, k, v)
        case(f"sdpa.longer_query.{name}", lambda q, k, v: sdpa(q, k[:, :, :3], v[:, :, :3], is_causal=True), q, k, v)
        case(f"sdpa.scale.{name}", lambda q, k, v: sdpa(q, k, v, scale=0.5), q, k, v)
        case(f"sdpa.rank3.{name}", lambda q, k, v: sdpa(q[0], k[0], v[0], is_causal=True), q, k, v)
        case(f"sdpa.rank2.{name}", lambda q, k, v: sdpa(q[0, 0], k[0, 0], v[0, 0]), q, k, v)
        case(f"sdpa.rank5.{name}", lambda q, k, v: sdpa(q[None], k[None], v[None]), q, k, v)
        case(f"sdpa.mask2d.{name}", lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), q, k, v, keep[0, 0])
        case(f"sdpa.wide_value.{name}", lambda q, k, v: sdpa(q, k, torch.cat([v, v], -1)), q, k, v)
        case(f"sdpa.batch_bcast.{name}", lambda q, k, v: sdpa(q, k[:1], v[:1]), q, k, v)
        padding = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], dtype=torch.bool)
        mha = nn.MultiheadAttention(8, 2, batch_first=True).to(dtype).eval()
        x = randn(2, 5, 8, dtype=dtype)
        case(f"mha.padding.{name}", lambda x, p, m=mha: m(x, x, x, key_padding_mask=p, need_weights=False)[0][:1], x, padding)
        case(f"mha.weights.{name}", lambda x, m=mha: m(x, x, x, need_weights=True), x)
        case(f"mha.attn_mask.{name}", lambda x, a, m=mha: m(x, x, x, attn_mask=a, need_weights=False)[0], x, torch.ones(5, 5, dtype=torch.bool).triu(1))
