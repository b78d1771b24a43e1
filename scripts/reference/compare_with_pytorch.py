#!/usr/bin/env python3
"""Compares a compiled language model with PyTorch: logits of a long prompt, and greedy text.

    compare_with_pytorch.py HF_FOLDER MODEL.pte [--dtype bf16|f32] [--bin target/release]

HF_FOLDER holds the checkpoint that MODEL.pte was compiled from. Needs torch and transformers, and the release build of
`flambeau` and of the example `last_logits`:

    cargo build --release -p flambeau-cli
    cargo build --release -p flambeau-runtime --example last_logits
"""
import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain what a compiler does in two sentences.",
    "List three prime numbers greater than 50.",
    "Translate 'good morning' to Spanish.",
]
N_NEW = 64
LONG_TEXT = "The lighthouse keeper wrote down the weather every morning, and every evening he read it aloud to the gulls. " * 12


def cosine(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def compare_logits(args, tokenizer, folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = tokenizer(LONG_TEXT)["input_ids"][:200]
    with torch.no_grad():
        want = model(torch.tensor([ids])).logits[0, -1].numpy()
    with tempfile.TemporaryDirectory() as work:
        prompt, out = Path(work, "ids.json"), Path(work, "logits.bin")
        prompt.write_text(json.dumps(ids))
        for chunk in (0, 1, 7, 64):
            command = [Path(args.bin, "examples", "last_logits"), args.pte, prompt, str(chunk), out]
            subprocess.run(command, check=True, capture_output=True)
            got = np.fromfile(out, dtype="<f4")
            name = f"chunks of {chunk}" if chunk else "all at once"
            print(f"logits, {len(ids)} tokens {name}: cosine {cosine(got, want):.8f} with PyTorch f32")


def torch_greedy(model, ids):
    """Token ids and, per step, the gap between the two best logits."""
    tokens, gaps, cache = [], [], None
    step = torch.tensor([ids])
    with torch.no_grad():
        for _ in range(N_NEW):
            result = model(step, past_key_values=cache, use_cache=True)
            cache = result.past_key_values
            best = result.logits[0, -1].float().topk(2)
            gaps.append(float(best.values[0] - best.values[1]))
            tokens.append(int(best.indices[0]))
            step = torch.tensor([[tokens[-1]]])
    return tokens, gaps


def compare_text(args, tokenizer, folder):
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[args.dtype]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    for prompt in PROMPTS:
        chat = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        tokens, gaps = torch_greedy(model, ids)
        if tokenizer.eos_token_id in tokens:
            tokens = tokens[: tokens.index(tokenizer.eos_token_id)]
        command = [Path(args.bin, "flambeau"), "generate", args.pte, "-p", prompt, "--tokenizer", folder]
        command += ["--max-new-tokens", str(N_NEW), "--temperature", "0"]
        got = subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip("\n")
        want = tokenizer.decode(tokens, skip_special_tokens=True)
        if got == want.rstrip("\n"):
            print(f"text of {prompt!r}: equal")
            continue
        same = tokens
        while same and not got.startswith(tokenizer.decode(same, skip_special_tokens=True)):
            same = same[:-1]
        print(f"text of {prompt!r}: differs from token {len(same)}, where PyTorch's two best logits are {gaps[len(same)]:.4f} apart")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("pte")
    parser.add_argument("--dtype", choices=["bf16", "f32"], default="bf16", help="type in which PyTorch generates")
    parser.add_argument("--bin", default="target/release", help="where the built programs are")
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.folder)
    compare_logits(args, tokenizer, args.folder)
    compare_text(args, tokenizer, args.folder)


if __name__ == "__main__":
    main()
