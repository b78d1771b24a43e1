#!/usr/bin/env python3
"""Writes tiny random Parakeets as case folders, one of them also as NeMo publishes it, with transformers' features, hidden states, logits and greedy tokens.

    parakeet_cases.py OUT

`flambeau conformance OUT --from checkpoint` runs them. Needs torch and transformers.
"""
import json

import torch
import transformers

import nemo
from checkpoint_cases import write_tensor
from speech_cases import RATE, main, pieces, sound, write_pieces, write_sound

VOCAB, MELS, WIDTH, DURATIONS, MOST_SYMBOLS = 32, 16, 16, [0, 1, 2, 4], 3
BLANK = VOCAB - 1
KINDS_OF_DURATIONS = dict(ctc=1, nemo=2, rnnt=0, tdt=2)


def randomize(model, generator):
    """Weights under which every part of a model matters, and greedy tokens vary."""
    gains = {"lstm.weight": 3.0, "joint.head": 4.0, "projector": 2.5, "ctc_head": 3.0, "subsampling": 1.6, "bias_u": 2.0, "bias_v": 2.0}
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point():
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        gain = next((gain for part, gain in gains.items() if part in name), 1.2)
        if name.endswith("running_var"):
            noise = 1 + noise.abs() * 0.5
        elif name.endswith("running_mean") or "bias" in name.split(".")[-1] and tensor.dim() == 1:
            noise = noise * 0.1
        elif "norm" in name:
            noise = 1 + noise * 0.1
        elif "embedding" not in name:
            noise = noise * gain / (tensor[0].numel() ** 0.5)
        tensor.copy_(noise.half())


def gap(row):
    best = row.topk(2).values
    return float(best[0] - best[1])


def by_ctc(model, features):
    """Tokens, the likeliest one of each position, and the rows that they are of."""
    rows = model(features).logits[0]
    likeliest = rows.argmax(-1).tolist()
    starts = [i for i, token in enumerate(likeliest) if token != BLANK and (i == 0 or likeliest[i - 1] != token)]
    ends = [next((k for k in range(i, len(likeliest)) if likeliest[k] != likeliest[i]), len(likeliest)) for i in starts]
    out = dict(tokens=[likeliest[i] for i in starts], frames=starts, durations=[end - i for i, end in zip(starts, ends)],
               step_frames=list(range(len(rows))))
    return out, rows, min(gap(row) for row in rows)


def by_transducer(model, features):
    """Tokens with their positions, by the definition of greedy search, and the rows of the joint network."""
    made = model.get_audio_features(features).pooler_output[0]
    decoder, durations = model.decoder, getattr(model.config, "durations", [])
    out = dict(tokens=[], frames=[], durations=[], step_frames=[])
    rows, gaps, at, staying = [], [], 0, 0
    said, state = decoder.lstm(decoder.embedding(torch.tensor([[BLANK]])))
    while at < len(made):
        row = model.joint.head(torch.relu(made[at] + decoder.decoder_projector(said)[0, 0]))
        rows.append(row)
        out["step_frames"].append(at)
        gaps += [gap(part) for part in (row[:VOCAB], row[VOCAB:]) if len(part)]
        token, duration = int(row[:VOCAB].argmax()), durations[int(row[VOCAB:].argmax())] if durations else 0
        if token == BLANK:
            at, staying = at + max(duration, 1), 0
            continue
        for key, value in (("tokens", token), ("frames", at), ("durations", duration)):
            out[key].append(value)
        said, state = decoder.lstm(decoder.embedding(torch.tensor([[token]])), state)
        at, staying = at + duration, staying + 1 if duration == 0 else 0
        if staying == MOST_SYMBOLS:
            at, staying = at + 1, 0
    return out, torch.stack(rows), min(gaps)


def models():
    """Name, model and how it decodes."""
    encoder = dict(hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, conv_kernel_size=5, num_mel_bins=MELS,
                   subsampling_conv_channels=4)
    plain = dict(attention_bias=False, convolution_bias=False, scale_input=False)
    joint = dict(vocab_size=VOCAB, decoder_hidden_size=8, blank_token_id=BLANK, pad_token_id=2, max_symbols_per_step=MOST_SYMBOLS)
    yield "tdt", transformers.ParakeetForTDT(transformers.ParakeetTDTConfig(
        num_decoder_layers=2, durations=DURATIONS, encoder_config=encoder | plain, **joint)), by_transducer
    yield "rnnt", transformers.ParakeetForRNNT(transformers.ParakeetRNNTConfig(num_decoder_layers=1, encoder_config=encoder, **joint)), by_transducer
    # NeMo's wide layers are a multiple of the narrow ones.
    yield "nemo", transformers.ParakeetForTDT(transformers.ParakeetTDTConfig(
        num_decoder_layers=1, durations=DURATIONS, encoder_config=encoder | dict(num_hidden_layers=1, intermediate_size=2 * WIDTH), **joint)), by_transducer
    yield "ctc", transformers.ParakeetForCTC(transformers.ParakeetCTCConfig(vocab_size=VOCAB, pad_token_id=BLANK, encoder_config=encoder)), by_ctc


def varied(model, features, decode, kind):
    """Weights whose tokens vary and are no near thing."""
    for seed in range(1000):
        randomize(model.eval(), torch.Generator().manual_seed(seed))
        head = model.ctc_head if kind == "ctc" else model.joint.head
        head.bias[BLANK] += 1 if kind == "ctc" else 3
        if kind in ("nemo", "tdt"):
            head.bias[VOCAB] -= 2
        out, rows, least = decode(model, features)
        if least > 0.02 and len(set(out["tokens"])) > 2 and len(set(out["durations"])) > KINDS_OF_DURATIONS[kind] and len(out["tokens"]) < len(rows):
            return out, rows, least
    raise SystemExit(f"no weights for {kind}")


def write(out, kind, model, decode):
    checkpoint = out / "checkpoint"
    out.mkdir(parents=True, exist_ok=True)
    extractor = transformers.ParakeetFeatureExtractor(feature_size=MELS)
    samples = write_sound(out, sound())
    heard = extractor(samples, sampling_rate=RATE, return_tensors="pt")
    features = heard.input_features[:, :int(heard.attention_mask.sum())]
    expected, rows, least = varied(model, features, decode, kind)
    hidden = model.encoder(features).last_hidden_state
    if kind == "nemo":
        nemo.write(out / "checkpoint.nemo", model, pieces(BLANK))
    else:
        checkpoint.mkdir(exist_ok=True)
        model.save_pretrained(checkpoint)
        extractor.save_pretrained(checkpoint)
        write_pieces(checkpoint, pieces(BLANK))
    case = dict(kind="speech", family=f"parakeet-{'tdt' if kind == 'nemo' else kind}", rtol=1e-4, atol=1e-3, **expected, valid_frames=hidden.shape[1], min_gap=round(least, 5))
    (out / "case.json").write_text(json.dumps(case) + "\n")
    for name, tensor in (("features", features), ("encoder", hidden), ("logits", rows)):
        write_tensor(out / f"{name}.bin", tensor)
    print(out.name, "smallest gap", case["min_gap"], expected)


def write_all(out):
    for kind, model, decode in models():
        write(out / f"speech-parakeet-{kind}", kind, model, decode)


if __name__ == "__main__":
    main(__doc__, write_all)
