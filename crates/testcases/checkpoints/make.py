#!/usr/bin/env python3
"""Writes the checkpoint cases next to this script: a GGUF file per architecture from llama.cpp's
converter, a folder per quantization method, and folders of families, with transformers' logits.

    make.py LLAMA_CPP [--only TEXT]

LLAMA_CPP is a checkout of llama.cpp or the copy in llama-cpp-python's source package. Needs torch
and transformers.
"""
import shutil
import sys
import tempfile
from collections import OrderedDict
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "scripts" / "reference"))

import checkpoint_cases  # noqa: E402
import gguf_cases  # noqa: E402
import gguf_relatives as relatives  # noqa: E402
import quantized_cases  # noqa: E402
from checkpoint_cases import FULL, SLIDING, rope  # noqa: E402

SMALL = dict(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
             max_position_embeddings=64)
KINDS = [SLIDING, FULL]
# The amplitude that the converter computes for Phi-3.5's experts from 64 and 8 positions.
PHI = 2**0.5
SWA = dict(num_hidden_layers=3, sliding_window=4, layer_types=[FULL, SLIDING, SLIDING], residual_multiplier=0.22, logits_scaling=0.5,
           embedding_multiplier=12.0, attention_multiplier=0.0625, layer_rope_theta=[1e4] * 3)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, norm_topk_prob=True)
GROUPED = dict(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, n_shared_experts=1, first_k_dense_replace=1)
STATES = dict(mamba_d_state=8, mamba_n_heads=4, mamba_n_groups=1, mamba_d_conv=4)
DELTA = dict(num_hidden_layers=2, head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=4,
             layer_types=["linear_attention", FULL])
SHARED = DELTA | EXPERTS | dict(shared_expert_intermediate_size=12)
SECTIONS = rope("default", 1e4, partial_rotary_factor=0.5, mrope_section=[1, 1, 0], mrope_interleaved=True)
CONVS = dict(layer_types=["conv", FULL], block_auto_adjust_ff_dim=False)
GEMMA4 = dict(head_dim=8, global_head_dim=16, sliding_window=4, vocab_size_per_layer_input=32, hidden_size_per_layer_input=0, layer_types=KINDS)
# Common sizes that the configs of older families lack.
GPT = dict(drop=("intermediate_size", "num_key_value_heads"))


def pickle(checkpoint):
    """Stores the weights as folders did before safetensors."""
    file = checkpoint / "model.safetensors"
    state = OrderedDict(load_file(file))
    state._metadata = {"": dict(version=1)}
    torch.save(state, checkpoint / "pytorch_model.bin")
    file.unlink()


COHERE = dict(num_hidden_layers=4, num_experts=4, num_experts_per_tok=2, head_dim=8, sliding_window=4, sliding_window_pattern=3, logit_scale=0.25,
              intermediate_size=12)
# The eager attention of Falcon adds its biases by distance twice.
SDPA = GPT | dict(attention="sdpa")
MPT = dict(drop=("intermediate_size", "num_key_value_heads", "max_position_embeddings"))
PUBLISHED_MPT = MPT | dict(edit=lambda config: config.update(architectures=["MPTForCausalLM"]))
LESS_ONE = dict(norms_less_one=True)
# The rotary embedding's base is a key of attention in published folders.
DBRX = dict(drop=("intermediate_size", "num_key_value_heads", "rope_parameters"))


def internlm2(config):
    config.update(model_type="internlm2", architectures=["InternLM2ForCausalLM"], bias=config.pop("attention_bias"))
    del config["mlp_bias"]


def join_groups(checkpoint):
    """Gives Llama's tensors the names and the layout of InternLM 2, whose code is not part of transformers."""
    heads, kv_heads = GROUPS["num_attention_heads"], GROUPS["num_key_value_heads"]
    tensors, joined = load_file(checkpoint / "model.safetensors"), {}
    names = {"embed_tokens": "tok_embeddings", "lm_head": "output", "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1",
             "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3", "input_layernorm": "attention_norm",
             "post_attention_layernorm": "ffn_norm"}
    for name, tensor in tensors.items():
        if "q_proj" in name:
            parts = [tensors[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            dim = len(tensor) // heads
            groups = torch.cat([part.view(kv_heads, -1, dim, part.shape[1]) for part in parts], 1)
            joined[name.replace("self_attn.q_proj", "attention.wqkv")] = groups.reshape(-1, tensor.shape[1]).contiguous()
        elif "k_proj" not in name and "v_proj" not in name:
            for own, other in names.items():
                name = name.replace(own, other)
            joined[name] = tensor
    save_file(joined, checkpoint / "model.safetensors", metadata={"format": "pt"})


GROUPS = dict(num_attention_heads=4, num_key_value_heads=2, hidden_size=32)
INTERNLM2 = dict(edit=internlm2, after=join_groups)

DECAYS = dict(moe_intermediate_size=8, kv_lora_rank=8, q_lora_rank=None, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=6, num_key_value_heads=2,
              layer_types=["linear_attention", FULL], mlp_layer_types=["dense", "sparse"])


def kimi(config):
    """Keys of published configs that the converter reads."""
    config["linear_attn_config"] = dict(full_attn_layers=[2], kda_layers=[1], num_heads=2, head_dim=8, short_conv_kernel_size=4)
    config.update(num_shared_experts=1, first_k_dense_replace=1, num_experts=4, num_experts_per_token=2, moe_router_activation_func="sigmoid")


def rename_dense(checkpoint):
    """Gives dense layers of Kimi Linear their published names."""
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if name.startswith("model.layers.0.block_sparse_moe.")]:
        tensors[name.replace("block_sparse_moe", "mlp")] = tensors.pop(name)
    save_file(tensors, file, metadata={"format": "pt"})


def bailing(config):
    """Published keys, under a name that transformers does not know, so that the converter reads them as they are."""
    config.update(model_type="bailing_moe_v3", architectures=["BailingMoeV3ForCausalLM"], layer_group_size=2, no_kda_lora=True, kda_safe_gate=True,
                  kda_lower_bound=-5.0, gated_attention_proj_granularity_type="head_wise", head_dim=8, short_conv_kernel_size=4, n_group=2,
                  score_function="sigmoid", norm_topk_prob=True, moe_shared_expert_intermediate_size=8, first_k_dense_replace=1,
                  num_nextn_predict_layers=0)


def mimo(config):
    """As for Ling."""
    config.update(model_type="mimo_v2", rope_theta=config.pop("rope_parameters")[FULL]["rope_theta"], swa_rope_theta=1e3, partial_rotary_factor=0.334,
                  hybrid_layer_pattern=[0, 1], swa_num_key_value_heads=2, swa_head_dim=12, swa_v_head_dim=8, swa_num_attention_heads=2,
                  topk_method="noaux_tc", scoring_func="sigmoid", layernorm_epsilon=1e-5)


def phi(config):
    config["architectures"] = ["PhiMoEForCausalLM"]


# Architecture, family in transformers' spelling, config, and further arguments of `write`.
ARCHITECTURES = [
    ("apertus", "Apertus", dict(num_key_value_heads=2) | rope("llama3", 5e3, factor=6.0, original_max_position_embeddings=24, low_freq_factor=1.0,
                                                              high_freq_factor=4.0)),
    ("arcee", "Arcee", {}),
    ("bailingmoe3", "BailingHybrid", DECAYS | dict(
        num_experts=4, num_experts_per_tok=2, num_shared_experts=1, head_dim=8, n_group=2, topk_group=1, routed_scaling_factor=1.5), dict(edit=bailing)),
    ("bloom", "Bloom", dict(num_attention_heads=3, hidden_size=24), GPT),
    ("chatglm", "Glm", dict(head_dim=8, attention_bias=True)),
    ("cohere2", "Cohere2", dict(num_hidden_layers=4, sliding_window=4, logit_scale=0.25, rotary_pct=1.0)),
    ("cohere2moe", "Cohere2Moe", COHERE | dict(num_shared_experts=2, first_k_dense_replace=1, prefix_dense_intermediate_size=20, expert_selection_fn="sigmoid")),
    ("command-r", "Cohere", dict(logit_scale=0.25)),
    ("dbrx", "Dbrx", dict(d_model=16, attn_config=dict(kv_n_heads=1, clip_qkv=0.5, rope_theta=5e3), ffn_config=dict(
        ffn_hidden_size=12, moe_num_experts=4, moe_top_k=2)) | rope("default", 5e3), DBRX),
    ("deepseek2", "DeepseekV3", GROUPED | dict(
        q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=6, n_group=2, topk_group=1, num_key_value_heads=2)
     | rope("yarn", 1e4, factor=4.0, original_max_position_embeddings=16, mscale=0.8, mscale_all_dim=0.8)),
    ("dots1", "Dots1", GROUPED | dict(head_dim=8, routed_scaling_factor=1.5, n_group=1, topk_group=1)),
    ("ernie4_5", "Ernie4_5", dict(head_dim=8, rope_theta=1e4)),
    ("exaone4", "Exaone4", dict(num_hidden_layers=4, sliding_window=4, sliding_window_pattern=4)),
    ("falcon", "Falcon", dict(num_kv_heads=1), GPT),
    ("falcon-groups", "Falcon", dict(new_decoder_architecture=True, num_attention_heads=4, num_kv_heads=2), GPT),
    ("falcon-h1", "FalconH1", STATES | dict(head_dim=8, mamba_d_ssm=24, mamba_rms_norm=False, mamba_norm_before_gate=False, key_multiplier=0.5,
                                            embedding_multiplier=2.0, lm_head_multiplier=0.5, ssm_in_multiplier=0.5, attention_out_multiplier=2.0)),
    ("gemma", "Gemma", dict(head_dim=8), LESS_ONE),
    ("gemma2", "Gemma2", dict(head_dim=8, query_pre_attn_scalar=8, sliding_window=4), LESS_ONE),
    ("gemma3", "Gemma3", dict(num_hidden_layers=6, head_dim=8, query_pre_attn_scalar=8, sliding_window=4, rope_parameters={
        FULL: dict(rope_type="linear", factor=8.0, rope_theta=1e6), SLIDING: dict(rope_type="default", rope_theta=1e4)}), LESS_ONE),
    ("gemma3n", "Gemma3n", dict(
        num_hidden_layers=4, head_dim=8, sliding_window=4, layer_types=KINDS * 2, num_kv_shared_layers=2, hidden_size_per_layer_input=4,
        vocab_size_per_layer_input=32, laurel_rank=4, activation_sparsity_pattern=[0.9, 0.6, 0.0, 0.0], final_logit_softcapping=5.0)),
    ("gemma4", "Gemma4", GEMMA4 | dict(attention_k_eq_v=True, num_global_key_value_heads=1, num_key_value_heads=2, final_logit_softcapping=5.0)),
    ("gemma4-experts", "Gemma4", GEMMA4 | dict(enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=8)),
    ("gemma4-per-layer", "Gemma4", GEMMA4 | dict(
        hidden_size_per_layer_input=4, num_hidden_layers=4, num_kv_shared_layers=2, use_double_wide_mlp=True, layer_types=KINDS * 2)),
    ("glm4", "Glm4", dict(head_dim=8, attention_bias=True)),
    ("glm4moe", "Glm4Moe", GROUPED | dict(head_dim=8, use_qk_norm=True, attention_bias=True, routed_scaling_factor=1.5)),
    ("gpt-oss", "GptOss", dict(head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=4)
     | rope("yarn", 1e4, factor=4.0, original_max_position_embeddings=16, truncate=False)),
    ("gptneox", "GPTNeoX", dict(num_key_value_heads=2)),
    ("gpt2", "GPT2", dict(n_ctx=64), GPT),
    ("granite", "Granite", dict(embedding_multiplier=12.0, logits_scaling=0.5, residual_multiplier=0.22, attention_multiplier=0.0625)),
    ("granitehybrid", "GraniteMoeHybrid", STATES | dict(
        mamba_expand=2, mamba_d_head=8, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=12, layer_types=["mamba", "attention"],
        embedding_multiplier=12.0, logits_scaling=0.5, residual_multiplier=0.22, attention_multiplier=0.0625, position_embedding_type="nope")),
    ("granitemoe", "GraniteMoeShared", dict(
        num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=12, embedding_multiplier=12.0, logits_scaling=0.5,
        residual_multiplier=0.22, attention_multiplier=0.0625)),
    ("granite_swa", "GraniteSWA", SWA),
    ("granite_swa-experts", "GraniteMoeSWA", SWA | dict(num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=12)),
    ("hunyuan-dense", "HunYuanDenseV1", dict(head_dim=8)),
    ("hunyuan-moe", "HunYuanMoEV1", dict(
        num_experts=4, moe_topk=[2, 2], head_dim=8, num_shared_expert=[1, 1], moe_intermediate_size=[24, 24])),
    ("hy_v3", "HYV3", dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, num_shared_experts=1, head_dim=8, router_scaling_factor=1.5)),
    ("internlm2", "Llama", GROUPS, INTERNLM2),
    ("jais2", "Jais2", {}),
    ("jamba", "Jamba", dict(num_hidden_layers=4, num_experts=3, num_experts_per_tok=2, attn_layer_period=3, attn_layer_offset=1, mamba_dt_rank=3,
                            mamba_d_state=4, use_mamba_kernels=False)),
    ("kimi-linear", "KimiLinear", DECAYS | dict(
        num_experts=4, num_experts_per_token=2, num_shared_experts=1, num_expert_group=1, topk_group=1, linear_head_dim=8, linear_num_heads=2,
        routed_scaling_factor=1.5), dict(edit=kimi, after=rename_dense)),
    ("laguna", "Laguna", EXPERTS | dict(
        num_hidden_layers=4, head_dim=8, sliding_window=4, layer_types=[FULL] + 3 * [SLIDING], num_attention_heads_per_layer=[2, 4, 4, 4],
        mlp_layer_types=["dense"] + 3 * ["sparse"], shared_expert_intermediate_size=12, moe_routed_scaling_factor=1.5, rope_parameters={
            FULL: dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5),
            SLIDING: dict(rope_type="default", rope_theta=1e3, partial_rotary_factor=1.0)})),
    ("lfm2", "Lfm2", CONVS),
    ("lfm2moe", "Lfm2Moe", EXPERTS | dict(layer_types=["conv", FULL], num_dense_layers=1)),
    ("llama-biases", "Llama", dict(attention_bias=True, mlp_bias=True) | rope("llama3", 5e3, factor=6.0, original_max_position_embeddings=24,
                                                                            low_freq_factor=1.0, high_freq_factor=4.0)),
    ("llama-experts", "Mixtral", dict(num_local_experts=3, num_experts_per_tok=2)),
    ("llama4", "Llama4", dict(head_dim=8, num_hidden_layers=4, num_local_experts=3, num_experts_per_tok=1, intermediate_size=12,
                              intermediate_size_mlp=24, interleave_moe_layer_step=2)),
    ("mamba", "Mamba", dict(state_size=4, time_step_rank=3, intermediate_size=32)),
    ("mamba2", "Mamba2", dict(intermediate_size=32, state_size=8, num_heads=4, head_dim=8, n_groups=1, expand=2)),
    ("mamba-falcon", "FalconMamba", dict(state_size=4, time_step_rank=3, intermediate_size=32)),
    ("mimo2", "MiMoV2Flash", dict(
        n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, head_dim=12, v_head_dim=8, n_group=1, topk_group=1, layer_types=KINDS[::-1],
        sliding_window=4, attention_value_scale=0.7, rope_parameters={
            kind: dict(rope_type="default", rope_theta=theta, partial_rotary_factor=0.334) for kind, theta in [(FULL, 1e4), (SLIDING, 1e3)]}), dict(edit=mimo)),
    ("minicpm3", "MiniCPM3", dict(
        q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=6, num_key_value_heads=2, original_max_position_embeddings=64)
     | rope("longrope", 1e4, short_factor=[1.0, 1.5], long_factor=[1.0, 4.0], original_max_position_embeddings=64)),
    ("mpt", "Mpt", dict(num_attention_heads=3, hidden_size=24, max_seq_len=64, attn_config=dict(clip_qkv=0.5)), PUBLISHED_MPT),
    ("nemotron", "Nemotron", dict(mlp_bias=True), LESS_ONE),
    ("olmo", "Olmo", {}),
    ("olmo2", "Olmo2", dict(num_key_value_heads=2)),
    ("olmo3", "Olmo3", dict(sliding_window=4, layer_types=KINDS)),
    ("olmoe", "Olmoe", EXPERTS | dict(norm_topk_prob=False)),
    ("phi2", "Phi", dict(intermediate_size=64, num_key_value_heads=2)),
    ("phi3", "Phi3", dict(original_max_position_embeddings=8, sliding_window=6, partial_rotary_factor=0.5)
     | rope("longrope", 1e4, short_factor=[1.0, 1.1], long_factor=[1.0, 4.0]), dict(prompt=10)),
    ("phimoe", "Phimoe", dict(num_local_experts=4, num_experts_per_tok=2, attention_bias=True, lm_head_bias=True, original_max_position_embeddings=8,
                              hidden_size=32, num_attention_heads=2)
     | rope("longrope", 1e4, short_factor=[1.0, 1.1] * 4, long_factor=[1.0, 1.1] * 4, short_mscale=PHI, long_mscale=PHI, original_max_position_embeddings=8), dict(edit=phi)),
    ("qwen2", "Qwen2", dict(tie_word_embeddings=True)),
    ("qwen2moe", "Qwen2Moe", EXPERTS | dict(shared_expert_intermediate_size=12, norm_topk_prob=False)),
    ("qwen3", "Qwen3", dict(head_dim=8)),
    ("qwen35", "Qwen3_5", DELTA | SECTIONS, LESS_ONE),
    ("qwen35moe", "Qwen3_5Moe", SHARED | SECTIONS, LESS_ONE),
    ("qwen3moe", "Qwen3Moe", EXPERTS | dict(head_dim=8)),
    ("qwen3next", "Qwen3Next", SHARED, LESS_ONE),
    ("seed_oss", "SeedOss", dict(head_dim=8)),
    ("stablelm", "StableLm", dict(use_qkv_bias=True)),
    ("starcoder", "GPTBigCode", {}, GPT),
    ("starcoder2", "Starcoder2", dict(sliding_window=None)),
    ("smollm3", "SmolLM3", dict(num_hidden_layers=4, tie_word_embeddings=True)),
]


LLAMA = ("Llama", dict(num_attention_heads=4, num_key_value_heads=2))
# Files of related architectures and of other writers: name, family in transformers' spelling and config of the file that is rewritten,
# architecture and change.
RELATIVES = [
    ("baichuan", *LLAMA, "baichuan"),
    ("bailingmoe", "GraniteMoeShared", dict(
        num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=24, embedding_multiplier=1.0, logits_scaling=1.0, residual_multiplier=1.0,
        attention_multiplier=8**-0.5), "bailingmoe", relatives.first_ling),
    ("bailingmoe2", "Glm4Moe", GROUPED | dict(head_dim=8, use_qk_norm=True, routed_scaling_factor=1.5, n_group=2, topk_group=1), "bailingmoe2",
     relatives.second_ling),
    ("codeshell", "Starcoder2", dict(sliding_window=None, tie_word_embeddings=False), "codeshell"),
    ("hunyuan_vl", "HunYuanDenseV1", dict(head_dim=8), "hunyuan_vl"),
    ("llama-joined", "Llama", dict(attention_bias=True, num_attention_heads=4, num_key_value_heads=2), "llama", relatives.join_rows),
    ("llama-scaled", "Mixtral", dict(num_local_experts=3, num_experts_per_tok=2), "llama", relatives.scale),
    ("minicpm", "Granite", dict(embedding_multiplier=12.0, logits_scaling=0.0625, residual_multiplier=1.4 / 2**0.5, attention_multiplier=8**-0.5),
     "minicpm", relatives.first_minicpm),
    ("nanbeige", *LLAMA, "nanbeige", relatives.one_loop),
    ("orion", "StableLm", rope("default", 1e4, partial_rotary_factor=1.0), "orion", relatives.orion),
    ("pangu-embedded", "SeedOss", dict(head_dim=8, attention_out_bias=True), "pangu-embedded", relatives.rename_norm),
    ("qwen", "Qwen2", dict(num_key_value_heads=2), "qwen", relatives.first_qwen),
    ("xverse", *LLAMA, "xverse"),
]


# Folders of families: name, family in transformers' spelling, config, and further arguments of `write`.
FAMILIES = [
    ("bamba", "Bamba", STATES | dict(mamba_d_head=8, attn_layer_indices=[1])),
    ("bloom", "Bloom", dict(num_attention_heads=3, hidden_size=24), GPT),
    ("codegen", "CodeGen", dict(num_attention_heads=4, hidden_size=32, rotary_dim=4, n_inner=20), GPT),
    ("cohere2-moe", "Cohere2Moe", COHERE | dict(num_shared_experts=2, first_k_dense_replace=1, prefix_dense_intermediate_size=20)),
    ("cohere2-moe-sigmoid", "Cohere2Moe", COHERE | dict(
        expert_selection_fn="sigmoid", num_shared_experts=1, shared_expert_combination_strategy="sum", rms_norm_eps=1e-5)),
    ("dbrx", "Dbrx", dict(d_model=16, attn_config=dict(kv_n_heads=1, clip_qkv=0.5, rope_theta=5e3), ffn_config=dict(
        ffn_hidden_size=12, moe_num_experts=4, moe_top_k=2)) | rope("default", 5e3), DBRX),
    ("dots1-windows", "Dots1", GROUPED | dict(head_dim=8, sliding_window=4, max_window_layers=1, n_group=1, topk_group=1)),
    ("ernie4_5-moe-biases", "Ernie4_5_Moe", dict(
        use_bias=True, moe_num_experts=4, moe_k=2, moe_intermediate_size=8, moe_num_shared_experts=1, moe_layer_start_index=1, head_dim=8)),
    ("falcon", "Falcon", dict(ffn_hidden_size=20), GPT),
    ("falcon-groups", "Falcon", dict(new_decoder_architecture=True, num_attention_heads=4, num_kv_heads=2, bias=True), GPT),
    ("falcon-one-norm", "Falcon", dict(new_decoder_architecture=True, num_kv_heads=1, num_ln_in_parallel_attn=1), GPT),
    ("falcon-sloped", "Falcon", dict(alibi=True, parallel_attn=False, multi_query=False, num_kv_heads=2, bias=True), SDPA),
    ("falcon-h1-quick", "FalconH1", STATES | dict(
        head_dim=8, mamba_d_ssm=24, mamba_n_heads=3, mamba_d_head=8, hidden_act="quick_gelu", mamba_proj_bias=True), dict(drop=("rope_parameters",))),
    ("gpt-bigcode", "GPTBigCode", dict(n_inner=20), GPT),
    ("gpt-bigcode-heads", "GPTBigCode", dict(multi_query=False), GPT),
    ("gpt-neo", "GPTNeo", dict(intermediate_size=20, window_size=4, attention_types=[[["global", "local"], 1]]), dict(drop=("num_key_value_heads",))),
    ("gpt2", "GPT2", dict(n_inner=20), GPT),
    ("gptj", "GPTJ", dict(rotary_dim=4), GPT),
    ("granitemoe-swa", "GraniteMoeSWA", dict(
        num_hidden_layers=3, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=12, sliding_window=4, residual_multiplier=0.22,
        layer_types=[FULL, SLIDING, SLIDING], layer_rope_theta=[0, 1e3, 1e4])),
    ("hunyuan-moe", "HunYuanMoEV1", dict(num_experts=4, moe_topk=2, head_dim=8) | rope("dynamic", 1e4, alpha=100.0, factor=1.0)),
    ("internlm2", "Llama", GROUPS, INTERNLM2),
    ("jais2", "Jais2", {}),
    ("kimi-linear-tied", "KimiLinear", dict(
        num_experts=4, num_experts_per_token=2, moe_intermediate_size=8, num_shared_experts=1, kv_lora_rank=8, q_lora_rank=None,
        qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=6, num_key_value_heads=2, num_expert_group=1, topk_group=1, linear_head_dim=8,
        linear_num_heads=2, layer_types=["linear_attention", FULL], mlp_layer_types=["dense", "sparse"], tie_word_embeddings=True)),
    ("laguna-elements", "Laguna", EXPERTS | dict(
        head_dim=8, gating="per-element", moe_router_logit_softcapping=3.0, shared_expert_intermediate_size=12)),
    ("mimo_v2_flash", "MiMoV2Flash", dict(
        n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, head_dim=12, v_head_dim=8, n_group=1, topk_group=1, layer_types=[FULL, SLIDING], sliding_window=4, rope_parameters={
            kind: dict(rope_type="default", rope_theta=theta, partial_rotary_factor=0.334) for kind, theta in [(FULL, 1e4), (SLIDING, 1e3)]})),
    ("mixtral-joined", "Mixtral", dict(num_local_experts=3, num_experts_per_tok=2), dict(original=False)),
    ("mpt", "Mpt", dict(num_attention_heads=3, hidden_size=24, max_seq_len=64, attn_config=dict(clip_qkv=0.5)), MPT),
    ("olmo-clipped", "Olmo", dict(clip_qkv=0.5)),
    ("olmoe-clipped", "Olmoe", dict(num_experts=4, num_experts_per_tok=2, clip_qkv=0.5)),
    ("opt", "OPT", dict(ffn_dim=20), GPT | dict(after=pickle)),
    ("opt-sums", "OPT", dict(ffn_dim=20, do_layer_norm_before=False, word_embed_proj_dim=8), GPT),
    ("phi-normed", "Phi", dict(qk_layernorm=True, num_key_value_heads=2)),
    ("qwen3-5-relu", "Qwen3_5", DELTA | SECTIONS | dict(hidden_act="relu"), LESS_ONE),
    ("qwen2-moe-windows", "Qwen2Moe", EXPERTS | dict(
        num_hidden_layers=3, shared_expert_intermediate_size=12, use_sliding_window=True, sliding_window=4, max_window_layers=2)),
]


def make_small():
    checkpoint_cases.BASE |= SMALL
    checkpoint_cases.VOCAB, checkpoint_cases.TOKENS, checkpoint_cases.NEW = 32, 12, 4


def families(only):
    make_small()
    for name, family, config, *more in FAMILIES:
        if f"family-{name}".startswith(only):
            out = HERE / f"family-{name}"
            out.mkdir(exist_ok=True)
            checkpoint_cases.write(out, family, config, **dict(*more))


def gguf(llama_cpp, only):
    gguf_cases.set_up(llama_cpp)
    make_small()
    randomize = checkpoint_cases.randomize

    def halves(model, norms_less_one):
        """Weights that the half precision of the files represents exactly."""
        randomize(model, norms_less_one)
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(tensor.half())

    checkpoint_cases.randomize = halves
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for name, family, config, *more in ARCHITECTURES:
            if not f"gguf-{name}".startswith(only):
                continue
            case = Path(folder) / name
            checkpoint_cases.write(case, family, config, **dict(*more))
            out = HERE / f"gguf-{name}"
            out.mkdir(exist_ok=True)
            gguf_cases.convert(case / "checkpoint", out / "checkpoint.gguf", "MOSTLY_F16")
            copy_expected(case, out)
        for name, family, config, architecture, *change in RELATIVES:
            if not f"gguf-{name}".startswith(only):
                continue
            case = Path(folder) / f"{name}-relative"
            checkpoint_cases.write(case, family, config)
            out = HERE / f"gguf-{name}"
            out.mkdir(exist_ok=True)
            gguf_cases.convert(case / "checkpoint", case / "checkpoint.gguf", "MOSTLY_F16")
            relatives.rewrite(case / "checkpoint.gguf", out / "checkpoint.gguf", architecture, *change)
            copy_expected(case, out)
    checkpoint_cases.randomize = randomize


def copy_expected(case, out):
    for file in ("case.json", "tokens.bin", "expected_logits.bin"):
        shutil.copy(case / file, out / file)


def bitnet(llama_cpp):
    """The converter makes floats ternary, as readers of the folder do."""
    gguf_cases.set_up(llama_cpp)
    out = HERE / "gguf-bitnet"
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = shutil.copytree(HERE / "folder-bitnet-online" / "checkpoint", Path(folder) / "checkpoint")
        # The converter knows the names of the first models only.
        file = checkpoint / "model.safetensors"
        first = {name.replace("attn_sub_norm", "inner_attn_ln").replace("ffn_sub_norm", "ffn_layernorm"): tensor for name, tensor in load_file(file).items()}
        save_file(first, file)
        gguf_cases.convert(checkpoint, out / "checkpoint.gguf", "ALL_F32")
    copy_expected(HERE / "folder-bitnet-online", out)


def main():
    args = checkpoint_cases.arguments(__doc__, "llama_cpp")
    families(args.only)
    gguf(args.llama_cpp, args.only)
    for name, (family, sizes), (config, pack) in quantized_cases.CASES:
        if f"folder-{name}".startswith(args.only):
            quantized_cases.write(HERE / f"folder-{name}", family, sizes | dict(hidden_size=32, intermediate_size=32, num_attention_heads=2), config, pack)
    if "gguf-bitnet".startswith(args.only):
        bitnet(args.llama_cpp)


if __name__ == "__main__":
    main()
