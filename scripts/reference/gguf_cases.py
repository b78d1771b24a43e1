#!/usr/bin/env python3
"""Writes checkpoint cases as GGUF files with llama.cpp's own converter.

    gguf_cases.py LLAMA_CPP CASES OUT [--type F32] [--only TEXT]

LLAMA_CPP is a checkout of llama.cpp or the copy in llama-cpp-python's source package, CASES what `checkpoint_cases.py` wrote. Cases whose
config says something that GGUF files cannot say are left out. `flambeau conformance OUT --from checkpoint` runs the others.
"""
import argparse
import json
import pathlib
import shutil
import sys

import torch

# What the converter leaves unsaid, by the beginning of a case's name.
UNSAID = {
    "attention_factor and magnitudes": ("llama-yarn", "olmo2-bias", "deepseek-v3-yarn"),
    "rotary scaling but yarn and linear": ("llama-dynamic", "llama-longrope", "deepseek-v3-one-group"),
    "activations": ("llama-one-head",),
    "windows": ("mistral-window", "mixtral-window", "qwen2-types", "qwen2-sliding", "qwen3-window", "qwen3-moe-some", "smollm3-window"),
    "layers without experts": ("qwen3-moe-step", "qwen3-next-types"),
    "weights of experts that are not normalized": ("qwen3-next-three-taps", "lfm2-moe-plain"),
    "factors on the weights of experts": ("lfm2-moe-scaled",),
    "groups of experts": ("glm4-moe-groups",),
    "scales of scores": ("gemma2-uncapped", "gemma3-old"),
    "no bound where none is stated": ("gemma2-silent",),
    "which layers have a window": ("gemma3-silent",),
    "biases": ("gemma4-per-layer", "lfm2-adjusted"),
    "linear rotary embeddings of sliding layers": ("gemma4-experts",),
    "steps of layers without rotary embedding": ("smollm3-silent",),
    "limits of gates": ("gpt-oss-tied",),
    "interleaving": ("deepseek-v3-one-query",),
}


def set_up(llama_cpp):
    """Prepares the converter for checkpoints of any tokenizer, whose tokens are but numbered."""
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    from conversion import base

    def set_vocab(self):
        size = self.hparams["vocab_size"]
        self.gguf_writer.add_tokenizer_model("gpt2")
        self.gguf_writer.add_tokenizer_pre("gpt-2")
        self.gguf_writer.add_token_list([f"t{i}" for i in range(size)])
        self.gguf_writer.add_token_types([1] * size)
        self.gguf_writer.add_token_merges(["t 1"])

    base.TextModel.write_vocab_of = set_vocab


@torch.inference_mode()
def convert(folder, file, kind):
    import gguf
    from conversion import ModelBase, ModelType, TextModel, get_model_architecture, get_model_class

    family = get_model_class(get_model_architecture(ModelBase.load_hparams(folder, False), ModelType.TEXT))
    family.set_vocab = TextModel.write_vocab_of
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.exists():
        # Gemma's converter counts the tokens there.
        size = json.loads((folder / "config.json").read_text())["vocab_size"]
        tokenizer.write_text(json.dumps({"model": {"vocab": {f"t{i}": i for i in range(size)}}, "added_tokens": []}))
    # Layers that foresee tokens come with real models alone.
    family.no_mtp = True
    model = family(folder, getattr(gguf.LlamaFileType, kind), file)
    # Where transformers has put the key that the converter of GPT-NeoX asks for.
    rotary = model.hparams.get("rope_parameters") or {}
    model.hparams.setdefault("rotary_pct", rotary.get("partial_rotary_factor", 0.25))
    model.write()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_cpp", type=pathlib.Path)
    parser.add_argument("cases", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--type", default="ALL_F32", help="the converter's name of the file type")
    parser.add_argument("--only", default="", help="only cases whose name begins so")
    args = parser.parse_args()
    set_up(args.llama_cpp)
    unsaid = tuple(name for names in UNSAID.values() for name in names)
    for case in sorted(args.cases.iterdir()):
        if not case.name.startswith(args.only) or case.name.startswith(unsaid) or not (case / "checkpoint").is_dir():
            continue
        out = args.out / case.name
        out.mkdir(parents=True, exist_ok=True)
        convert(case / "checkpoint", out / "checkpoint.gguf", args.type)
        for name in ("case.json", "tokens.bin", "expected_logits.bin"):
            shutil.copy(case / name, out / name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
