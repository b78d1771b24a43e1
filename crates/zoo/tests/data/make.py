"""Writes the fixtures beside it. Needs the packages gguf and numpy.

blocks.gguf: for each block format one row of 256 elements out of random bytes, and NAME.values, what the gguf package makes of it.
tiny.gguf: a Llama of 2 layers, 64 wide. Row r of q and k of layer 0 is r everywhere before rows are interleaved.
"""

from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

HERE = Path(__file__).parent
T = gguf.GGMLQuantizationType
# Byte offsets of the half-precision fields of a block.
HALVES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
    T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}  # fmt: skip
# Formats that came later have numbers of their own, so that those of the others stay.
LATER = {T.IQ4_NL: [0], T.IQ4_XS: [0], T.MXFP4: []}
LATEST = {T.TQ1_0: [52], T.TQ2_0: [64], T.NVFP4: [], T.Q1_0: [0], T.Q2_0: [0]}
rng, later, latest = (np.random.default_rng(seed) for seed in (7, 8, 9))


def values(raw, kind, elements):
    """Values of blocks. The package does not decode bits and pairs of bits behind a scale."""
    if kind not in (T.Q1_0, T.Q2_0):
        return dequantize(raw.reshape(1, -1), kind).astype(np.float32)
    scale, width = raw[:, :2].view("<f2").astype(np.float32), 1 if kind == T.Q1_0 else 2
    codes = np.unpackbits(raw[:, 2:], axis=1, bitorder="little").reshape(len(raw), elements, width) @ (1 << np.arange(width))
    steps = 2.0 * codes - 1 if kind == T.Q1_0 else codes - 1.0
    return (scale * steps.astype(np.float32)).reshape(1, -1)


def blocks():
    w = gguf.GGUFWriter(HERE / "blocks.gguf", "none")
    for kind, halves in (HALVES | LATER | LATEST).items():
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        numbers = later if kind in LATER else latest if kind in LATEST else rng
        raw = numbers.integers(0, 256, (256 // elements, size), dtype=np.uint8)
        for at in halves:
            raw[:, at : at + 2] = numbers.normal(0, 0.1, len(raw)).astype("<f2").view(np.uint8).reshape(-1, 2)
        if kind == T.MXFP4:
            raw[:, 0] = numbers.integers(110, 130, len(raw))
        if kind == T.NVFP4:
            raw[:, :4] &= 127
            raw[0, 0] = 127
        w.add_tensor(kind.name, raw.reshape(1, -1), raw_dtype=kind)
        w.add_tensor(f"{kind.name}.values", values(raw, kind, elements))
    write(w)


def interleave(x, heads):
    rows = x.shape[0]
    return x.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(x.shape)


def tiny():
    w = gguf.GGUFWriter(HERE / "tiny.gguf", "llama")
    hidden, ffn, heads, kv, vocab = 64, 32, 4, 2, 32
    w.add_block_count(2)
    w.add_context_length(128)
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(ffn)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    w.add_rope_dimension_count(hidden // heads)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list([f"t{i}" for i in range(vocab)])
    w.add_token_types([3, 3] + [1] * (vocab - 2))
    w.add_token_merges(["t 1", "t 2"])
    w.add_bos_token_id(0)
    w.add_eos_token_id(1)
    w.add_add_bos_token(False)
    w.add_chat_template("{{ messages }}")

    def add(name, x, kind):
        raw = quantize(x.astype(np.float32), kind)
        w.add_tensor(name, raw, raw_dtype=kind)

    def matrix(rows, cols):
        return rng.normal(0, 0.1, (rows, cols))

    add("token_embd.weight", matrix(vocab, hidden), T.Q8_0)
    w.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    ramp = lambda rows: np.repeat(np.arange(rows)[:, None], hidden, 1)
    for i, kinds in enumerate([(T.F16, T.Q8_0, T.Q4_1, T.Q5_0), (T.Q4_0, T.Q5_1, T.BF16, T.Q4_0)]):
        p = f"blk.{i}."
        rows = (hidden, kv * hidden // heads)
        q, k = (interleave(ramp(r) if i == 0 else matrix(r, hidden), n) for r, n in zip(rows, (heads, kv)))
        add(p + "attn_q.weight", q, kinds[0])
        add(p + "attn_k.weight", k, kinds[1])
        add(p + "attn_v.weight", matrix(rows[1], hidden), kinds[2])
        add(p + "attn_output.weight", matrix(hidden, hidden), kinds[3])
        add(p + "ffn_gate.weight", matrix(ffn, hidden), T.Q4_0)
        add(p + "ffn_up.weight", matrix(ffn, hidden), T.Q4_1)
        add(p + "ffn_down.weight", matrix(hidden, ffn), T.Q8_0)
        w.add_tensor(p + "attn_norm.weight", np.ones(hidden, np.float32))
        w.add_tensor(p + "ffn_norm.weight", np.ones(hidden, np.float32))
    write(w)


def write(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


blocks()
tiny()
