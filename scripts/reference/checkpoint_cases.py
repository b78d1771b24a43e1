#!/usr/bin/env python3
"""Writes tiny random checkpoints of every family of language models as case folders, with transformers' logits and greedy text.

    checkpoint_cases.py OUT [--only TEXT]

`flambeau conformance OUT --from checkpoint` runs them. Needs torch and transformers.
"""
import argparse
import json
import pathlib
import struct
import traceback

import torch
import transformers

VOCAB, TOKENS, PROMPT, NEW = 96, 40, 9, 16
BASE = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2)
CODES = {torch.float32: 0, torch.int32: 2}


def randomize(model, norms_less_one):
    """Weights under which every part of a model matters."""
    generator = torch.Generator().manual_seed(0)
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point():
            continue
        noise, last = torch.randn(tensor.shape, generator=generator), name.split(".")[-1]
        if "norm" in name and tensor.dim() == 1:
            noise = noise * 0.3 + (0 if norms_less_one and "linear_attn" not in name else 1)
        elif last == "A_log":
            noise = torch.rand(tensor.shape, generator=generator) * 2 - 1
        elif last in ("layer_scalar", "per_expert_scale", "scale", "correct_output_scale"):
            noise = 1 + noise * 0.3
        elif last == "dt_bias" or "router" in name or name.endswith((".mlp.gate.weight", ".feed_forward.gate.weight")):
            noise = noise * 0.5
        elif last in ("alpha_p", "alpha_n"):
            noise = noise * 0.4 + 0.4
        elif "act_fn" in name:
            continue
        elif "bias" in last:
            noise = noise * 0.3
        elif "conv" in name:
            noise = noise * 0.6
        elif last != "sinks" and "embed" not in name:
            noise = noise * 1.6 / tensor.shape[-1] ** 0.5
        tensor.copy_(noise)
    if model.config.tie_word_embeddings:
        model.tie_weights()


def write_tensor(path, tensor):
    header = struct.pack("<III", 1, CODES[tensor.dtype], tensor.dim()) + struct.pack(f"<{tensor.dim()}i", *tensor.shape)
    path.write_bytes(header + tensor.contiguous().numpy().tobytes())


def greedy(model, prompt):
    ids = list(prompt)
    for _ in range(NEW):
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits
        ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt):]


@torch.no_grad()
def write(folder, family, config, norms_less_one=False, prompt=PROMPT, drop=(), edit=None, after=None, attention="eager", original=True):
    """One case: `config` over the common sizes, then keys of the written config dropped or edited, and the checkpoint changed by `after`.

    Tensors have the published names if they are `original`, else those of the classes."""
    text = getattr(transformers, f"{family}TextConfig", None)
    config = (text or getattr(transformers, f"{family}Config"))(**BASE | config)
    config._attn_implementation = attention
    head = getattr(transformers, f"{family}ForCausalLM", None) or getattr(transformers, f"{family}LMHeadModel")
    model = head(config).eval()
    randomize(model, norms_less_one)
    model.save_pretrained(folder / "checkpoint", save_original_format=original)
    path = folder / "checkpoint" / "config.json"
    written = {key: value for key, value in json.loads(path.read_text()).items() if key not in drop}
    if edit:
        edit(written)
    path.write_text(json.dumps(written, indent=1))
    if after:
        after(folder / "checkpoint")
    write_expected(folder, model, written["model_type"], prompt)


def write_expected(folder, model, family, prompt=PROMPT):
    """What a case says beside its checkpoint."""
    tokens = torch.randint(0, model.config.vocab_size, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    logits = model(input_ids=tokens, use_cache=False).logits
    write_tensor(folder / "tokens.bin", tokens.int())
    write_tensor(folder / "expected_logits.bin", logits)
    start = tokens[0, :prompt].tolist()
    case = dict(kind="checkpoint", family=family, rtol=1e-5, atol=1.5e-4 * max(1.0, float(logits.std())), chunks=[1, 7, "all"],
                greedy=dict(prompt=start, new=greedy(model, start)))
    (folder / "case.json").write_text(json.dumps(case, indent=1))


def old_rope(config):
    """The spelling of the rotary embedding before `rope_parameters`."""
    rope = config.pop("rope_parameters")
    config["rope_theta"], kind = rope.pop("rope_theta"), rope.pop("rope_type")
    config["rope_scaling"] = dict(type=kind, **rope)
    config["torch_dtype"] = config.pop("dtype")


def old_phi(config):
    for key in ("original_max_position_embeddings", "partial_rotary_factor"):
        config["rope_parameters"].pop(key, None)
    old_rope(config)


def old_gemma3(config):
    rope = config.pop("rope_parameters")
    config["rope_theta"], config["rope_local_base_freq"] = rope["full_attention"]["rope_theta"], rope["sliding_attention"]["rope_theta"]
    config["rope_scaling"] = dict(rope_type="linear", factor=rope["full_attention"]["factor"])
    config["sliding_window_pattern"] = 2
    del config["layer_types"]


def old_lfm2(config):
    config["block_ff_dim"], config["tie_embedding"] = config.pop("intermediate_size"), config.pop("tie_word_embeddings")


def rope(kind, theta=5000.0, **more):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=theta, **more))


SLIDING, FULL = "sliding_attention", "full_attention"
SHORT, LONG = [1, 1.1, 1.2, 1.3, 1.4, 1.5], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
LLAMA3 = dict(factor=6.0, original_max_position_embeddings=24, low_freq_factor=1.0, high_freq_factor=4.0)
EXPERTS = dict(num_experts=6, moe_intermediate_size=20)
GEMMA4 = dict(head_dim=16, global_head_dim=24, sliding_window=5, vocab_size_per_layer_input=VOCAB, hidden_size_per_layer_input=0)
PER_LAYER = GEMMA4 | dict(hidden_size_per_layer_input=8)
DELTA = dict(num_hidden_layers=4, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12)
SHARED = DELTA | dict(num_experts=6, moe_intermediate_size=12, shared_expert_intermediate_size=20)
LFM2 = dict(num_hidden_layers=4, layer_types=["conv", FULL, "conv", FULL])
LATENT = dict(q_lora_rank=20, kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, moe_intermediate_size=12, n_routed_experts=8,
              num_experts_per_tok=3, n_group=2, topk_group=1, num_key_value_heads=4)

# Name, family as transformers spells it, config, and what `write` takes besides.
CASES = [
    ("llama-plain", "Llama", dict(head_dim=16)),
    ("llama-linear", "Llama", rope("linear", factor=3.0), dict(edit=old_rope)),
    ("llama-yarn", "Llama", rope("yarn", factor=3.0, original_max_position_embeddings=16, attention_factor=1.1), dict(edit=old_rope)),
    ("llama-yarn-magnitude", "Llama", rope("yarn", factor=6.0, original_max_position_embeddings=16, mscale=0.7, mscale_all_dim=1.3, beta_fast=8)),
    ("llama-llama3", "Llama", rope("llama3", **LLAMA3), dict(edit=old_rope)),
    ("llama-dynamic", "Llama", rope("dynamic", factor=6.0)),
    ("llama-longrope", "Llama", dict(head_dim=12) | rope("longrope", 1e3, short_factor=SHORT, long_factor=LONG, original_max_position_embeddings=16),
     dict(prompt=20)),
    ("llama-silent", "Llama", dict(num_key_value_heads=None), dict(drop=("num_key_value_heads", "head_dim", "rms_norm_eps"))),
    ("llama-one-head", "Llama", dict(num_key_value_heads=1, hidden_act="gelu", mlp_bias=True)),
    ("mistral-no-window", "Mistral", dict(sliding_window=None)),
    ("mistral-window", "Mistral", dict(sliding_window=3, head_dim=20)),
    ("mistral-silent", "Mistral", {}, dict(drop=("sliding_window",))),
    ("mixtral-window", "Mixtral", dict(num_local_experts=5, num_experts_per_tok=3, sliding_window=7)),
    ("qwen2-types", "Qwen2", dict(use_sliding_window=True, sliding_window=5, layer_types=[SLIDING, FULL, SLIDING])),
    ("qwen2-yarn", "Qwen2", rope("yarn", 1e6, factor=4.0, original_max_position_embeddings=32), dict(edit=old_rope)),
    ("qwen3-window", "Qwen3", dict(head_dim=16, use_sliding_window=True, sliding_window=5, max_window_layers=1, attention_bias=True)),
    ("qwen3-silent", "Qwen3", {}, dict(drop=("head_dim",))),
    ("qwen3-moe-step", "Qwen3Moe", EXPERTS | dict(num_hidden_layers=4, num_experts_per_tok=3, norm_topk_prob=False, decoder_sparse_step=2)),
    ("qwen3-moe-some", "Qwen3Moe", EXPERTS | dict(num_hidden_layers=4, num_experts_per_tok=1, norm_topk_prob=True, mlp_only_layers=[0, 2], head_dim=16,
                                                  use_sliding_window=True, sliding_window=6, tie_word_embeddings=True)),
    ("qwen3-moe-many", "Qwen3Moe", EXPERTS | dict(num_experts=40, num_experts_per_tok=8, norm_topk_prob=True, head_dim=16)),
    ("phi3-short", "Phi3", dict(original_max_position_embeddings=64, max_position_embeddings=256, partial_rotary_factor=0.5)
     | rope("longrope", 1e4, short_factor=SHORT[:3], long_factor=LONG[:3])),
    ("phi3-long", "Phi3", dict(original_max_position_embeddings=16, max_position_embeddings=256, sliding_window=9)
     | rope("longrope", 1e4, short_factor=SHORT, long_factor=LONG), dict(prompt=20, edit=old_phi)),
    ("gemma2-uncapped", "Gemma2", dict(head_dim=20, query_pre_attn_scalar=30, sliding_window=5, attn_logit_softcapping=None,
                                       final_logit_softcapping=None), dict(norms_less_one=True)),
    ("gemma2-silent", "Gemma2", dict(head_dim=16, sliding_window=50, attn_logit_softcapping=3.0, num_key_value_heads=4, attention_bias=True),
     dict(norms_less_one=True, drop=("query_pre_attn_scalar", "layer_types", "final_logit_softcapping", "tie_word_embeddings", "hidden_activation"))),
    ("gemma3-silent", "Gemma3", dict(num_hidden_layers=7, head_dim=16, sliding_window=5),
     dict(norms_less_one=True, drop=("layer_types", "rope_parameters", "query_pre_attn_scalar"))),
    ("gemma3-old", "Gemma3", dict(
        num_hidden_layers=4, head_dim=16, query_pre_attn_scalar=20, sliding_window=5, layer_types=[SLIDING, FULL] * 2, final_logit_softcapping=9.0,
        attention_bias=True, rope_parameters={FULL: dict(rope_type="linear", factor=8.0, rope_theta=5e4), SLIDING: dict(rope_type="default", rope_theta=300.0)}),
     dict(norms_less_one=True, edit=old_gemma3)),
    ("gemma4-plain", "Gemma4", GEMMA4 | dict(num_hidden_layers=7)),
    ("gemma4-silent", "Gemma4", GEMMA4 | dict(num_hidden_layers=6, attention_k_eq_v=True, num_global_key_value_heads=1, final_logit_softcapping=3.0),
     dict(drop=("rope_parameters", "layer_types"))),
    ("gemma4-per-layer", "Gemma4", PER_LAYER | dict(num_kv_shared_layers=2, num_hidden_layers=6, layer_types=[SLIDING, FULL] * 3, attention_bias=True)),
    ("gemma4-shared", "Gemma4", PER_LAYER | dict(
        num_kv_shared_layers=3, use_double_wide_mlp=True, attention_k_eq_v=True, num_global_key_value_heads=2, num_hidden_layers=7,
        layer_types=[SLIDING, FULL, SLIDING, FULL, SLIDING, SLIDING, FULL])),
    ("gemma4-experts", "Gemma4", PER_LAYER | dict(
        enable_moe_block=True, num_experts=5, top_k_experts=3, moe_intermediate_size=12, layer_types=[SLIDING, FULL, FULL],
        rope_parameters={FULL: dict(rope_type="proportional", rope_theta=500.0, partial_rotary_factor=0.5, factor=2.0),
                         SLIDING: dict(rope_type="linear", rope_theta=300.0, factor=2.0)})),
    ("olmo2-bias", "Olmo2", dict(attention_bias=True, tie_word_embeddings=True, num_key_value_heads=4)
     | rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    ("granite-bias", "Granite", dict(attention_bias=True, mlp_bias=True, embedding_multiplier=12.0, logits_scaling=0.5, residual_multiplier=0.22,
                                     attention_multiplier=0.0625, tie_word_embeddings=True)),
    ("granite-silent", "Granite", dict(attention_multiplier=0.2), dict(drop=("embedding_multiplier", "logits_scaling", "residual_multiplier"))),
    ("smollm3-silent", "SmolLM3", dict(num_hidden_layers=6, no_rope_layer_interval=2), dict(drop=("no_rope_layers", "layer_types", "tie_word_embeddings"))),
    ("smollm3-window", "SmolLM3", dict(num_hidden_layers=5, use_sliding_window=True, sliding_window=6, no_rope_layer_interval=3, attention_bias=True,
                                       mlp_bias=True, tie_word_embeddings=False)),
    ("qwen3-next-three-taps", "Qwen3Next", SHARED | dict(num_experts_per_tok=3, linear_conv_kernel_dim=3, norm_topk_prob=False, attention_bias=True,
                                                         partial_rotary_factor=0.5), dict(norms_less_one=True)),
    ("qwen3-next-types", "Qwen3Next", SHARED | dict(
        num_experts_per_tok=1, linear_key_head_dim=32, linear_num_value_heads=2, decoder_sparse_step=2, tie_word_embeddings=True,
        layer_types=[FULL, "linear_attention"] * 2), dict(norms_less_one=True)),
    ("qwen3-5-dense", "Qwen3_5", DELTA | dict(linear_key_head_dim=32, num_hidden_layers=5, linear_num_value_heads=6, tie_word_embeddings=True)
     | rope("default", 1e4, partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True), dict(norms_less_one=True)),
    ("qwen3-5-moe", "Qwen3_5Moe", SHARED | dict(num_experts_per_tok=3, attention_bias=True)
     | rope("default", 1e4, mrope_section=[1, 1, 0], mrope_interleaved=True), dict(norms_less_one=True)),
    ("lfm2-adjusted", "Lfm2", dict(num_hidden_layers=4, intermediate_size=90, block_multiple_of=16, block_ffn_dim_multiplier=1.3, conv_L_cache=4,
                                   conv_bias=True, full_attn_idxs=[1, 3]), dict(drop=("layer_types",))),
    ("lfm2-old", "Lfm2", LFM2 | dict(intermediate_size=90, block_auto_adjust_ff_dim=False, conv_L_cache=2, num_key_value_heads=4), dict(edit=old_lfm2)),
    ("lfm2-moe-plain", "Lfm2Moe", LFM2 | dict(num_dense_layers=2, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=12, use_expert_bias=False,
                                              norm_topk_prob=False)),
    ("lfm2-moe-scaled", "Lfm2Moe", LFM2 | dict(num_dense_layers=0, num_experts=5, num_experts_per_tok=3, moe_intermediate_size=12, conv_bias=True,
                                               routed_scaling_factor=2.0)),
    ("gpt-oss-tied", "GptOss", dict(head_dim=16, num_local_experts=5, num_experts_per_tok=3, sliding_window=4, intermediate_size=20, swiglu_limit=1.5,
                                    tie_word_embeddings=True)),
    ("gpt-oss-silent", "GptOss", dict(head_dim=16, num_local_experts=5, num_experts_per_tok=1, sliding_window=4, intermediate_size=20,
                                      attention_bias=False, max_position_embeddings=131072), dict(drop=("rope_parameters", "layer_types", "swiglu_limit"))),
    ("glm4-tied", "Glm4", dict(head_dim=16, attention_bias=False, partial_rotary_factor=0.25, tie_word_embeddings=True)),
    ("glm4-whole", "Glm4", dict(head_dim=16) | rope("default", 500.0, partial_rotary_factor=1.0)),
    ("glm4-silent", "Glm4", dict(head_dim=16), dict(drop=("rms_norm_eps", "attention_bias", "rope_parameters", "partial_rotary_factor"))),
    ("glm4-moe-groups", "Glm4Moe", dict(
        head_dim=16, moe_intermediate_size=12, n_routed_experts=9, num_experts_per_tok=4, n_group=3, topk_group=2, n_shared_experts=2,
        first_k_dense_replace=0, norm_topk_prob=False, routed_scaling_factor=0.7)),
    ("deepseek-v3-one-query", "DeepseekV3", LATENT | dict(q_lora_rank=None, first_k_dense_replace=2, rope_interleave=False, n_shared_experts=2,
                                                          attention_bias=True, norm_topk_prob=False)),
    ("deepseek-v3-yarn", "DeepseekV3", LATENT | dict(n_group=4, topk_group=3, first_k_dense_replace=0)
     | rope("yarn", 1e4, factor=8.0, original_max_position_embeddings=16, mscale=0.8, mscale_all_dim=1.2), dict(edit=old_rope)),
    ("deepseek-v3-one-group", "DeepseekV3", LATENT | dict(n_group=1, first_k_dense_replace=1) | rope("llama3", 1e4, **LLAMA3)),
]


def arguments(doc, folder="out"):
    """The command line of a script that writes cases of checkpoints: a folder, and the beginning of their names."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(folder, type=pathlib.Path)
    parser.add_argument("--only", default="", help="only cases whose name begins so")
    transformers.logging.set_verbosity_error()
    return parser.parse_args()


def main():
    args = arguments(__doc__)
    written = failed = 0
    for name, family, config, *more in CASES:
        if not name.startswith(args.only):
            continue
        try:
            write(args.out / name, family, config, **dict(*more))
            written += 1
        except Exception:
            traceback.print_exc()
            failed += 1
    print(f"{written} written, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
