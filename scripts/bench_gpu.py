#!/usr/bin/env python3
"""Speed of `flambeau bench --engine mlx` beside mlx-lm, and at 16 bits PyTorch, on the same random weights, on the machine's GPU.

    bench_gpu.py FLAMBEAU WORK [--shapes 1b,8b] [--bits 4,16] [--mlx-path DIR] [--no-torch]

Writes checkpoints of the shapes of Llama-3.2-1B and Qwen3-8B under WORK, exports them, and measures the runners one after the
other: a prompt of 2048 tokens, 128 tokens generated from an empty context, and 128 generated behind that prompt. Needs torch,
safetensors, mlx with a GPU backend, and mlx-lm; PyTorch takes part where it sees a CUDA device. Prints a row per measurement as
JSON.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

SHAPES = {
    "1b": dict(
        model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
        num_attention_heads=32, num_key_value_heads=8, head_dim=64, vocab_size=128256, rms_norm_eps=1e-5, rope_theta=500000.0,
        tie_word_embeddings=True, max_position_embeddings=8192, hidden_act="silu", torch_dtype="bfloat16",
        bos_token_id=1, eos_token_id=2),
    "8b": dict(
        model_type="qwen3", architectures=["Qwen3ForCausalLM"], hidden_size=4096, intermediate_size=12288, num_hidden_layers=36,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128, vocab_size=151936, rms_norm_eps=1e-6, rope_theta=1000000.0,
        tie_word_embeddings=False, max_position_embeddings=8192, hidden_act="silu", torch_dtype="bfloat16",
        bos_token_id=1, eos_token_id=2, attention_bias=False),
}
PROMPT, GENERATED, CONTEXT = 2048, 128, 2304


def make(folder: pathlib.Path, config: dict) -> None:
    import torch
    from safetensors.torch import save_file

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    def normal(rows, columns):
        return (torch.randn(rows, columns, device=device, dtype=torch.bfloat16) * columns**-0.5).cpu()

    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    ones = lambda n: torch.ones(n, dtype=torch.bfloat16)
    weights = {"model.embed_tokens.weight": normal(config["vocab_size"], hidden), "model.norm.weight": ones(hidden)}
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = normal(config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        sizes = {
            "self_attn.q_proj": (heads, hidden), "self_attn.k_proj": (kv_heads, hidden), "self_attn.v_proj": (kv_heads, hidden),
            "self_attn.o_proj": (hidden, heads), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner)}
        weights.update({f"{at}{name}.weight": normal(*size) for name, size in sizes.items()})
        weights.update({f"{at}{name}.weight": ones(hidden) for name in ("input_layernorm", "post_attention_layernorm")})
        if config["model_type"] == "qwen3":
            weights.update({f"{at}self_attn.{name}.weight": ones(dim) for name in ("q_norm", "k_norm")})
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def flambeau(program: str, file: pathlib.Path, mlx_path: str | None) -> dict:
    command = [program, "bench", str(file), "-p", str(PROMPT), "-n", str(GENERATED), "-d", f"0,{PROMPT}", "-r", "3", "--engine", "mlx", "--output", "json"]
    command += ["--mlx-path", mlx_path] if mlx_path else []
    rows = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    names = {f"pp{PROMPT}": "pp", f"tg{GENERATED}": "tg", f"tg{GENERATED}@d{PROMPT}": "tg_after_prompt"}
    return {names[row["test"]]: row["tps_median"] for row in rows}


def mlx_lm(folder: pathlib.Path, config: dict, bits: int) -> dict:
    import importlib
    import statistics

    import mlx.core as mx
    import mlx.nn as nn
    from mlx_lm.generate import generate_step

    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    model.load_weights(list(mx.load(str(folder / "model.safetensors")).items()), strict=False)
    if bits != 16:
        nn.quantize(model, group_size=64, bits=bits)
    mx.eval(model.parameters())
    tokens = mx.array([i * 7919 % 1000 for i in range(PROMPT)])

    def generation(prompt, count):
        begin = time.perf_counter()
        first = None
        for _ in generate_step(prompt, model, max_tokens=count):
            first = first or time.perf_counter()
        return first - begin, time.perf_counter() - first

    generation(tokens, 8)
    prompts = [generation(tokens, 1)[0] for _ in range(3)]
    generation(tokens[:1], 16)
    steps = [generation(tokens[:1], GENERATED)[1] for _ in range(3)]
    after = [generation(tokens, GENERATED)[1] for _ in range(2)]
    return {
        "pp": PROMPT / statistics.median(prompts), "tg": (GENERATED - 1) / statistics.median(steps),
        "tg_after_prompt": (GENERATED - 1) / statistics.median(after)}


def pytorch(folder: pathlib.Path) -> dict | None:
    """Eager and compiled, in a process of its own, whose memory is free for the others afterwards; `None` without CUDA."""
    import torch

    if not torch.cuda.is_available():
        return None
    script = pathlib.Path(__file__).parent / "bench" / "gpu_torch.py"
    command = [sys.executable, str(script), str(folder), "--prompt", str(PROMPT), "--generated", str(GENERATED)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("flambeau")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--shapes", default="1b,8b")
    parser.add_argument("--bits", default="4,16")
    parser.add_argument("--mlx-path")
    parser.add_argument("--no-torch", action="store_true")
    args = parser.parse_args()
    for shape in args.shapes.split(","):
        folder = args.work / shape
        if not (folder / "config.json").exists():
            make(folder, SHAPES[shape])
        for bits in map(int, args.bits.split(",")):
            file = args.work / f"{shape}-{bits}.pte"
            export = [args.flambeau, "export", str(folder), "-o", str(file), "--max-seq-len", str(CONTEXT), "--prefill-chunk", str(PROMPT)]
            export += ["--qlinear", "4w", "--qembedding", "4w", "--group-size", "64"] if bits == 4 else []
            begin = time.perf_counter()
            subprocess.run(export, check=True)
            exported = time.perf_counter() - begin
            ours = flambeau(args.flambeau, file, args.mlx_path)
            file.unlink()
            theirs = mlx_lm(folder, SHAPES[shape], bits)
            row = dict(shape=shape, bits=bits, export_s=round(exported, 1), flambeau=ours, mlx_lm=theirs)
            if bits == 16 and not args.no_torch:
                row["pytorch"] = pytorch(folder)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
