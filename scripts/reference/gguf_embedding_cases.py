#!/usr/bin/env python3
"""Writes text encoders as GGUF files with llama.cpp's own converter, beside the vectors of `embedding_cases.py`, and a reranker beside
the scores of `classifier_cases.py`.

    gguf_embedding_cases.py LLAMA_CPP CASES OUT

LLAMA_CPP is a checkout of llama.cpp or the copy in llama-cpp-python's source package, CASES what both wrote.
`flambeau conformance OUT --from checkpoint` runs them. Needs what `embedding_cases.py` needs.
"""
import argparse
import json
import pathlib
import shutil
import struct
import tempfile

import torch

from checkpoint_cases import write_tensor
from gguf_cases import set_up
from remote_encoder_cases import nomic_moe
from text_cases import tokenizer

# Case, class of the converter, and whether the tokenizer is converted too.
CASES = [
    ("bert", "BertModel", True), ("nomic", "NomicBertModel", True), ("modernbert", "ModernBertModel", False),
    ("qwen3", "Qwen3Model", False), ("gemma3", "Gemma3TextModel", False), ("jina-bert", "JinaBertModel", False),
    ("nomic-moe", "NomicBertModel", True), ("eurobert", "EuroBertModel", False), ("jina", "XLMRobertaModel", False),
    ("llama", "LlamaBidirectionalModel", False),
]
# Cases whose folder has another name.
FOLDERS = {"llama": "eurobert"}
# What the converter asks of Nomic's config.
NOMIC = dict(
    n_positions=8192, max_trained_positions=2048, rotary_emb_scale_base=None, rotary_emb_base=1000, rotary_emb_fraction=1.0,
    rotary_emb_interleaved=False, activation_function="swiglu", causal=False, qkv_proj_bias=False, mlp_fc1_bias=False, mlp_fc2_bias=False, prenorm=False,
)


@torch.inference_mode()
def convert(case, name, kind, has_tokenizer, out):
    import gguf
    from conversion import ModelBase, ModelType, TextModel, get_model_class

    family = get_model_class(kind)
    if not has_tokenizer:
        family.set_vocab = TextModel.write_vocab_of
    family.get_vocab_base_pre = lambda self, tokenizer: "default"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder) / "checkpoint"
        shutil.copytree(case / "checkpoint", folder)
        config = json.loads((folder / "config.json").read_text())
        if name == "nomic":
            config |= NOMIC
        if name == "nomic-moe":
            own = dict(hidden_size="n_embd", num_attention_heads="n_head", num_hidden_layers="n_layer", intermediate_size="n_inner")
            config |= {key: config[name] for key, name in own.items()}
            config |= dict(n_positions=2048, max_trained_positions=2048, rope_parameters=dict(rope_type="default", rope_theta=config["rotary_emb_base"]))
        if name == "jina":
            # The converter knows the model by its adapters.
            config |= dict(lora_adaptations=["separation"])
        if name == "modernbert":
            config |= dict(global_attn_every_n_layers=3)
        if name == "eurobert":
            # The converter takes the way of pooling from here.
            config |= dict(classifier_pooling="mean")
        config["architectures"] = [kind]
        (folder / "config.json").write_text(json.dumps(config))
        family(folder, gguf.LlamaFileType.ALL_F32, out / "checkpoint.gguf", sentence_transformers_dense_modules=True).write()
        for adapter in out.glob("lora-*"):
            adapter.unlink()


def convert_reranker(cases, out):
    """Qwen3-Reranker: the converter keeps only the rows of the answers of a language model's head. It knows the model by the name of its folder."""
    import gguf
    from conversion import TextModel, get_model_class

    case, out = cases / "classifier-answers", out / "gguf-classifier-answers"
    out.mkdir(parents=True, exist_ok=True)
    family = get_model_class("Qwen3ForCausalLM")
    set_vocab, family.set_vocab = family.set_vocab, TextModel.write_vocab_of
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder) / "qwen3-reranker"
        shutil.copytree(case / "checkpoint", folder)
        family(folder, gguf.LlamaFileType.ALL_F32, out / "checkpoint.gguf").write()
    family.set_vocab = set_vocab
    described = json.loads((case / "case.json").read_text()) | dict(pairs=[])
    (out / "case.json").write_text(json.dumps(described) + "\n")
    shutil.copy(case / "scores.bin", out / "scores.bin")
    print(out.name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_cpp", type=pathlib.Path)
    parser.add_argument("cases", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--only", default="", help="only cases whose name begins so")
    args = parser.parse_args()
    set_up(args.llama_cpp)
    for name, kind, has_tokenizer in CASES:
        if not name.startswith(args.only):
            continue
        case, out = args.cases / f"embedding-{FOLDERS.get(name, name)}", args.out / f"gguf-embedding-{name}"
        out.mkdir(parents=True, exist_ok=True)
        convert(case, name, kind, has_tokenizer, out)
        described = json.loads((case / "case.json").read_text())
        # Files say nothing of lengths, and llama.cpp gives all vectors length 1.
        described |= dict(normalized=True, texts=described["texts"] if has_tokenizer else [])
        (out / "case.json").write_text(json.dumps(described) + "\n")
        vectors = without_bias(described["ids"]) if name == "nomic-moe" else read_tensor(case / "embeddings.bin")
        write_tensor(out / "embeddings.bin", torch.nn.functional.normalize(vectors, dim=-1))
        print(out.name)
    if "answers".startswith(args.only):
        convert_reranker(args.cases, args.out)


@torch.no_grad()
def without_bias(ids):
    """Vectors of Nomic Embed 2 without the bias of experts, which the converter leaves out."""
    with tempfile.TemporaryDirectory() as folder:
        _, weights, encode = nomic_moe(tokenizer(folder))
    for name, tensor in weights.items():
        if name.endswith("experts.bias"):
            tensor.zero_()
    return torch.stack([encode(torch.tensor(one)).mean(0) for one in ids])


def read_tensor(path):
    """A matrix of f32 as `write_tensor` wrote it."""
    data = path.read_bytes()
    rows, columns = struct.unpack_from("<ii", data, 12)
    return torch.frombuffer(bytearray(data[20:]), dtype=torch.float32).reshape(rows, columns)


if __name__ == "__main__":
    main()
