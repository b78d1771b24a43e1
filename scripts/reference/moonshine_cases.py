#!/usr/bin/env python3
"""Writes a tiny random Moonshine as a case folder, with transformers' hidden states, logits and greedy text.

    moonshine_cases.py OUT

`flambeau conformance OUT --from checkpoint` runs it. Needs torch and transformers.
"""
import json

import torch
import transformers

from checkpoint_cases import write_tensor
from speech_cases import main, pieces, sound, write_pieces, write_sound

VOCAB, NEW, START, END = 32, 10, 1, 2


def randomize(model, seed):
    """Weights under which every part of a model matters."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if tensor.dim() == 1:
            noise = noise * 0.1 + ("norm" in name and "bias" not in name)
        else:
            noise = noise * (0.4 if "embed" in name else 1.8 / (tensor[0].numel() ** 0.5))
        tensor.copy_(noise.half())
    model.tie_weights()


def greedy(model, samples):
    """Tokens after the first one, the logits of each, and the least distance between a choice and the next best."""
    heard, text, rows = model.model.encoder(samples), [START], []
    while len(text) <= NEW and text[-1] != END:
        rows.append(model(encoder_outputs=heard, decoder_input_ids=torch.tensor([text])).logits[0, -1])
        text.append(int(rows[-1].argmax()))
    best = torch.stack(rows).topk(2).values
    return text[1:], torch.stack(rows), float((best[:, 0] - best[:, 1]).min()), heard.last_hidden_state


def write(out):
    checkpoint = out / "checkpoint"
    checkpoint.mkdir(parents=True, exist_ok=True)
    config = transformers.MoonshineConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, encoder_num_hidden_layers=1, decoder_num_hidden_layers=2, encoder_num_attention_heads=2,
        decoder_num_attention_heads=2, max_position_embeddings=16, rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.75),
        pad_token_id=0, bos_token_id=START, eos_token_id=END, decoder_start_token_id=START)
    model = transformers.MoonshineForConditionalGeneration(config).eval()
    model.generation_config = transformers.GenerationConfig(bos_token_id=START, eos_token_id=END, decoder_start_token_id=START, pad_token_id=0)
    samples = torch.tensor(write_sound(out, sound()))[None]
    for seed in range(1000):
        randomize(model, seed)
        text, rows, gap, hidden = greedy(model, samples)
        if gap > 0.02 and len(set(text)) > 4 and text[-1] == END:
            break
    model.save_pretrained(checkpoint)
    transformers.Wav2Vec2FeatureExtractor(feature_size=1, sampling_rate=16000, do_normalize=False).save_pretrained(checkpoint)
    write_pieces(checkpoint, pieces(VOCAB))
    case = dict(kind="speech", family="moonshine", rtol=1e-4, atol=1e-4, prompt=[START], tokens=text, min_gap=round(gap, 5))
    (out / "case.json").write_text(json.dumps(case) + "\n")
    write_tensor(out / "encoder.bin", hidden)
    write_tensor(out / "logits.bin", rows)
    print(out.name, "seed", seed, "smallest gap", case["min_gap"], "text", text)


def write_all(out):
    write(out / "speech-moonshine")


if __name__ == "__main__":
    main(__doc__, write_all)
