#!/usr/bin/env python3
"""Writes tiny random text encoders as case folders, as sentence-transformers saves them, with the vectors that it makes of texts.

    embedding_cases.py OUT

`flambeau conformance OUT --from checkpoint` runs them. Needs torch, transformers and sentence-transformers.
"""
import json
import tempfile

import torch
import transformers
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

from checkpoint_cases import write_tensor
from text_cases import COMMON, GROUPED, ROTARY, SIZES, TEXTS, WINDOWS, case_folder, randomize, tokenizer, write_all

# The first release of Nomic Embed: keys of its config that later ones lack.
FIRST_NOMIC = dict(
    n_embd="hidden_size", n_head="num_attention_heads", n_inner="intermediate_size", n_layer="num_hidden_layers", n_positions="max_position_embeddings",
    layer_norm_epsilon="layer_norm_eps", vocab_size="vocab_size", type_vocab_size="type_vocab_size", model_type="model_type", dtype="dtype",
)
# Name, family, sizes, way of pooling, and modules after it.
CASES = [
    ("bert", "Bert", SIZES, "mean", ["Normalize"]),
    ("bert-cls", "Bert", SIZES | dict(hidden_act="gelu_new", type_vocab_size=1), "cls", []),
    ("bert-dense", "Bert", SIZES, ["mean_sqrt_len_tokens", "weightedmean"], [(32, 12, True, "Tanh")]),
    ("distilbert", "DistilBert", dict(dim=16, hidden_dim=24, n_layers=2, n_heads=2), "max", []),
    ("mpnet", "MPNet", SIZES, "mean", ["Normalize"]),
    ("xlm-roberta", "XLMRoberta", SIZES | dict(type_vocab_size=1, layer_norm_eps=1e-5), "cls", ["Normalize"]),
    ("qwen3", "Qwen3", SIZES | GROUPED, "lasttoken", ["Normalize"]),
    ("gemma3", "Gemma3Text", SIZES | dict(num_hidden_layers=6, num_key_value_heads=1, head_dim=8, query_pre_attn_scalar=8, sliding_window=8,
     use_bidirectional_attention=True, rope_parameters=WINDOWS),
     "mean", [(16, 24, False, "Identity"), (24, 16, False, "Identity"), "Normalize"]),
    ("modernbert", "ModernBert", SIZES | dict(num_hidden_layers=4, local_attention=8, rope_parameters=WINDOWS), "cls", []),
    ("nomic", "NomicBert", SIZES, "mean", []),
    ("nomic-first", "NomicBert", SIZES, "mean", []),
    ("gte", "Gte", SIZES | dict(rope_parameters=ROTARY), "cls", ["Normalize"]),
    ("jina", "JinaEmbeddingsV3", SIZES | dict(rope_parameters=ROTARY), "mean", ["Normalize"]),
    ("splade", "Bert", SIZES, "splade-max", "relu"),
    ("splade-distilbert", "DistilBert", dict(dim=16, hidden_dim=24, n_layers=2, n_heads=2), "splade-max", "log1p_relu"),
    ("splade-modernbert", "ModernBert", SIZES | dict(local_attention=8, rope_parameters=WINDOWS), "splade-sum", "relu"),
    ("eurobert", "EuroBert", SIZES | GROUPED, "mean", []),
]


def module(description):
    """A module after pooling: `Normalize`, or a layer by its sizes, bias and activation."""
    if description == "Normalize":
        return Normalize()
    inputs, outputs, bias, activation = description
    dense = Dense(inputs, outputs, bias=bias, activation_function=getattr(torch.nn, activation)())
    randomize(dense)
    return dense


def as_first_nomic(path):
    """Rewrites a config in the form of the first release."""
    config = json.loads(path.read_text())
    first = {key: config[now] for key, now in FIRST_NOMIC.items() if now in config}
    fixed = dict(activation_function="swiglu", qkv_proj_bias=False, mlp_fc1_bias=False, mlp_fc2_bias=False, prenorm=False, causal=False,
                 rotary_emb_base=1000, rotary_emb_fraction=1.0, rotary_emb_interleaved=False, use_rms_norm=False, scale_attn_weights=True)
    path.write_text(json.dumps(first | fixed) + "\n")


@torch.no_grad()
def write(out, name, family, sizes, pooling, modules):
    folder, checkpoint = case_folder(out, f"embedding-{name}")
    with tempfile.TemporaryDirectory() as plain:
        vocab = tokenizer(plain)
        config = getattr(transformers, f"{family}Config")(**COMMON | sizes | dict(vocab_size=vocab))
        is_sparse = isinstance(pooling, str) and pooling.startswith("splade-")
        model = getattr(transformers, f"{family}ForMaskedLM" if is_sparse else f"{family}Model")(config).eval()
        randomize(model)
        model.save_pretrained(plain)
        if is_sparse:
            pooled = SpladePooling(pooling.removeprefix("splade-"), activation_function=modules)
            encoder = SparseEncoder(modules=[MLMTransformer(plain, max_seq_length=40), pooled], device="cpu")
        else:
            pooled = Pooling(16, pooling_mode=pooling)
            encoder = SentenceTransformer(modules=[Transformer(plain, max_seq_length=40), pooled, *map(module, modules)], device="cpu")
        encoder.save_pretrained(str(checkpoint), create_model_card=False)
    if name == "nomic-first":
        as_first_nomic(checkpoint / "config.json")
    texts = TEXTS
    ids = [encoder.tokenizer(text)["input_ids"] for text in texts]
    vectors = encoder.encode(texts)
    vectors = vectors.to_dense() if is_sparse else torch.tensor(vectors)
    case = dict(kind="embedding", family=config.model_type, rtol=1e-4, atol=2e-5 * max(1.0, float(vectors.abs().max())), texts=texts, ids=ids,
                pooling=pooling if isinstance(pooling, str) else "+".join(pooling), normalized="Normalize" in modules)
    (folder / "case.json").write_text(json.dumps(case) + "\n")
    write_tensor(folder / "embeddings.bin", vectors)
    print(folder.name, "tokens", [len(one) for one in ids], "first vector", [round(float(x), 4) for x in vectors[0][:3]])


if __name__ == "__main__":
    write_all(__doc__, CASES, write)
