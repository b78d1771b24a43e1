#!/usr/bin/env python3
"""Writes tiny random checkpoints of speech models as case folders, with transformers' features, hidden states, logits and greedy text.

    speech_cases.py OUT

`flambeau conformance OUT --from checkpoint` runs them. Needs torch and transformers.
"""
import argparse
import json
import pathlib
import wave

import numpy
import torch
import transformers

from checkpoint_cases import randomize, write_tensor

RATE, SECONDS, WINDOW, NEW = 16000, 0.5, 1, 12
LANGUAGES = ["en", "fr", "de"]
STEPS = 50 * WINDOW


def sound():
    """A voice of sorts: harmonics of a falling pitch that come and go, over noise."""
    time = numpy.arange(int(RATE * SECONDS)) / RATE
    phase = 2 * numpy.pi * (180 * time - 40 * time ** 2)
    voice = sum(numpy.sin(k * phase) / k for k in range(1, 12)) * (0.5 + 0.5 * numpy.sin(2 * numpy.pi * 5 * time))
    samples = 0.2 * voice + 0.01 * numpy.random.default_rng(0).standard_normal(time.size)
    return numpy.round(samples * 32768).clip(-32768, 32767).astype("<i2")


def write_sound(out, samples):
    """Writes a recording, and returns its samples as models take them."""
    with wave.open(str(out / "audio.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.tobytes())
    return samples.astype("f4") / 32768


def pieces(count):
    """The start of a SentencePiece vocabulary: names in the order of their ids."""
    letters = "etaoinshrdlucmfwypvbgk"
    names = ["<unk>", "▁", "<pad>", *("▁" + letter for letter in letters), *letters, ".", ",", "?"]
    return names[:count]


def write_pieces(folder, names, special=("<unk>", "<pad>")):
    """A tokenizer.json of SentencePiece's pieces."""
    added = [dict(id=i, content=name, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
             for i, name in enumerate(names) if name in special]
    spaces = dict(type="Metaspace", replacement="▁", prepend_scheme="always", split=True)
    model = dict(type="BPE", dropout=None, unk_token="<unk>", continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=True,
                 byte_fallback=False, vocab={name: i for i, name in enumerate(names)}, merges=[])
    (folder / "tokenizer.json").write_text(json.dumps(dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None,
                                                           pre_tokenizer=spaces, post_processor=None, decoder=spaces, model=model), ensure_ascii=False))


def vocabulary(multilingual):
    """Bytes as GPT-2 spells them, then the special tokens in Whisper's order: name to id."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelled = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in plain)}
    names = ["endoftext", "startoftranscript", *(LANGUAGES if multilingual else ["en"]), "translate", "transcribe", "startoflm", "startofprev",
             "nospeech", "notimestamps", *(f"{i * 0.02:.2f}" for i in range(STEPS + 1))]
    return {spelled[byte]: byte for byte in range(256)}, {f"<|{name}|>": 256 + i for i, name in enumerate(names)}


def tokenizer(folder, pieces, specials):
    added = [dict(id=i, content=name, single_word=False, lstrip=False, rstrip=False, normalized=False, special="." not in name)
             for name, i in specials.items()]
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    model = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False,
                 byte_fallback=False, vocab=pieces, merges=[])
    (folder / "tokenizer.json").write_text(json.dumps(dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None,
                                                           pre_tokenizer=level, post_processor=None, decoder=level, model=model), ensure_ascii=False))


def whisper(multilingual, **sizes):
    """A model, its feature extractor, and its special tokens."""
    pieces, specials = vocabulary(multilingual)
    token = lambda name: specials[f"<|{name}|>"]
    ends = dict(bos_token_id=token("endoftext"), eos_token_id=token("endoftext"), pad_token_id=token("endoftext"),
                decoder_start_token_id=token("startoftranscript"))
    config = transformers.WhisperConfig(
        vocab_size=len(pieces) + len(specials), num_mel_bins=12, d_model=16, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_source_positions=STEPS, max_target_positions=40,
        suppress_tokens=None, begin_suppress_tokens=None, **dict(encoder_layers=2, decoder_layers=2) | ends | sizes)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    positions = model.model.encoder.embed_positions.weight.clone()
    randomize(model, False)
    model.model.encoder.embed_positions.weight.copy_(positions)
    # The head reads the same weights: at full size, each token would be its own likeliest successor.
    model.model.decoder.embed_tokens.weight.mul_(0.3)
    generation = dict(ends, alignment_heads=[[0, 1], [1, 0]], begin_suppress_tokens=[32, ends["eos_token_id"]], is_multilingual=multilingual,
                      max_initial_timestamp_index=STEPS, no_timestamps_token_id=token("notimestamps"), prev_sot_token_id=token("startofprev"),
                      suppress_tokens=[1, 2, token("startoftranscript"), *(token(n) for n in ("translate", "transcribe", "startoflm", "startofprev", "nospeech"))])
    if multilingual:
        generation |= dict(lang_to_id={f"<|{code}|>": token(code) for code in LANGUAGES},
                           task_to_id=dict(transcribe=token("transcribe"), translate=token("translate")))
    return model, transformers.WhisperFeatureExtractor(feature_size=12, chunk_length=WINDOW), generation, (pieces, specials)


def allowed(logits, text, g, timestamps):
    """The logits of the next token under the rules, by their definition."""
    first, end = g["no_timestamps_token_id"] + 1, g["eos_token_id"]
    logits = logits.clone()
    logits[g["suppress_tokens"] + ([] if text else g["begin_suppress_tokens"])] = -torch.inf
    if not timestamps:
        return logits
    stamps = [token for token in text if token >= first]
    logits[first - 1] = -torch.inf
    if not text:
        logits[:first] = -torch.inf
        logits[first + g["max_initial_timestamp_index"] + 1:] = -torch.inf
    elif text[-1] >= first:
        if len(text) < 2 or text[-2] >= first:
            logits[first:] = -torch.inf
        else:
            logits[:end] = -torch.inf
    if stamps:
        begins = text[-1] >= first and len(text) >= 2 and text[-2] < first
        logits[first:stamps[-1] + (not begins)] = -torch.inf
    if logits[first:].logsumexp(0) > logits[:first].max():
        logits[:first] = -torch.inf
    return logits


def greedy(model, hidden, prompt, generation, timestamps):
    """Tokens after the prompt, the raw logits of each, and the least distance between a choice and the next best."""
    text, rows, gap = [], [], torch.inf
    while len(text) < NEW and generation["eos_token_id"] not in text:
        logits = model(encoder_outputs=(hidden,), decoder_input_ids=torch.tensor([prompt + text])).logits[0, -1]
        rows.append(logits)
        best = allowed(logits, text, generation, timestamps).topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        text.append(int(best.indices[0]))
    return text, torch.stack(rows), gap


def write(out, multilingual, **sizes):
    torch.manual_seed(0)
    model, extractor, generation, (pieces, specials) = whisper(multilingual, **sizes)
    checkpoint = out / "checkpoint"
    checkpoint.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(checkpoint)
    extractor.save_pretrained(checkpoint)
    (checkpoint / "generation_config.json").write_text(json.dumps(generation))
    tokenizer(checkpoint, pieces, specials)
    samples = write_sound(out, sound())
    features = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
    hidden = model.model.encoder(features).last_hidden_state
    start = [generation["decoder_start_token_id"]]
    case = dict(kind="speech", family="whisper", rtol=1e-4, atol=1e-4)
    if multilingual:
        logits = model(encoder_outputs=(hidden,), decoder_input_ids=torch.tensor([start])).logits[0, -1]
        languages = generation["lang_to_id"]
        code = max(languages, key=lambda name: float(logits[languages[name]]))
        start += [languages[code], generation["task_to_id"]["transcribe"]]
        case["detected_language"] = code.strip("<|>")
    prompt = start + [generation["no_timestamps_token_id"]]
    tokens, rows, gap = greedy(model, hidden, prompt, generation, False)
    stamped, _, stamped_gap = greedy(model, hidden, start, generation, True)
    case |= dict(prompt=prompt, tokens=tokens, tokens_with_timestamps=stamped, min_gap=round(min(gap, stamped_gap), 5))
    (out / "case.json").write_text(json.dumps(case) + "\n")
    for name, tensor in (("features", features), ("encoder", hidden), ("logits", rows)):
        write_tensor(out / f"{name}.bin", tensor)
    print(out.name, "smallest gap", case["min_gap"], "text", tokens, stamped)


CASES = [("whisper", True, dict()), ("whisper-en", False, dict(encoder_layers=1, decoder_layers=3))]


def main(doc, write_all):
    """Writes cases into the folder that the command line names."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    with torch.no_grad():
        write_all(args.out)


def write_all(out):
    for name, multilingual, sizes in CASES:
        write(out / f"speech-{name}", multilingual, **sizes)


if __name__ == "__main__":
    main(__doc__, write_all)
