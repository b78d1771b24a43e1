#!/usr/bin/env python3
"""Speed of large shapes on the machine's GPU: `flambeau bench --engine mlx` beside mlx-lm.

    gpu_shapes.py make FOLDER [--shape qwen3.5-35b-a3b] [--layers 40] [--bits 4] [--tiny] [--float-gates]
    gpu_shapes.py measure FOLDER [--prompts 512,2048] [--generated 128] [--batches 32]

`make` writes a folder in the shape of Llama 3.2 1B, Qwen3 8B, Qwen3.5-35B-A3B (gated delta nets and a mixture of experts), Gemma 4 31B or
Gemma 4 E2B with random weights and without a tokenizer. Weights are in MLX's own 4 bits (affine, groups of 64): `flambeau export` keeps its
codes, and mlx-lm reads the same file. All layers take 1, 5, 20, 17 and 3 GB. `--bits 16` writes bf16 instead. Needs numpy. `--tiny` writes a
model of few small layers of the same kinds, for comparing engines. `--float-gates` keeps bf16 in routers and gates, as exports of float
checkpoints have it. `measure` runs mlx-lm on the folder and prints a row as JSON. It needs mlx with a GPU backend and mlx-lm.
"""

import argparse
import json
import pathlib
import struct
import time

GROUP, BITS = 64, 4
QWEN = dict(
    hidden_size=2048, num_attention_heads=16, num_key_value_heads=2, head_dim=256, vocab_size=248320, linear_num_value_heads=32,
    linear_num_key_heads=16, linear_key_head_dim=128, linear_value_head_dim=128, num_experts=256, num_experts_per_tok=8,
    moe_intermediate_size=512, shared_expert_intermediate_size=512, num_hidden_layers=40)
TINY_QWEN = dict(
    QWEN, hidden_size=256, num_attention_heads=4, num_key_value_heads=1, vocab_size=512, linear_num_value_heads=4,
    linear_num_key_heads=2, num_experts=16, num_experts_per_tok=4, moe_intermediate_size=128, shared_expert_intermediate_size=128,
    num_hidden_layers=4)
GEMMA_31B = dict(
    hidden_size=5376, intermediate_size=21504, num_attention_heads=32, num_key_value_heads=16, head_dim=256, global_head_dim=512,
    num_global_key_value_heads=4, attention_k_eq_v=True, vocab_size=262144, sliding_window=1024, hidden_size_per_layer_input=0,
    num_kv_shared_layers=0, use_double_wide_mlp=False, num_hidden_layers=60)
GEMMA_E2B = dict(
    hidden_size=1536, intermediate_size=6144, num_attention_heads=8, num_key_value_heads=1, head_dim=256, global_head_dim=512,
    attention_k_eq_v=False, vocab_size=262144, sliding_window=512, hidden_size_per_layer_input=256,
    vocab_size_per_layer_input=262144, num_kv_shared_layers=20, use_double_wide_mlp=True, num_hidden_layers=35)
TINY_GEMMA = dict(
    hidden_size=256, intermediate_size=512, num_attention_heads=4, vocab_size=512, vocab_size_per_layer_input=512, sliding_window=32,
    num_hidden_layers=6)
QWEN_8B = dict(
    hidden_size=4096, intermediate_size=12288, num_attention_heads=32, num_key_value_heads=8, head_dim=128, vocab_size=151936,
    num_hidden_layers=36)
TINY_QWEN_8B = dict(
    QWEN_8B, hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=2, head_dim=64, vocab_size=512,
    num_hidden_layers=4)
LLAMA_1B = dict(
    model_type="llama", hidden_size=2048, intermediate_size=8192, num_attention_heads=32, num_key_value_heads=8, head_dim=64,
    vocab_size=128256, rms_norm_eps=1e-5, rope_theta=5e5, tie_word_embeddings=True, num_hidden_layers=16)
TINY_LLAMA_1B = dict(
    LLAMA_1B, hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=2, vocab_size=512,
    num_hidden_layers=4)
SHAPES = {
    "llama-3.2-1b": (LLAMA_1B, TINY_LLAMA_1B),
    "qwen3-8b": (QWEN_8B, TINY_QWEN_8B),
    "qwen3.5-35b-a3b": (QWEN, TINY_QWEN),
    "gemma4-31b": (GEMMA_31B, dict(GEMMA_31B, **TINY_GEMMA, num_key_value_heads=2, num_global_key_value_heads=1)),
    "gemma4-e2b": (GEMMA_E2B, dict(GEMMA_E2B, **dict(TINY_GEMMA, num_hidden_layers=10), num_kv_shared_layers=4)),
}


def qwen_config(sizes: dict, layers: int) -> dict:
    kinds = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)]
    text = dict(
        sizes, model_type="qwen3_5_moe_text", max_position_embeddings=32768, rms_norm_eps=1e-6,
        hidden_act="silu", use_cache=True, tie_word_embeddings=False, linear_conv_kernel_dim=4, layer_types=kinds,
        full_attention_interval=4, attn_output_gate=True, attention_bias=False, eos_token_id=1, dtype="bfloat16",
        intermediate_size=sizes["moe_intermediate_size"],
        rope_parameters=dict(
            rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25, mrope_section=[11, 11, 10], mrope_interleaved=True))
    return dict(
        architectures=["Qwen3_5MoeForConditionalGeneration"], model_type="qwen3_5_moe", text_config=text, eos_token_id=1,
        dtype="bfloat16", quantization=dict(group_size=GROUP, bits=BITS))


def qwen_matrices(c: dict, layers: int):
    """Names and shapes of what is packed."""
    hidden, dim = c["hidden_size"], c["head_dim"]
    heads, keys = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    linear_keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    values = c["linear_num_value_heads"] * c["linear_value_head_dim"]
    experts, width, shared = c["num_experts"], c["moe_intermediate_size"], c["shared_expert_intermediate_size"]
    yield "model.embed_tokens", (c["vocab_size"], hidden)
    yield "lm_head", (c["vocab_size"], hidden)
    for i in range(layers):
        at = f"model.layers.{i}."
        if i % 4 == 3:
            rows = dict(q_proj=2 * heads, k_proj=keys, v_proj=keys)
            yield from ((f"{at}self_attn.{name}", (n, hidden)) for name, n in rows.items())
            yield f"{at}self_attn.o_proj", (hidden, heads)
        else:
            each = c["linear_num_value_heads"]
            rows = dict(in_proj_qkv=2 * linear_keys + values, in_proj_z=values, in_proj_b=each, in_proj_a=each)
            yield from ((f"{at}linear_attn.{name}", (n, hidden)) for name, n in rows.items())
            yield f"{at}linear_attn.out_proj", (hidden, values)
        yield f"{at}mlp.gate", (experts, hidden)
        yield f"{at}mlp.shared_expert_gate", (1, hidden)
        for module, lead, inner in (("switch_mlp", (experts,), width), ("shared_expert", (), shared)):
            yield f"{at}mlp.{module}.gate_proj", (*lead, inner, hidden)
            yield f"{at}mlp.{module}.up_proj", (*lead, inner, hidden)
            yield f"{at}mlp.{module}.down_proj", (*lead, hidden, inner)


def qwen_vectors(c: dict, layers: int):
    """Names, shapes, and the ranges that values are drawn from, of what stays floats."""
    around_one = (0.8, 1.2)
    hidden = c["hidden_size"]
    channels = 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"] + c["linear_num_value_heads"] * c["linear_value_head_dim"]
    yield "model.norm.weight", (hidden,), around_one
    for i in range(layers):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (hidden,), around_one
        yield at + "post_attention_layernorm.weight", (hidden,), around_one
        if i % 4 == 3:
            yield at + "self_attn.q_norm.weight", (c["head_dim"],), around_one
            yield at + "self_attn.k_norm.weight", (c["head_dim"],), around_one
        else:
            at += "linear_attn."
            heads = (c["linear_num_value_heads"],)
            yield at + "conv1d.weight", (channels, c["linear_conv_kernel_dim"], 1), (-0.5, 0.5)
            yield at + "norm.weight", (c["linear_value_head_dim"],), around_one
            yield at + "dt_bias", heads, (-1.0, 1.0)
            yield at + "A_log", heads, (-2.0, 2.0)


def dense_config(sizes: dict, layers: int) -> dict:
    common = dict(
        architectures=["Qwen3ForCausalLM"], model_type="qwen3", rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=False,
        max_position_embeddings=32768, hidden_act="silu", attention_bias=False, bos_token_id=1, eos_token_id=2, dtype="bfloat16",
        quantization=dict(group_size=GROUP, bits=BITS))
    whole = {**common, **sizes, "num_hidden_layers": layers}
    if whole["model_type"] == "llama":
        whole["architectures"] = ["LlamaForCausalLM"]
    return whole


def dense_matrices(c: dict, layers: int):
    """Names and shapes of what is packed."""
    hidden, inner, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    heads, keys = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    yield "model.embed_tokens", (c["vocab_size"], hidden)
    if not c["tie_word_embeddings"]:
        yield "lm_head", (c["vocab_size"], hidden)
    for i in range(layers):
        at = f"model.layers.{i}."
        sizes = dict(q_proj=(heads, hidden), k_proj=(keys, hidden), v_proj=(keys, hidden), o_proj=(hidden, heads))
        yield from ((f"{at}self_attn.{name}", size) for name, size in sizes.items())
        sizes = dict(gate_proj=(inner, hidden), up_proj=(inner, hidden), down_proj=(hidden, inner))
        yield from ((f"{at}mlp.{name}", size) for name, size in sizes.items())


def dense_vectors(c: dict, layers: int):
    """As `qwen_vectors`."""
    around_one = (0.8, 1.2)
    yield "model.norm.weight", (c["hidden_size"],), around_one
    for i in range(layers):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (c["hidden_size"],), around_one
        yield at + "post_attention_layernorm.weight", (c["hidden_size"],), around_one
        if c["model_type"] == "qwen3":
            yield at + "self_attn.q_norm.weight", (c["head_dim"],), around_one
            yield at + "self_attn.k_norm.weight", (c["head_dim"],), around_one


def gemma_config(sizes: dict, layers: int) -> dict:
    period = 5 if sizes["hidden_size_per_layer_input"] else 6
    kinds = ["full_attention" if i % period == period - 1 or i == layers - 1 else "sliding_attention" for i in range(layers)]
    text = dict(
        sizes, model_type="gemma4_text", max_position_embeddings=131072, rms_norm_eps=1e-6, hidden_activation="gelu_pytorch_tanh",
        tie_word_embeddings=True, layer_types=kinds, attention_bias=False, final_logit_softcapping=30.0, eos_token_id=1,
        dtype="bfloat16", enable_moe_block=False,
        rope_parameters=dict(
            sliding_attention=dict(rope_type="default", rope_theta=1e4),
            full_attention=dict(rope_type="proportional", rope_theta=1e6, partial_rotary_factor=0.25)))
    return dict(
        architectures=["Gemma4ForConditionalGeneration"], model_type="gemma4", text_config=text, eos_token_id=1, dtype="bfloat16",
        quantization=dict(group_size=GROUP, bits=BITS))


def gemma_matrices(c: dict, layers: int):
    """Names and shapes of what is packed."""
    hidden, own, width = c["hidden_size"], layers - c["num_kv_shared_layers"], c["hidden_size_per_layer_input"]
    yield "model.embed_tokens", (c["vocab_size"], hidden)
    if width:
        yield "model.embed_tokens_per_layer", (c["vocab_size_per_layer_input"], layers * width)
        yield "model.per_layer_model_projection", (layers * width, hidden)
    for i, kind in enumerate(c["layer_types"]):
        at, full = f"model.layers.{i}.", kind == "full_attention"
        dim, keys = (c["global_head_dim"], c.get("num_global_key_value_heads")) if full else (c["head_dim"], None)
        heads, keys = c["num_attention_heads"] * dim, (keys or c["num_key_value_heads"]) * dim
        yield f"{at}self_attn.q_proj", (heads, hidden)
        if i < own:
            yield f"{at}self_attn.k_proj", (keys, hidden)
            if not (full and c["attention_k_eq_v"]):
                yield f"{at}self_attn.v_proj", (keys, hidden)
        yield f"{at}self_attn.o_proj", (hidden, heads)
        inner = c["intermediate_size"] * (2 if c["use_double_wide_mlp"] and i >= own else 1)
        yield f"{at}mlp.gate_proj", (inner, hidden)
        yield f"{at}mlp.up_proj", (inner, hidden)
        yield f"{at}mlp.down_proj", (hidden, inner)
        if width:
            yield f"{at}per_layer_input_gate", (width, hidden)
            yield f"{at}per_layer_projection", (hidden, width)


def gemma_vectors(c: dict, layers: int):
    """As `qwen_vectors`."""
    around_one, hidden, width = (0.8, 1.2), c["hidden_size"], c["hidden_size_per_layer_input"]
    yield "model.norm.weight", (hidden,), around_one
    if width:
        yield "model.per_layer_projection_norm.weight", (width,), around_one
    for i, kind in enumerate(c["layer_types"]):
        at, dim = f"model.layers.{i}.", c["global_head_dim" if kind == "full_attention" else "head_dim"]
        names = ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for name in names + (["post_per_layer_input_norm"] if width else []):
            yield f"{at}{name}.weight", (hidden,), around_one
        yield f"{at}self_attn.q_norm.weight", (dim,), around_one
        if i < layers - c["num_kv_shared_layers"]:
            yield f"{at}self_attn.k_norm.weight", (dim,), around_one
        yield f"{at}layer_scalar", (1,), (0.5, 0.6)


def is_gate(name: str) -> bool:
    """Whether a matrix weighs what others compute, or chooses it."""
    return name.endswith((".mlp.gate", ".shared_expert_gate", ".in_proj_a", ".in_proj_b"))


def make(folder: pathlib.Path, sizes: dict, layers: int, bits: int = BITS, float_gates: bool = False) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    if "num_experts" in sizes:
        config, matrices, vectors = qwen_config, qwen_matrices, qwen_vectors
    elif "sliding_window" in sizes:
        config, matrices, vectors = gemma_config, gemma_matrices, gemma_vectors
    else:
        config, matrices, vectors = dense_config, dense_matrices, dense_vectors
    whole = config(dict(sizes, num_hidden_layers=layers), layers)
    if bits == 16:
        del whole["quantization"]
    c = whole.get("text_config", whole)
    prefix = "language_model." if "text_config" in whole else ""
    pool = rng.bytes(1 << 26)
    header, parts, at = {}, [], 0

    def bf16(values):
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        return ((bits + 0x8000) >> 16).astype(np.uint16).tobytes()

    def add(name, dtype, shape, count, write):
        nonlocal at
        header[prefix + name] = dict(dtype=dtype, shape=list(shape), data_offsets=[at, at + count])
        parts.append((count, write))
        at += count

    def codes(file, count):
        """Random bytes, from anywhere of one pool: as many would take minutes to draw."""
        while count > 0:
            start = int(rng.integers(0, len(pool) // 2)) & ~3
            piece = memoryview(pool)[start : start + min(count, len(pool) - start)]
            file.write(piece)
            count -= len(piece)

    def scales(deviation, offset):
        """Scales that give 16 equal codes a standard deviation, times `offset`: one block over and over."""
        block = bf16(rng.uniform(0.7, 1.3, 1 << 16) * deviation / 4.61 * offset)

        def write(file, count):
            while count > 0:
                file.write(block[:count])
                count -= len(block)

        return write

    def floats(deviation):
        """Random values, one block over and over."""
        block = bf16(rng.normal(0.0, deviation, (1 << 20) + 7))

        def write(file, count):
            while count > 0:
                file.write(block[:count])
                count -= len(block)

        return write

    for name, shape in matrices(c, layers):
        *lead, columns = shape
        n = int(np.prod(shape))
        deviation = columns**-0.5 if "embed_tokens" not in name else 1.0
        if float_gates and is_gate(name):
            data = bf16(rng.normal(0.0, deviation, shape))
            add(f"{name}.weight", "BF16", shape, len(data), lambda file, _, data=data: file.write(data))
            continue
        if bits == 16:
            add(f"{name}.weight", "BF16", shape, 2 * n, floats(deviation))
            continue
        state = rng.bit_generator.state
        add(f"{name}.weight", "U32", (*lead, columns * BITS // 32), n * BITS // 8, codes)
        add(f"{name}.scales", "BF16", (*lead, columns // GROUP), n // GROUP * 2, scales(deviation, 1.0))
        # The same draws again, so that a group's offset is that of its scale.
        rng.bit_generator.state = state
        add(f"{name}.biases", "BF16", (*lead, columns // GROUP), n // GROUP * 2, scales(deviation, -7.5))
    for name, shape, (low, high) in vectors(c, layers):
        values = rng.uniform(low, high, shape)
        if name.endswith("A_log"):
            data = values.astype(np.float32).tobytes()
            add(name, "F32", shape, len(data), lambda file, _, data=data: file.write(data))
        else:
            data = bf16(values)
            add(name, "BF16", shape, len(data), lambda file, _, data=data: file.write(data))

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(whole, indent=1))
    text = json.dumps({"__metadata__": {"format": "mlx"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb", buffering=1 << 22) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for count, write in parts:
            write(file, count)


def measure(folder: pathlib.Path, prompts: list[int], generated: int, batches: list[int]) -> dict:
    """Prompts without the wait for a token's text, then tokens behind them, each step submitted before the last one is read; then tokens of
    as many texts at once, from empty caches."""
    import importlib

    import mlx.core as mx
    import mlx.nn as nn
    from mlx_lm.models.cache import make_prompt_cache

    whole = json.loads((folder / "config.json").read_text())
    module = importlib.import_module(f"mlx_lm.models.{whole['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(whole))
    if "quantization" in whole:
        nn.quantize(model, group_size=GROUP, bits=BITS)
    model.load_weights(list(model.sanitize(mx.load(str(folder / "model.safetensors"))).items()))
    mx.eval(model.parameters())
    row, cache = {}, None

    def step(token):
        return mx.argmax(model(token[:, None], cache=cache)[:, -1, :], axis=-1)

    def seconds(token):
        for _ in range(8):
            token = step(token)
            mx.eval(token)
        begin = time.perf_counter()
        for _ in range(generated):
            following = step(token)
            mx.async_eval(following)
            token.tolist()
            token = following
        mx.eval(token)
        return time.perf_counter() - begin

    for count in prompts:
        times = []
        for _ in range(3):
            cache = make_prompt_cache(model)
            tokens = mx.random.randint(0, 1000, (1, count))
            mx.eval(tokens)
            begin = time.perf_counter()
            token = mx.argmax(model(tokens, cache=cache)[:, -1, :], axis=-1)
            mx.eval(token, [c.state for c in cache])
            times.append(time.perf_counter() - begin)
        row[f"pp{count}"] = round(count / sorted(times[1:])[0], 1)
        row[f"tg{generated}@d{count}"] = round(generated / seconds(token), 1)
    for batch in batches:
        cache = make_prompt_cache(model)
        row[f"tg{generated}@s{batch}"] = round(batch * generated / seconds(mx.random.randint(0, 1000, (batch,))), 1)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["make", "measure"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3.5-35b-a3b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--bits", type=int, choices=[4, 16], default=BITS)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--float-gates", action="store_true")
    parser.add_argument("--prompts", default="512,2048")
    parser.add_argument("--generated", type=int, default=128)
    parser.add_argument("--batches", default="")
    args = parser.parse_args()
    if args.action == "make":
        sizes = SHAPES[args.shape][args.tiny]
        if args.tiny and args.float_gates:
            # As many rows of each gate as a tile of tensor cores takes.
            sizes = dict(sizes, linear_num_value_heads=16, linear_num_key_heads=8)
        make(args.folder, sizes, args.layers or sizes["num_hidden_layers"], args.bits, args.float_gates)
    else:
        prompts, batches = ([int(n) for n in text.split(",") if n] for text in (args.prompts, args.batches))
        print(json.dumps(measure(args.folder, prompts, args.generated, batches)))


if __name__ == "__main__":
    main()
