#!/usr/bin/env python3
"""Writes a tiny random Voxtral and a Voxtral Realtime as case folders, with transformers' features, embeddings of audio, logits and greedy tokens.

    voxtral_cases.py OUT

`flambeau conformance OUT --from checkpoint` runs them. Needs torch and transformers.
"""
import base64
import json

import numpy
import torch
import transformers

from checkpoint_cases import write_tensor
from speech_cases import RATE, main, sound, write_sound

MELS, WIDTH, HEADS, NEW, SPECIALS = 16, 16, 2, 10, 40
NAMES = {0: "<unk>", 1: "<s>", 2: "</s>", 3: "[INST]", 4: "[/INST]", 11: "<pad>", 24: "[AUDIO]", 25: "[BEGIN_AUDIO]", 32: "[STREAMING_PAD]",
         33: "[STREAMING_WORD]", 34: "[TRANSCRIBE]"}
IDS = {name: i for i, name in NAMES.items()}
DELAY, LEFT_PAD, STEP = 2, 4, 1280
RIGHT_PAD = DELAY + 11
GAINS = {"embed_tokens": 0.6, "lm_head": 3.0, "q_proj": 2.0, "k_proj": 2.0, "linear_2": 3.0, "ada_rms": 1.0}


def write_tokenizer(folder, audio):
    """A tekken.json of single bytes. Ids of special tokens come first."""
    vocab = [dict(rank=i, token_bytes=base64.b64encode(bytes([i])).decode(), token_str=chr(i) if i < 128 else None) for i in range(256)]
    special = [dict(rank=i, token_str=NAMES.get(i, f"<SPECIAL_{i}>"), is_control=True) for i in range(SPECIALS)]
    config = dict(pattern=r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]+|\s+", num_vocab_tokens=256, default_vocab_size=256 + SPECIALS,
                  default_num_special_tokens=SPECIALS, version="v13")
    (folder / "tekken.json").write_text(json.dumps(dict(config=config, vocab=vocab, special_tokens=special, audio=audio)))


def randomize(model, seed):
    """Weights under which every part of a model matters, and greedy tokens vary."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        gain = next((gain for part, gain in GAINS.items() if part in name), 1.5)
        if tensor.dim() == 1:
            noise = noise * 0.2 + ("norm" in name and name.endswith("weight"))
        elif "embed" not in name:
            noise = noise * gain / tensor[0].numel() ** 0.5
        else:
            noise = noise * GAINS["embed_tokens"]
        tensor.copy_(noise.bfloat16())


def text_sizes(**more):
    return dict(vocab_size=256 + SPECIALS, hidden_size=WIDTH, intermediate_size=24, num_hidden_layers=2, num_attention_heads=HEADS, num_key_value_heads=1,
                head_dim=8, bos_token_id=1, eos_token_id=2, **more)


def voxtral():
    config = transformers.VoxtralConfig(
        audio_config=dict(num_mel_bins=MELS, hidden_size=WIDTH, intermediate_size=5 * WIDTH, num_hidden_layers=2, num_attention_heads=HEADS,
                          max_source_positions=50),
        text_config=text_sizes(model_type="llama", max_position_embeddings=256, rms_norm_eps=1e-5,
                               rope_parameters=dict(rope_type="default", rope_theta=1e6)),
        audio_token_id=IDS["[AUDIO]"], projector_hidden_act="gelu")
    return transformers.VoxtralForConditionalGeneration(config).eval(), transformers.WhisperFeatureExtractor(feature_size=MELS, chunk_length=1)


def realtime():
    rope = dict(rope_parameters=dict(rope_type="default", rope_theta=1e4), max_position_embeddings=256)
    config = transformers.VoxtralRealtimeConfig(
        audio_config=dict(num_mel_bins=MELS, hidden_size=WIDTH, intermediate_size=24, num_hidden_layers=2, num_attention_heads=HEADS, head_dim=8,
                          sliding_window=10, **rope),
        text_config=text_sizes(sliding_window=6, pad_token_id=11, rms_norm_eps=1e-5, tie_word_embeddings=True, **rope),
        default_num_delay_tokens=DELAY, attn_implementation="eager")
    return transformers.VoxtralRealtimeForConditionalGeneration(config).eval(), transformers.VoxtralRealtimeFeatureExtractor(feature_size=MELS)


def rows_of(model, features):
    """What the encoder gives for the language model [t, hidden]."""
    made = model.get_audio_features(features)
    made = getattr(made, "pooler_output", made)
    return made.reshape(-1, made.shape[-1])


def by_prompt(model, features):
    """Greedy tokens behind a prompt that holds the recording, and the logits of each."""
    text = [SPECIALS + byte for byte in b"lang:en"]
    head, tail = [IDS[name] for name in ("<s>", "[INST]", "[BEGIN_AUDIO]")], [IDS["[/INST]"], *text, IDS["[TRANSCRIBE]"]]
    heard = rows_of(model, features)
    ids, rows = head + [IDS["[AUDIO]"]] * len(heard) + tail, []
    for _ in range(NEW):
        rows.append(model(input_ids=torch.tensor([ids]), input_features=features, use_cache=False).logits[0, -1])
        ids.append(int(rows[-1].argmax()))
    case = dict(family="voxtral", language="en", prompt_head=head, prompt_audio_tokens=len(heard), prompt_tail=tail, tokens=ids[-NEW:])
    return case, heard, torch.stack(rows)


def by_stream(model, features):
    """Greedy tokens, one for every embedding behind those of the prompt, and the logits of each."""
    heard = rows_of(model, features)
    prompt = [IDS["<s>"]] + [IDS["[STREAMING_PAD]"]] * (LEFT_PAD + DELAY)
    ids, rows = list(prompt), []
    while len(ids) < len(heard):
        whole = features[..., :len(ids) * 8]
        rows.append(model(input_ids=torch.tensor([ids]), input_features=whole, num_delay_tokens=DELAY, use_cache=False).logits[0, -1])
        ids.append(int(rows[-1].argmax()))
    tokens = ids[len(prompt):]
    case = dict(family="voxtral-realtime", prompt=prompt, num_delay_tokens=DELAY, left_pad_tokens=LEFT_PAD, right_pad_tokens=RIGHT_PAD, tokens=tokens)
    return case, heard, torch.stack(rows)


def varied(model, features, decode):
    """Weights whose tokens vary and are no near thing."""
    for seed in range(2000):
        randomize(model, seed)
        if decode is by_stream:  # Its head reads the embedding.
            model.tie_weights()
        case, heard, rows = decode(model, features)
        best = rows.topk(2).values
        least = float((best[:, 0] - best[:, 1]).min())
        if least > 0.02 and len(set(case["tokens"])) > 4 and IDS["</s>"] not in case["tokens"]:
            return case | dict(min_gap=round(least, 5)), heard, rows
    raise SystemExit("no weights")


def write(out, model, extractor, decode, pad, audio):
    checkpoint = out / "checkpoint"
    checkpoint.mkdir(parents=True, exist_ok=True)
    features = extractor(pad(write_sound(out, sound())), sampling_rate=RATE, return_tensors="pt").input_features
    case, heard, rows = varied(model, features, decode)
    model.bfloat16().save_pretrained(checkpoint)
    extractor.save_pretrained(checkpoint)
    write_tokenizer(checkpoint, audio)
    (out / "case.json").write_text(json.dumps(dict(kind="speech", rtol=1e-4, atol=1e-3, **case)) + "\n")
    for name, tensor in (("features", features), ("encoder", heard), ("logits", rows)):
        write_tensor(out / f"{name}.bin", tensor)
    print(out.name, "smallest gap", case["min_gap"], case["tokens"])


def streamed(samples):
    """A recording between the silence that Voxtral Realtime hears around it."""
    missing = -len(samples) % STEP
    return numpy.concatenate([numpy.zeros(LEFT_PAD * STEP, "f4"), samples, numpy.zeros(missing + RIGHT_PAD * STEP, "f4")])


def write_all(out):
    write(out / "speech-voxtral", *voxtral(), by_prompt, lambda samples: samples, {})
    write(out / "speech-voxtral-realtime", *realtime(), by_stream, streamed, dict(streaming_n_left_pad_tokens=LEFT_PAD))


if __name__ == "__main__":
    main(__doc__, write_all)
