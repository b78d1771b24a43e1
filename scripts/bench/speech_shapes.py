#!/usr/bin/env python3
"""Speed of large models of speech on the machine's GPU: `flambeau bench --engine mlx` beside mlx-whisper.

    speech_shapes.py make FOLDER [--shape whisper-large-v3-turbo] [--tiny]
    speech_shapes.py measure FOLDER [--tokens 100]

`make` writes a Hugging Face folder in the shape of Whisper large-v3-turbo, Whisper small or Parakeet TDT 0.6B with random bf16 weights,
without a tokenizer (1.6, 0.5 and 1.2 GB). Needs numpy. `--tiny` writes one of few narrow layers instead. `measure` runs mlx-whisper's own
model of a Whisper's shape, in f16 as it does by default, and prints as JSON the milliseconds of a window of 30 seconds through the encoder, of a
token through the decoder, and of a window with as many tokens. Needs mlx with a GPU backend and mlx-whisper.
"""

import argparse
import importlib.util
import json
import pathlib
import statistics
import struct
import sys
import time
import types

WHISPER = dict(
    d_model=1280, encoder_layers=32, decoder_layers=4, encoder_attention_heads=20, decoder_attention_heads=20, encoder_ffn_dim=5120,
    decoder_ffn_dim=5120, num_mel_bins=128, vocab_size=51866)
SMALL = dict(
    d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12, decoder_attention_heads=12, encoder_ffn_dim=3072,
    decoder_ffn_dim=3072, num_mel_bins=80, vocab_size=51865)
PARAKEET = dict(
    hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=8, num_key_value_heads=8,
    subsampling_conv_channels=256, num_mel_bins=128, decoder_hidden_size=640, vocab_size=8193)
TINY_WHISPER = dict(
    d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=128,
    decoder_ffn_dim=128)
TINY_PARAKEET = dict(
    hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, subsampling_conv_channels=16,
    decoder_hidden_size=32)
SHAPES = {
    "whisper-large-v3-turbo": (WHISPER, TINY_WHISPER),
    "whisper-small": (SMALL, TINY_WHISPER),
    "parakeet-tdt-0.6b": (PARAKEET, TINY_PARAKEET),
}
FRAMES, POSITIONS, LSTM_LAYERS, TAPS, DURATIONS = 3000, (1500, 448), 2, 9, [0, 1, 2, 3, 4]


def linear(name: str, rows: int, columns: int, bias: bool = True):
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)


def norm(name: str, width: int):
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def whisper_tensors(c: dict):
    width = c["d_model"]
    yield "model.decoder.embed_tokens.weight", (c["vocab_size"], width)
    for i, channels in ((1, c["num_mel_bins"]), (2, width)):
        yield f"model.encoder.conv{i}.weight", (width, channels, 3)
        yield f"model.encoder.conv{i}.bias", (width,)
    for side, positions in zip(("encoder", "decoder"), POSITIONS):
        yield f"model.{side}.embed_positions.weight", (positions, width)
        yield from norm(f"model.{side}.layer_norm", width)
        inner = c[f"{side}_ffn_dim"]
        for layer in range(c[f"{side}_layers"]):
            at = f"model.{side}.layers.{layer}"
            for attention in ["self_attn"] + ["encoder_attn"] * (side == "decoder"):
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    yield from linear(f"{at}.{attention}.{part}", width, width, part != "k_proj")
                yield from norm(f"{at}.{attention}_layer_norm", width)
            yield from linear(f"{at}.fc1", inner, width)
            yield from linear(f"{at}.fc2", width, inner)
            yield from norm(f"{at}.final_layer_norm", width)


def parakeet_tensors(c: dict):
    e = c["encoder_config"]
    width, inner, channels, own = e["hidden_size"], e["intermediate_size"], e["subsampling_conv_channels"], c["decoder_hidden_size"]
    for i, shape in ((0, (1, 3, 3)), (2, (1, 3, 3)), (3, (channels, 1, 1)), (5, (1, 3, 3)), (6, (channels, 1, 1))):
        yield f"encoder.subsampling.layers.{i}.weight", (channels, *shape)
        yield f"encoder.subsampling.layers.{i}.bias", (channels,)
    yield from linear("encoder.subsampling.linear", width, channels * e["num_mel_bins"] // 8)
    for layer in range(e["num_hidden_layers"]):
        at = f"encoder.layers.{layer}"
        for half in ("feed_forward1", "feed_forward2"):
            yield from linear(f"{at}.{half}.linear1", inner, width, False)
            yield from linear(f"{at}.{half}.linear2", width, inner, False)
        for name in ("norm_conv", "norm_feed_forward1", "norm_feed_forward2", "norm_out", "norm_self_att", "conv.norm"):
            yield from norm(f"{at}.{name}", width)
        yield f"{at}.conv.norm.running_mean", (width,)
        yield f"{at}.conv.norm.running_var", (width,)
        yield f"{at}.conv.depthwise_conv.weight", (width, 1, TAPS)
        yield f"{at}.conv.pointwise_conv1.weight", (2 * width, width, 1)
        yield f"{at}.conv.pointwise_conv2.weight", (width, width, 1)
        for part in ("q_proj", "k_proj", "v_proj", "o_proj", "relative_k_proj"):
            yield from linear(f"{at}.self_attn.{part}", width, width, False)
        heads = e["num_attention_heads"]
        yield f"{at}.self_attn.bias_u", (heads, width // heads)
        yield f"{at}.self_attn.bias_v", (heads, width // heads)
    yield "decoder.embedding.weight", (c["vocab_size"], own)
    for layer in range(LSTM_LAYERS):
        for side in ("ih", "hh"):
            yield f"decoder.lstm.weight_{side}_l{layer}", (4 * own, own)
            yield f"decoder.lstm.bias_{side}_l{layer}", (4 * own,)
    yield from linear("decoder.decoder_projector", own, own)
    yield from linear("encoder_projector", own, width)
    yield from linear("joint.head", c["vocab_size"] + len(DURATIONS), own)


def whisper_files(sizes: dict) -> dict:
    generation = dict(
        decoder_start_token_id=50258, eos_token_id=50257, no_timestamps_token_id=50364, prev_sot_token_id=50362, is_multilingual=True,
        lang_to_id={"<|en|>": 50259}, task_to_id=dict(translate=50359, transcribe=50360), suppress_tokens=[],
        begin_suppress_tokens=[220, 50257])
    config = dict(
        sizes, model_type="whisper", activation_function="gelu", max_source_positions=POSITIONS[0], max_target_positions=POSITIONS[1],
        tie_word_embeddings=True, scale_embedding=False, dtype="bfloat16")
    return {"config.json": config, "generation_config.json": generation}


def parakeet_files(sizes: dict) -> dict:
    own = ("decoder_hidden_size", "vocab_size")
    encoder = dict(
        {key: value for key, value in sizes.items() if key not in own}, model_type="parakeet_encoder", hidden_act="silu",
        attention_bias=False, convolution_bias=False, scale_input=False, conv_kernel_size=TAPS, max_position_embeddings=5000,
        subsampling_factor=8, subsampling_conv_kernel_size=3, subsampling_conv_stride=2)
    config = dict(
        {key: sizes[key] for key in own}, model_type="parakeet_tdt", encoder_config=encoder, hidden_act="relu", durations=DURATIONS,
        blank_token_id=sizes["vocab_size"] - 1, max_symbols_per_step=10, num_decoder_layers=LSTM_LAYERS, dtype="bfloat16")
    features = dict(
        feature_extractor_type="ParakeetFeatureExtractor", feature_size=encoder["num_mel_bins"], hop_length=160, n_fft=512, win_length=400,
        preemphasis=0.97, sampling_rate=16000)
    return {"config.json": config, "preprocessor_config.json": features}


def make(folder: pathlib.Path, sizes: dict) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    files, tensors = (whisper_files, whisper_tensors) if "d_model" in sizes else (parakeet_files, parakeet_tensors)
    files = files(sizes)
    folder.mkdir(parents=True, exist_ok=True)
    for name, contents in files.items():
        (folder / name).write_text(json.dumps(contents, indent=1))
    tensors, header, at = list(tensors(files["config.json"])), {}, 0
    for name, shape in tensors:
        size = 2 * int(np.prod(shape))
        header[name] = dict(dtype="BF16", shape=list(shape), data_offsets=[at, at + size])
        at += size
    # Drawing as many numbers would take minutes: pieces of one pool, scaled by the width of each matrix.
    pool = rng.standard_normal(1 << 22, dtype=np.float32)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb", buffering=1 << 22) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors:
            count = int(np.prod(shape))
            values = np.resize(np.roll(pool, int(rng.integers(len(pool)))), count)
            if name.endswith("running_var") or (len(shape) == 1 and name.endswith("weight")):
                values = np.ones(count, np.float32)
            elif len(shape) > 1:
                values = values * float(np.prod(shape[1:])) ** -0.5
            else:
                values = values * 0.02
            file.write(((np.ascontiguousarray(values, np.float32).view(np.uint32) + 0x8000) >> 16).astype(np.uint16).tobytes())


def measure(folder: pathlib.Path, tokens: int) -> dict:
    import mlx.core as mx
    from mlx.utils import tree_map

    # The model alone: what else the package imports needs half a dozen packages, and nothing here calls it.
    package, tokens_of = types.ModuleType("mlx_whisper"), types.ModuleType("tiktoken")
    package.__path__ = importlib.util.find_spec("mlx_whisper").submodule_search_locations
    tokens_of.Encoding = object
    sys.modules.update(mlx_whisper=package, tiktoken=tokens_of)
    from mlx_whisper.whisper import ModelDimensions, Whisper

    c = json.loads((folder / "config.json").read_text())
    model = Whisper(
        ModelDimensions(
            n_mels=c["num_mel_bins"], n_audio_ctx=POSITIONS[0], n_audio_state=c["d_model"], n_audio_head=c["encoder_attention_heads"],
            n_audio_layer=c["encoder_layers"], n_vocab=c["vocab_size"], n_text_ctx=POSITIONS[1], n_text_state=c["d_model"],
            n_text_head=c["decoder_attention_heads"], n_text_layer=c["decoder_layers"]),
        mx.float16)
    model.update(tree_map(lambda array: mx.random.normal(array.shape).astype(array.dtype) * 0.02, model.parameters()))
    mx.eval(model.parameters())
    mel = mx.random.normal((1, FRAMES, c["num_mel_bins"])).astype(mx.float16)

    def window():
        begin = time.perf_counter()
        heard = model.encoder(mel)
        mx.eval(heard)
        encoded, cache = time.perf_counter(), None
        token = mx.array([[50258]])
        for _ in range(tokens):
            logits, cache, _ = model.decoder(token, heard, kv_cache=cache)
            token = mx.argmax(logits[:, -1:], axis=-1)
            # As its own decoding does, which looks at every token before it goes on.
            mx.eval(token, cache)
        return encoded - begin, (time.perf_counter() - encoded) / tokens

    window()
    times = [window() for _ in range(5)]
    encoder, token = (1000 * statistics.median(column) for column in zip(*times))
    return {"encoder ms": round(encoder, 2), "token ms": round(token, 3), f"window of {tokens} ms": round(encoder + tokens * token, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["make", "measure"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--shape", choices=SHAPES, default="whisper-large-v3-turbo")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--tokens", type=int, default=100)
    args = parser.parse_args()
    if args.command == "make":
        sizes, tiny = SHAPES[args.shape]
        make(args.folder, dict(sizes, **tiny) if args.tiny else sizes)
    else:
        print(json.dumps(measure(args.folder, args.tokens)))


if __name__ == "__main__":
    main()
