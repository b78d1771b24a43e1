#!/usr/bin/env python3
"""Speed of PyTorch on a checkpoint of `bench_gpu.py`, in bf16: eager and compiled decoding over a static cache.

    gpu_torch.py FOLDER [--prompt 2048] [--generated 128] [--device cuda]

Prints a JSON object with tokens per second by runner: pp, tg (from an empty context), tg_after_prompt.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

import torch
import torch._dynamo
from torch.nn import functional as F


class Decoder:
    """Llama's and Qwen3's decoder of one sequence; weights by their names in the checkpoint."""

    def __init__(self, config: dict, weights: dict, length: int, device: str):
        self.config, self.w = config, {name: w.to(device) for name, w in weights.items()}
        dim, kv_heads = config["head_dim"], config["num_key_value_heads"]
        shape = (1, kv_heads, length, dim)
        layers = range(config["num_hidden_layers"])
        self.caches = [[torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in "kv"] for _ in layers]
        angles = torch.outer(torch.arange(length), config["rope_theta"] ** (-torch.arange(0, dim, 2) / dim)).repeat(1, 2)
        self.turns = [turn.to(device, torch.bfloat16) for turn in (angles.cos(), angles.sin())]
        self.places = torch.arange(length, device=device)
        # A captured CUDA graph would copy whatever might lie elsewhere at the next step, and does without capture where that changes.
        for kept in [*self.w.values(), *self.turns, self.places, *(t for cache in self.caches for t in cache)]:
            torch._dynamo.mark_static_address(kept)
        self.head = self.w.get("lm_head.weight", self.w["model.embed_tokens.weight"])

    def norm(self, x, name):
        return F.rms_norm(x, (x.shape[-1],), self.w[name], self.config["rms_norm_eps"])

    def turned(self, x, positions):
        low, high = x.chunk(2, dim=-1)
        cos, sin = (turn[positions] for turn in self.turns)
        return x * cos + torch.cat((-high, low), dim=-1) * sin

    def attention(self, x, at, positions, cache, mask):
        rows = x.shape[1]
        project = lambda name: F.linear(x, self.w[f"{at}self_attn.{name}_proj.weight"])
        q, k, v = (project(name).view(1, rows, -1, self.config["head_dim"]) for name in "qkv")
        if f"{at}self_attn.q_norm.weight" in self.w:
            q, k = self.norm(q, f"{at}self_attn.q_norm.weight"), self.norm(k, f"{at}self_attn.k_norm.weight")
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        q, k = self.turned(q, positions), self.turned(k, positions)
        for kept, new in zip(cache, (k, v)):
            kept.index_copy_(2, positions, new)
        # A prompt starts at position 0 and attends to itself alone.
        k, v = (k, v) if mask is None else cache
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        return F.linear(y.transpose(1, 2).reshape(1, rows, -1), self.w[f"{at}self_attn.o_proj.weight"])

    def forward(self, tokens, positions, is_prompt):
        """The next token [1, 1] after `tokens` [1, T] at `positions` [T]."""
        mask = None if is_prompt else (self.places <= positions[:, None])[None, None]
        x = F.embedding(tokens, self.w["model.embed_tokens.weight"])
        for i, cache in enumerate(self.caches):
            at = f"model.layers.{i}."
            x = x + self.attention(self.norm(x, f"{at}input_layernorm.weight"), at, positions, cache, mask)
            y = self.norm(x, f"{at}post_attention_layernorm.weight")
            gate, up = (F.linear(y, self.w[f"{at}mlp.{name}_proj.weight"]) for name in ("gate", "up"))
            x = x + F.linear(F.silu(gate) * up, self.w[f"{at}mlp.down_proj.weight"])
        return F.linear(self.norm(x[:, -1:], "model.norm.weight"), self.head).argmax(-1)


class Timer:
    """Runs a decoder's prompts and steps and waits for the device."""

    def __init__(self, decoder: Decoder, prompt: int, generated: int, device: str):
        self.decoder, self.generated, self.device = decoder, generated, device
        self.tokens = torch.tensor([[i * 7919 % 1000 for i in range(prompt)]], device=device) % decoder.config["vocab_size"]
        self.positions = torch.arange(prompt, device=device)

    def seconds(self, work):
        wait = torch.cuda.synchronize if self.device == "cuda" else lambda: None
        wait()
        begin = time.perf_counter()
        result = work()
        wait()
        return time.perf_counter() - begin, result

    def prompt(self):
        return self.seconds(lambda: self.decoder.forward(self.tokens, self.positions, True))

    def steps(self, step, first, position):
        def work():
            token, at = first.clone(), torch.tensor([position], device=self.device)
            for _ in range(self.generated):
                # A compiled step gives a result that its next call overwrites.
                token = step(token, at, False).clone()
                at = at + 1
            return token

        return self.seconds(work)


def measure(timer: Timer, step, name: str, repeats: int) -> dict:
    prompt, result = timer.tokens.shape[1], {}
    for key, first, start in (("tg", timer.tokens[:, :1], 0), ("tg_after_prompt", timer.prompt()[1], prompt)):
        print(f"{name} {key}", file=sys.stderr, flush=True)
        timer.steps(step, first, start)
        times = [timer.steps(step, first, start)[0] for _ in range(repeats)]
        result[key] = timer.generated / statistics.median(times)
    return result


def main() -> None:
    from safetensors.torch import load_file

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--generated", type=int, default=128)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    config = json.loads((args.folder / "config.json").read_text())
    weights = load_file(args.folder / "model.safetensors")
    with torch.no_grad():
        decoder = Decoder(config, weights, args.prompt + args.generated, args.device)
        timer = Timer(decoder, args.prompt, args.generated, args.device)
        print("eager prompt", file=sys.stderr, flush=True)
        timer.prompt()
        pp = args.prompt / statistics.median(timer.prompt()[0] for _ in range(3))
        eager = dict(pp=pp, **measure(timer, decoder.forward, "eager", 1))
        print("compiling", file=sys.stderr, flush=True)
        step = torch.compile(decoder.forward, mode="reduce-overhead", fullgraph=True, dynamic=False)
        compiled = measure(timer, step, "compiled", 3)
    print(json.dumps(dict(eager=eager, compiled=compiled)))


if __name__ == "__main__":
    main()
