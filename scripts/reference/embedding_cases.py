#!/usr/bin/env python3
"""Writes tiny random text encoders as case folders, as sentence-transformers saves them, with the vectors that it makes of texts.

    embedding_cases.py OUT

`flambeau conformance OUT --from checkpoint` runs them. Needs torch, transformers and sentence-transformers.
"""
import json
import shutil
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file
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
    ("jina-tasks", "JinaEmbeddingsV3", SIZES | dict(rope_parameters=ROTARY, type_vocab_size=1), "mean", ["Normalize"]),
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


# Prompts of the tasks of Jina Embeddings 3, in the order of their adapters.
TASKS = {"retrieval.query": "the fox ", "retrieval.passage": "a man ", "separation": ""}
# Task of each text.
TASKS_OF_TEXTS = [None, "separation", "retrieval.query", "retrieval.passage", "retrieval.query", None]
RANK, ALPHA = 2, 3


def merged(weights, factors, task):
    """Weights with the adapter of the task with this index."""
    return weights | {name: weights[name] + up[task] @ down[task] * (ALPHA / RANK) for name, (up, down) in factors.items()}


def as_jina(plain, checkpoint, encoder):
    """Rewrites a folder in the form of Jina's own release, with adapters. Returns texts, vectors, and the prompt of each text."""
    weights = load_file(checkpoint / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    noise = lambda *shape: torch.randn(len(TASKS), *shape, generator=generator).half().float() * 0.5
    factors = {name: (noise(rows.shape[0], RANK), noise(RANK, rows.shape[1])) for name, rows in weights.items() if rows.dim() == 2}
    stored = {}
    for name, tensor in weights.items():
        if name not in factors:
            stored[f"roberta.{name}"] = tensor
            continue
        module, pair = f"roberta.{name}".removesuffix(".weight"), factors[name]
        stored[f"{module}.parametrizations.weight.original"] = tensor
        for part, factor in zip("AB", pair if "embeddings" in name else pair[::-1]):
            stored[f"{module}.parametrizations.weight.0.lora_{part}"] = factor
    texts = [TASKS.get(task, "") + text for task, text in zip(TASKS_OF_TEXTS, TEXTS)]
    vectors = torch.tensor(encoder.encode(texts))
    for index, task in enumerate(TASKS):
        with tempfile.TemporaryDirectory() as adapted:
            shutil.copytree(plain, adapted, dirs_exist_ok=True)
            save_file(merged(weights, factors, index), f"{adapted}/model.safetensors", dict(format="pt"))
            modules = [Transformer(adapted, max_seq_length=40), Pooling(16, pooling_mode="mean"), Normalize()]
            found = torch.tensor(SentenceTransformer(modules=modules, device="cpu").encode(texts))
        places = [at for at, name in enumerate(TASKS_OF_TEXTS) if name == task]
        vectors[places] = found[places]
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, checkpoint / "model.safetensors", dict(format="pt"))
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    theta = config.pop("rope_parameters")["rope_theta"]
    config |= dict(model_type="xlm-roberta", architectures=["XLMRobertaModel"], position_embedding_type="rotary", rotary_emb_base=theta, output_past=True,
                   emb_pooler="mean", matryoshka_dimensions=[8, 16], truncate_dim=None, use_flash_attn=True, load_trained_adapters=True,
                   lora_adaptations=list(TASKS), lora_alpha=ALPHA, lora_rank=RANK, lora_dropout_p=0.0, lora_main_params_trainable=False,
                   task_instructions=TASKS, auto_map=dict(AutoModel="jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"))
    path.write_text(json.dumps(config) + "\n")
    path = checkpoint / "modules.json"
    modules = json.loads(path.read_text())
    modules[0] |= dict(type="custom_st.Transformer", kwargs=["task"])
    path.write_text(json.dumps(modules) + "\n")
    prompts = dict(prompts={"retrieval.query": TASKS["retrieval.query"]}, default_prompt_name=None)
    (checkpoint / "config_sentence_transformers.json").write_text(json.dumps(prompts) + "\n")
    return texts, vectors, TASKS_OF_TEXTS


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
        if name == "jina-tasks":
            texts, vectors, prompts = as_jina(plain, checkpoint, encoder)
        else:
            texts, vectors, prompts = TEXTS, encoder.encode(TEXTS), None
            vectors = vectors.to_dense() if is_sparse else torch.tensor(vectors)
    if name == "nomic-first":
        as_first_nomic(checkpoint / "config.json")
    ids = [encoder.tokenizer(text)["input_ids"] for text in texts]
    case = dict(kind="embedding", family=config.model_type, rtol=1e-4, atol=2e-5 * max(1.0, float(vectors.abs().max())), texts=texts, ids=ids,
                pooling=pooling if isinstance(pooling, str) else "+".join(pooling), normalized="Normalize" in modules)
    if prompts:
        case["prompts"] = prompts
    (folder / "case.json").write_text(json.dumps(case) + "\n")
    write_tensor(folder / "embeddings.bin", vectors)
    print(folder.name, "tokens", [len(one) for one in ids], "first vector", [round(float(x), 4) for x in vectors[0][:3]])


if __name__ == "__main__":
    write_all(__doc__, CASES, write)
