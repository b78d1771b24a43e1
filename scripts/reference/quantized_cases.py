#!/usr/bin/env python3
"""Writes tiny folders of quantized weights as case folders, with transformers' logits of the dequantized ones.

    quantized_cases.py OUT [--only TEXT]

Packs as GPTQ, AWQ, AutoRound, compressed-tensors, ModelOpt, bitsandbytes, BitNet, DeepSeek and FBGEMM (fp8), gpt-oss (mxfp4) and ExecuTorch
(bundles by torchao) and torchao do. `flambeau conformance OUT --from checkpoint` runs them. Needs torch, transformers and bitsandbytes.
"""
import json
import pathlib
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

import checkpoint_cases

SIZES = dict(vocab_size=32, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
LLAMA = ("Llama", SIZES)
BITNET = ("BitNet", SIZES | dict(hidden_act="relu2", tie_word_embeddings=True))
MOE = ("Qwen3Moe", SIZES | dict(num_experts=3, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True))
GPT_OSS = ("GptOss", SIZES | dict(num_local_experts=3, num_experts_per_tok=2, intermediate_size=32, sliding_window=4))


def stream(codes, bits):
    """Codes [.., n] as words [.., n * bits / 32] of 32 bits, lowest bits first."""
    spread = (codes.long().unsqueeze(-1) >> torch.arange(bits)) & 1
    spread = spread.reshape(*codes.shape[:-1], -1, 32)
    words = (spread << torch.arange(32)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def grouped(weight, group, bits, symmetric):
    """Codes [out, in], f16 scales and zero points [out, groups], and the values that they stand for."""
    rows = weight.reshape(weight.shape[0], -1, group)
    top = 2**bits - 1
    if symmetric:
        scale = rows.abs().amax(-1) / (top // 2)
        zero = torch.full_like(scale, (top + 1) // 2)
    else:
        low, high = rows.amin(-1).clamp(max=0), rows.amax(-1).clamp(min=0)
        scale = (high - low) / top
        zero = (-low / scale).round().clamp(1, top)
    scale = scale.half().float()
    codes = (rows / scale[..., None] + zero[..., None]).round().clamp(0, top)
    values = (codes - zero[..., None]) * scale[..., None]
    return codes.reshape(weight.shape).int(), scale.half(), zero.int(), values.reshape(weight.shape)


def gptq(bits, group, symmetric=True, stored_less=1, order=False):
    def pack(weight):
        index = torch.arange(weight.shape[1]) // group
        if order:
            places = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(2))
            index = index[places.argsort()]
            weight = weight[:, places]
        codes, scale, zero, values = grouped(weight, group, bits, symmetric)
        if order:
            codes, values = codes[:, places.argsort()], values[:, places.argsort()]
        parts = dict(qweight=stream(codes, bits).T, qzeros=stream(zero.T - stored_less, bits), scales=scale.T, g_idx=index.int())
        return parts, values

    form = "gptq" if stored_less else "gptq_v2"
    return dict(quant_method="gptq", bits=bits, group_size=group, desc_act=order, sym=symmetric, checkpoint_format=form), pack


def awq(group):
    def words(codes):
        return stream(codes.reshape(codes.shape[0], -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]].flatten(1), 4)

    def pack(weight):
        codes, scale, zero, values = grouped(weight, group, 4, False)
        return dict(qweight=words(codes.T), qzeros=words(zero.T), scales=scale.T), values

    return dict(quant_method="awq", bits=4, group_size=group, zero_point=True, version="gemm"), pack


def compressed(form, **weights):
    return dict(quant_method="compressed-tensors", format=form, config_groups=dict(group_0=dict(targets=["Linear"], weights=weights)), ignore=["lm_head"])


def packed(bits, group, symmetric):
    def pack(weight):
        codes, scale, zero, values = grouped(weight, group, bits, symmetric)
        parts = dict(weight_packed=stream(codes, bits), weight_scale=scale, weight_shape=torch.tensor(weight.shape))
        if not symmetric:
            parts["weight_zero_point"] = stream(zero.T, bits).T
        return parts, values

    return compressed("pack-quantized", num_bits=bits, type="int", symmetric=symmetric, strategy="group", group_size=group), pack


def signed_bytes():
    def pack(weight):
        codes, scale, zero, values = grouped(weight, weight.shape[1], 8, True)
        return dict(weight=(codes - zero).to(torch.int8), weight_scale=scale), values

    return compressed("int-quantized", num_bits=8, type="int", symmetric=True, strategy="channel"), pack


def small_floats(config, name, rows, cols):
    def pack(weight):
        height, width = rows or weight.shape[0], cols or weight.shape[1]
        tall, wide = -(-weight.shape[0] // height), -(-weight.shape[1] // width)
        padded = torch.zeros(tall * height, wide * width)
        padded[: weight.shape[0], : weight.shape[1]] = weight
        blocks = padded.reshape(tall, height, wide, width)
        scale = blocks.abs().amax((1, 3)) / 448
        stored = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
        values = (stored.float() * scale[:, None, :, None]).reshape(padded.shape)[: weight.shape[0], : weight.shape[1]]
        stored = stored.reshape(padded.shape)[: weight.shape[0], : weight.shape[1]]
        return {"weight": stored, name: scale if rows else scale.reshape(-1)}, values

    return config, pack


def bitnet(linear, mode):
    """One of -1, 0 and 1 for each weight, four in a byte, and one scale; or floats that become so when they are loaded."""
    def pack(weight):
        scale = weight.abs().mean()
        signs = (weight / scale).round().clamp(-1, 1)
        if mode == "online":
            return dict(weight=weight), signs * scale
        codes = (signs + 1).to(torch.uint8).reshape(4, -1, weight.shape[1])
        stored = scale.reciprocal() if linear == "bitlinear" else scale
        packed = codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6
        return dict(weight=packed, weight_scale=stored.reshape(1)), signs * (stored.reciprocal() if linear == "bitlinear" else stored)

    return dict(quant_method="bitnet", linear_class=linear, quantization_mode=mode), pack


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
FP4 = torch.cat([FP4, -FP4])


def fp4_codes(rows, scale):
    """The nearest e2m1 codes of rows [.., n] with one scale each, and their values."""
    codes = (rows / scale[..., None]).unsqueeze(-1).sub(FP4).abs().argmin(-1)
    return codes, FP4[codes] * scale[..., None]


def pairs(codes):
    """Two codes to a byte, low bits first."""
    return (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)


def nvfp4(divides):
    def pack(weight):
        rows = weight.reshape(weight.shape[0], -1, 16)
        largest = rows.abs().amax(-1)
        factor = largest.max() / (6 * 448)
        stored = (largest / 6 / factor).to(torch.float8_e4m3fn)
        # Kept as it is stored, so that values are computed from the same number.
        factor = (1 / factor).reshape(1) if divides else factor
        scale = stored.float() / factor if divides else stored.float() * factor
        codes, values = fp4_codes(rows, scale)
        codes = pairs(codes.reshape(weight.shape))
        names = ("weight_packed", "weight_global_scale") if divides else ("weight", "weight_scale_2")
        return {names[0]: codes, "weight_scale": stored, names[1]: factor, "input_scale": torch.ones(1)}, values.reshape(weight.shape)

    config = compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16)
    return config if divides else dict(quant_method="modelopt", quant_algo="NVFP4", ignore=["lm_head"]), pack


def packed_mxfp4(weight):
    rows = weight.reshape(weight.shape[0], -1, 32)
    exponent = (rows.abs().amax(-1) / 6).log2().ceil()
    codes, values = fp4_codes(rows, 2**exponent)
    return dict(weight_packed=pairs(codes.reshape(weight.shape)), weight_scale=(exponent + 127).to(torch.uint8)), values.reshape(weight.shape)


def four_bits(kind, nested):
    def pack(weight):
        from bitsandbytes.functional import quantize_4bit

        codes, state = quantize_4bit(weight, blocksize=64, compress_statistics=nested, quant_type=kind)
        parts = state.as_dict(packed=True)
        described = json.loads(bytes(parts[f"quant_state.bitsandbytes__{kind}"].tolist()))
        scale = parts["absmax"]
        if nested:
            scale = parts["nested_quant_map"][scale.long()] * parts["nested_absmax"].repeat_interleave(256)[: len(scale)] + described["nested_offset"]
        codes = codes.reshape(-1)
        each = parts["quant_map"][torch.stack([codes >> 4, codes & 15], -1).reshape(-1).long()]
        values = (each * scale.repeat_interleave(64)[: len(each)]).reshape(weight.shape)
        return {"weight": codes[:, None]} | {f"weight.{name}": part for name, part in parts.items()}, values

    return dict(quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type=kind, bnb_4bit_use_double_quant=nested), pack


def eight_bits(weight):
    largest = weight.abs().amax(1)
    codes = (weight * 127 / largest[:, None]).round().to(torch.int8)
    return dict(weight=codes, SCB=largest, weight_format=torch.zeros(1, dtype=torch.uint8)), codes * (largest / 127)[:, None]


def exponents(block):
    """8-bit floats with powers of two as scales."""
    config, pack = small_floats(FP8 | dict(weight_block_size=[block, block], scale_fmt="ue8m0"), "weight_scale_inv", block, block)

    def pack_powers(weight):
        parts, _ = pack(weight)
        scale = 2 ** parts["weight_scale_inv"].log2().ceil()
        wide = scale.repeat_interleave(block, 0)[: weight.shape[0]].repeat_interleave(block, 1)[:, : weight.shape[1]]
        stored = (weight / wide).to(torch.float8_e4m3fn)
        return dict(weight=stored, weight_scale_inv=scale.to(torch.float8_e8m0fnu)), stored.float() * wide

    return config, pack_powers


def varied():
    """GPTQ with 8 bits for some modules and 4 for the others, as GPTQModel's `dynamic` allows."""
    (config, four), (_, eight) = gptq(4, 32), gptq(8, 16)
    config |= dict(dynamic={"+:.*down_proj": dict(bits=8, group_size=16), "-:.*lm_head": {}})
    return config, lambda weight: eight(weight) if weight.shape[1] == SIZES["intermediate_size"] else four(weight)


def of_autoround(form, settings):
    config, pack = settings
    config = {key: config[key] for key in ("bits", "group_size")}
    return config | dict(quant_method="auto-round", packing_format=f"auto_round:{form}", sym=True), pack


def bundle(bits, group):
    def pack(weight):
        codes, scale, zero, values = grouped(weight, group, bits, False)
        # Scales in bf16, as torchao has them, of which f16 may have more digits.
        scale, zeros = scale.bfloat16(), zero.repeat_interleave(group, 1)
        values = (codes - zeros) * scale.float().repeat_interleave(group, 1)
        if bits == 4:
            data = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
            return dict(qdata=data, scale=scale.T, zero_point=zero.T.bfloat16()), values
        return dict(qdata=(codes - 128).to(torch.int8), scale=scale, zero_point=(zero - 128).to(torch.int8)), values

    return None, pack


def torchao(form):
    """Folders that transformers writes of torchao's tensors: their parts under names of a module."""
    def pack(weight):
        if form == "int4":
            return bundle(4, 32)[1](weight)
        if form == "float8":
            parts, values = small_floats(None, "scale", 1, 0)[1](weight)
            return dict(qdata=parts["weight"], scale=parts["scale"].reshape(-1, 1)), values
        codes, scale, zero, values = grouped(weight, weight.shape[1], 8, True)
        return dict(qdata=(codes - zero).to(torch.int8), scale=scale.float()), values

    return dict(quant_method="torchao", quant_type=form), pack


def mxfp4():
    def pack(columns):
        weight = columns.transpose(1, 2)
        rows = weight.reshape(*weight.shape[:-1], -1, 32)
        exponent = (rows.abs().amax(-1) / 6).log2().ceil()
        codes, values = fp4_codes(rows, 2**exponent)
        return dict(blocks=pairs(codes), scales=(exponent + 127).to(torch.uint8)), values.reshape(weight.shape).transpose(1, 2)

    return dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn"]), pack


FP8 = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic")
CASES = [
    ("fp8-blocks", LLAMA, small_floats(FP8 | dict(weight_block_size=[32, 40]), "weight_scale_inv", 32, 40)),
    ("fp8-experts", MOE, small_floats(FP8 | dict(weight_block_size=[16, 32]), "weight_scale_inv", 16, 32)),
    ("fp8-whole", LLAMA, small_floats(FP8, "weight_scale", 0, 0)),
    ("gptq-4", LLAMA, gptq(4, 32)),
    ("gptq-4-order", LLAMA, gptq(4, 16, order=True)),
    ("gptq-4-uneven", LLAMA, gptq(4, 16, symmetric=False)),
    ("gptq-3-second", LLAMA, gptq(3, 32, symmetric=False, stored_less=0)),
    ("gptq-8-experts", MOE, gptq(8, 32)),
    ("awq", LLAMA, awq(32)),
    ("awq-experts", MOE, awq(16)),
    ("packed-4", LLAMA, packed(4, 32, True)),
    ("packed-4-uneven", LLAMA, packed(4, 16, False)),
    ("packed-8-experts", MOE, packed(8, 16, True)),
    ("bytes", LLAMA, signed_bytes()),
    ("small-floats", LLAMA, small_floats(compressed("float-quantized", num_bits=8, type="float", strategy="channel"), "weight_scale", 1, 0)),
    ("mxfp4", GPT_OSS, mxfp4()),
    ("nvfp4", LLAMA, nvfp4(True)),
    ("nvfp4-modelopt", MOE, nvfp4(False)),
    ("packed-mxfp4", LLAMA, (compressed("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32), packed_mxfp4)),
    ("fp8-modelopt", LLAMA, small_floats(dict(quant_method="modelopt", quant_algo="FP8"), "weight_scale", 0, 0)),
    ("fp8-fbgemm", LLAMA, small_floats(dict(quant_method="fbgemm_fp8"), "weight_scale", 1, 0)),
    ("fp8-exponents", LLAMA, exponents(32)),
    ("nf4", LLAMA, four_bits("nf4", False)),
    ("nf4-nested", MOE, four_bits("nf4", True)),
    ("fp4-nested", LLAMA, four_bits("fp4", True)),
    ("eight-bits", LLAMA, (dict(quant_method="bitsandbytes", load_in_8bit=True), eight_bits)),
    ("gptq-varied", LLAMA, varied()),
    ("autoround-gptq", LLAMA, of_autoround("auto_gptq", gptq(4, 32, symmetric=False))),
    ("autoround-awq", LLAMA, of_autoround("auto_awq", awq(32))),
    ("bitnet", BITNET, bitnet("autobitlinear", "offline")),
    ("bitnet-divisor", LLAMA, bitnet("bitlinear", "offline")),
    ("bitnet-online", BITNET, bitnet("autobitlinear", "online")),
    ("bundle-4", LLAMA, bundle(4, 16)),
    ("bundle-8", LLAMA, bundle(8, 32)),
    ("torchao-float8", LLAMA, torchao("float8")),
    ("torchao-int4", LLAMA, torchao("int4")),
    ("torchao-int8", LLAMA, torchao("int8")),
]


@torch.no_grad()
def write(folder, family, sizes, config, pack):
    base = checkpoint_cases.BASE | sizes
    model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**base)).eval()
    checkpoint_cases.randomize(model, False)
    checkpoint = folder / "checkpoint"
    model.save_pretrained(checkpoint)
    file = checkpoint / "model.safetensors"
    plain, stored = load_file(file), {}
    method = config["quant_method"] if config else "bundle"
    joint = "._weight_" if method in ("bundle", "torchao") else "."
    for name, weight in list(plain.items()):
        module = name.removesuffix(".weight")
        if method == "mxfp4" and name.endswith("_proj") and weight.dim() == 3:
            parts, plain[name] = pack(weight)
            stored |= {f"{name}_{part}": tensor.contiguous() for part, tensor in parts.items()}
        elif method != "mxfp4" and module.endswith("_proj"):
            parts, plain[name] = pack(weight)
            stored |= {f"{module}{joint}{part}": tensor.contiguous() for part, tensor in parts.items()}
        else:
            stored[name] = weight
    with tempfile.TemporaryDirectory() as dequantized:
        plain = {name: tensor.contiguous() for name, tensor in plain.items()}
        save_file(plain, pathlib.Path(dequantized) / "model.safetensors", dict(format="pt"))
        written = (checkpoint / "config.json").read_text()
        (pathlib.Path(dequantized) / "config.json").write_text(written)
        model = transformers.AutoModelForCausalLM.from_pretrained(dequantized, attn_implementation="eager").eval()
    written = json.loads(written)
    if config:
        written["quantization_config"] = config
    else:
        stored = {name.removeprefix("model."): tensor for name, tensor in stored.items()}
    save_file(stored, file, dict(format="pt"))
    (checkpoint / "config.json").write_text(json.dumps(written, indent=1))
    checkpoint_cases.write_expected(folder, model, written["model_type"])


def main():
    args = checkpoint_cases.arguments(__doc__)
    for name, (family, sizes), (config, pack) in CASES:
        if name.startswith(args.only):
            write(args.out / name, family, sizes, config, pack)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
