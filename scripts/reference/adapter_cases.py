#!/usr/bin/env python3
"""Writes tiny checkpoints with low-rank adapters as case folders, with the logits of transformers and PEFT.

    adapter_cases.py OUT [--only TEXT]

Each case has a checkpoint and an adapter in PEFT's, mlx-lm's or llama.cpp's form. The logits are PEFT's, of the adapter beside the
weights. `flambeau conformance OUT --from checkpoint` runs the cases. Needs torch, transformers, peft, gguf and bitsandbytes.
"""
import json
import shutil
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

import checkpoint_cases
import quantized_cases

CHECKPOINTS = Path(__file__).resolve().parents[2] / "crates" / "testcases" / "checkpoints"
SIZES = dict(vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16)
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def adapted(model, **settings):
    """The model with an adapter of random factors."""
    import peft

    model = peft.get_peft_model(model, peft.LoraConfig(**settings))
    generator = torch.Generator().manual_seed(3)
    for name, tensor in model.state_dict().items():
        if "lora_" in name or "modules_to_save" in name:
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
    return model.eval()


def peft_case(folder, model, **settings):
    model = adapted(model, **settings)
    model.save_pretrained(folder / "adapter")
    (folder / "adapter" / "README.md").unlink(missing_ok=True)
    return model


def plain(folder):
    config = transformers.LlamaConfig(**checkpoint_cases.BASE | SIZES)
    config._attn_implementation = "eager"
    model = transformers.LlamaForCausalLM(config).eval()
    checkpoint_cases.randomize(model, False)
    model.save_pretrained(folder / "checkpoint")
    return model


def peft_scales(folder):
    """Scales by root of the rank, and of single modules; an adapter of the embedding; a whole head."""
    return peft_case(folder, plain(folder), r=4, lora_alpha=6, use_rslora=True, target_modules=[*LINEAR, "embed_tokens"],
                     modules_to_save=["lm_head"], rank_pattern={"down_proj": 2}, alpha_pattern={"down_proj": 3, "layers.1.self_attn.q_proj": 9})


def peft_four_bits(folder):
    """An adapter of a checkpoint in bitsandbytes' 4 bits."""
    config, pack = quantized_cases.four_bits("nf4", True)
    quantized_cases.write(folder, "Llama", SIZES, config, pack)
    # Weights of the same values, without a quantization.
    model = plain(folder.with_name("plain"))
    shutil.rmtree(folder.with_name("plain"))
    state = {name: pack(tensor)[1] if name.endswith("_proj.weight") else tensor for name, tensor in model.state_dict().items()}
    model.load_state_dict(state)
    return peft_case(folder, model, r=4, lora_alpha=6, target_modules=LINEAR)


def factors(model):
    """(module, A, B) of each adapted module."""
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and "default" in module.lora_A:
            yield name.removeprefix("base_model.model."), module.lora_A["default"].weight, module.lora_B["default"].weight


def mlx(folder):
    """mlx-lm's form: factors transposed, and the scale as it is."""
    model = adapted(plain(folder), r=4, lora_alpha=10, target_modules=["q_proj", "v_proj", "down_proj"])
    tensors = {}
    for module, a, b in factors(model):
        tensors |= {f"{module}.lora_a": a.T.contiguous(), f"{module}.lora_b": b.T.contiguous()}
    (folder / "adapter").mkdir()
    save_file(tensors, folder / "adapter" / "adapters.safetensors")
    config = dict(fine_tune_type="lora", num_layers=-1, lora_parameters=dict(rank=4, scale=2.5, dropout=0.0, keys=["self_attn.q_proj"]))
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(config, indent=1))
    return model


def llama_cpp(folder):
    """llama.cpp's form beside a GGUF file, whose query and key rows are interleaved."""
    import gguf

    sys.path.insert(0, str(CHECKPOINTS))
    import make

    source = CHECKPOINTS / "gguf-llama-biases"
    _, family, config = next(entry for entry in make.ARCHITECTURES if entry[0] == "llama-biases")
    shutil.copy(source / "checkpoint.gguf", folder / "checkpoint.gguf")
    before = dict(checkpoint_cases.BASE), checkpoint_cases.VOCAB, checkpoint_cases.TOKENS, checkpoint_cases.NEW
    checkpoint_cases.BASE |= make.SMALL
    checkpoint_cases.VOCAB, checkpoint_cases.TOKENS, checkpoint_cases.NEW = 32, 12, 4
    config = getattr(transformers, f"{family}Config")(**checkpoint_cases.BASE | config)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    checkpoint_cases.randomize(model, False)
    for tensor in model.state_dict().values():
        tensor.copy_(tensor.half())
    model = adapted(model, r=4, lora_alpha=6, target_modules=LINEAR)
    writer = gguf.GGUFWriter(str(folder / "adapter.gguf"), "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 6.0)
    names = dict(zip(LINEAR, ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]))
    heads = dict(q_proj=config.num_attention_heads, k_proj=config.num_key_value_heads)
    for module, a, b in factors(model):
        _, _, layer, _, part = module.split(".")
        if part in heads:
            b = b.reshape(heads[part], 2, -1, b.shape[1]).transpose(1, 2).reshape(b.shape)
        writer.add_tensor(f"blk.{layer}.{names[part]}.weight.lora_a", a.contiguous().numpy())
        writer.add_tensor(f"blk.{layer}.{names[part]}.weight.lora_b", b.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint_cases.write_expected(folder, model, "llama")
    checkpoint_cases.BASE.clear()
    checkpoint_cases.BASE |= before[0]
    _, checkpoint_cases.VOCAB, checkpoint_cases.TOKENS, checkpoint_cases.NEW = before


CASES = {"adapter-peft": peft_scales, "adapter-peft-four-bits": peft_four_bits, "adapter-mlx": mlx, "adapter-gguf": llama_cpp}


@torch.no_grad()
def main():
    args = checkpoint_cases.arguments(__doc__)
    for name, write in CASES.items():
        if name.startswith(args.only):
            folder = args.out / name
            folder.mkdir(parents=True)
            model = write(folder)
            if model is not None:
                checkpoint_cases.write_expected(folder, model, "llama")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
