#!/usr/bin/env python3
"""Writes tiny random text encoders whose code comes with their folders and not with transformers, beside the vectors of a plain
implementation in PyTorch.

    remote_encoder_cases.py OUT

`flambeau conformance OUT --from checkpoint` runs them. Needs torch, transformers and tokenizers.
"""
import json
import math

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer

from checkpoint_cases import write_tensor
from text_cases import TEXTS, case_folder, tokenizer, write_all

WIDTH, WIDE, LAYERS = 24, 32, 2


def weights(shapes):
    """Random weights by name, under which every part of a model matters."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            is_norm = any(part in name.lower() for part in ("norm", "emb_ln"))
            noise = noise * 0.3 + (is_norm and "bias" not in name)
        elif "embedding" not in name:
            noise = noise * 1.6 / shape[-1] ** 0.5
        found[name] = noise.half().float()
    return found


def linear(w, name, x):
    return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def norm(w, name, x):
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)


def slopes(heads):
    """The slopes of ALiBi (Press et al. 2022)."""
    def powers(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    whole = 2 ** math.floor(math.log2(heads))
    return powers(whole) + powers(2 * whole)[0::2][:heads - whole]


def jina_bert(vocab):
    """Jina Embeddings 2: ALiBi on both sides, gated layers, one norm after each half."""
    heads = 6
    config = dict(
        model_type="bert", architectures=["JinaBertModel"], position_embedding_type="alibi", feed_forward_type="geglu", emb_pooler="mean",
        hidden_size=WIDTH, intermediate_size=WIDE, num_hidden_layers=LAYERS, num_attention_heads=heads, hidden_act="gelu", type_vocab_size=2,
        vocab_size=vocab, max_position_embeddings=64, layer_norm_eps=1e-12, pad_token_id=1,
    )
    shapes = {"embeddings.word_embeddings.weight": [vocab, WIDTH], "embeddings.token_type_embeddings.weight": [2, WIDTH]}
    norms = ["embeddings.LayerNorm"]
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        for name in ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"]:
            shapes |= {f"{layer}.{name}.weight": [WIDTH, WIDTH], f"{layer}.{name}.bias": [WIDTH]}
        shapes |= {f"{layer}.mlp.gated_layers.weight": [2 * WIDE, WIDTH], f"{layer}.mlp.wo.weight": [WIDTH, WIDE], f"{layer}.mlp.wo.bias": [WIDTH]}
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.mlp.layernorm"]
    shapes |= {f"{name}.{part}": [WIDTH] for name in norms for part in ("weight", "bias")}
    w = weights(shapes)

    def encode(ids):
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
        x = norm(w, "embeddings.LayerNorm", x)
        places = torch.arange(len(ids))
        bias = -torch.tensor(slopes(heads))[:, None, None] * (places[:, None] - places).abs()
        for i in range(LAYERS):
            layer = f"encoder.layer.{i}"
            q, k, v = (linear(w, f"{layer}.attention.self.{name}", x).view(len(ids), heads, -1).transpose(0, 1) for name in ("query", "key", "value"))
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(0, 1).reshape(len(ids), -1)
            x = norm(w, f"{layer}.attention.output.LayerNorm", linear(w, f"{layer}.attention.output.dense", attended) + x)
            gate, up = linear(w, f"{layer}.mlp.gated_layers", x).chunk(2, -1)
            x = norm(w, f"{layer}.mlp.layernorm", linear(w, f"{layer}.mlp.wo", F.gelu(gate) * up) + x)
        return x

    return config, w, encode


def turned(x, base):
    """Rotary embedding of `x` [heads, tokens, elements], by halves."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1])[:, None] * base ** (-torch.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


def nomic_moe(vocab):
    """Nomic Embed 2: experts in every other layer, biases, no gates."""
    heads, count, chosen, base = 2, 4, 2, 10000
    config = dict(
        model_type="nomic_bert", architectures=["NomicBertModel"], activation_function="gelu", n_embd=WIDTH, n_inner=WIDE, n_layer=LAYERS + 1,
        n_head=heads, n_positions=64, max_trained_positions=64, layer_norm_epsilon=1e-12, vocab_size=vocab, type_vocab_size=1, pad_token_id=1,
        qkv_proj_bias=True, mlp_fc1_bias=True, mlp_fc2_bias=True, prenorm=False, causal=False, parallel_block=False, use_rms_norm=False,
        rotary_emb_base=base, rotary_emb_fraction=1.0, rotary_emb_interleaved=False, rotary_emb_scale_base=None, rotary_scaling_factor=None,
        scale_attn_weights=True, moe_every_n_layers=2, num_experts=count, moe_top_k=chosen, expert_choice_router=False, ffn_div=1,
        moe_normalize_expert_weights=False, num_shared_experts=0, moe_impl="megablocks", moe_resid_pdrop=0.0,
    )
    shapes = {"embeddings.word_embeddings.weight": [vocab, WIDTH], "embeddings.token_type_embeddings.weight": [1, WIDTH]}
    norms = ["emb_ln"]
    for i in range(LAYERS + 1):
        layer = f"encoder.layers.{i}"
        matrices = {f"{layer}.attn.Wqkv": [3 * WIDTH, WIDTH], f"{layer}.attn.out_proj": [WIDTH, WIDTH]}
        if i % 2 == 0:
            matrices |= {f"{layer}.mlp.fc1": [WIDE, WIDTH], f"{layer}.mlp.fc2": [WIDTH, WIDE]}
        else:
            shapes |= {f"{layer}.mlp.router.layer.weight": [count, WIDTH], f"{layer}.mlp.experts.bias": [WIDTH]}
            shapes |= {f"{layer}.mlp.experts.mlp.{name}": [count * WIDE, WIDTH] for name in ("w1", "w2")}
        shapes |= {f"{name}.{part}": shape[:rank] for name, shape in matrices.items() for part, rank in [("weight", 2), ("bias", 1)]}
        norms += [f"{layer}.norm1", f"{layer}.norm2"]
    shapes |= {f"{name}.{part}": [WIDTH] for name in norms for part in ("weight", "bias")}
    w = weights(shapes)

    def experts(layer, x):
        shares, ids = linear(w, f"{layer}.mlp.router.layer", x).softmax(-1).topk(chosen)
        up, down = (w[f"{layer}.mlp.experts.mlp.{name}"].view(count, WIDE, WIDTH) for name in ("w1", "w2"))
        rows = [sum(share * (F.gelu(up[e] @ row) @ down[e]) for share, e in zip(*pair)) for row, pair in zip(x, zip(shares, ids))]
        return torch.stack(rows) + w[f"{layer}.mlp.experts.bias"]

    def encode(ids):
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
        x = norm(w, "emb_ln", x)
        for i in range(LAYERS + 1):
            layer = f"encoder.layers.{i}"
            q, k, v = (part.view(len(ids), heads, -1).transpose(0, 1) for part in linear(w, f"{layer}.attn.Wqkv", x).chunk(3, -1))
            attended = F.scaled_dot_product_attention(turned(q, base), turned(k, base), v).transpose(0, 1).reshape(len(ids), -1)
            x = norm(w, f"{layer}.norm1", linear(w, f"{layer}.attn.out_proj", attended) + x)
            fed = experts(layer, x) if i % 2 else linear(w, f"{layer}.mlp.fc2", F.gelu(linear(w, f"{layer}.mlp.fc1", x)))
            x = norm(w, f"{layer}.norm2", fed + x)
        return x

    return config, w, encode


CASES = [("jina-bert", jina_bert), ("nomic-moe", nomic_moe)]


@torch.no_grad()
def write(out, name, make):
    folder, checkpoint = case_folder(out, f"embedding-{name}")
    vocab = tokenizer(checkpoint)
    config, w, encode = make(vocab)
    (checkpoint / "config.json").write_text(json.dumps(config) + "\n")
    save_file({name: tensor.half() for name, tensor in w.items()}, checkpoint / "model.safetensors")
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    modules = [dict(idx=i, name=str(i), path=path, type=f"sentence_transformers.models.{kind}") for i, (path, kind) in enumerate(kinds)]
    (checkpoint / "modules.json").write_text(json.dumps(modules) + "\n")
    (checkpoint / "1_Pooling").mkdir()
    pooling = dict(word_embedding_dimension=WIDTH, pooling_mode_cls_token=False, pooling_mode_mean_tokens=True)
    (checkpoint / "1_Pooling/config.json").write_text(json.dumps(pooling) + "\n")
    ids = [Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode(text).ids for text in TEXTS]
    vectors = torch.stack([encode(torch.tensor(one)).mean(0) for one in ids])
    case = dict(kind="embedding", family=config["model_type"], rtol=1e-4, atol=2e-5 * max(1.0, float(vectors.abs().max())), texts=TEXTS, ids=ids,
                pooling="mean", normalized=False)
    (folder / "case.json").write_text(json.dumps(case) + "\n")
    write_tensor(folder / "embeddings.bin", vectors)
    print(folder.name, "first vector", [round(float(x), 4) for x in vectors[0][:3]])


if __name__ == "__main__":
    write_all(__doc__, CASES, write)
