#!/usr/bin/env python3
"""Makes recordings with long pauses of the clips of a folder, for `word_errors.py` to count what is lost in them.

    python3 scripts/bench/pauses.py FOLDER OUT [--recordings 6] [--words 240] [--seed 1]
    python3 scripts/bench/word_errors.py whisper-tiny-en.pte OUT -- --vad

FOLDER is one that `word_errors.py` reads. Each recording joins clips in a random order, with pauses of 3 to 20 seconds between them.
Pauses are digital silence, white noise or room tone (noise whose power falls by 6 dB an octave), by turns at -70 to -40 dB; noise goes on
under the speech. OUT gets FLAC files at 16 kHz and a `manifest.json` with the text of each and its pieces: where they begin and end.
"""
import argparse
import json
import random
import sys
from pathlib import Path

from contest import Rivals, run
from word_errors import beside, listed

TOOLS = Rivals("pauses")
PACKAGES = ["numpy", "scipy", "soundfile"]
RATE = 16000
GROUNDS = [("silence", None), ("white", -60), ("room", -50), ("silence", None), ("white", -50), ("room", -40)]


def ground(kind, level, samples, seed):
    """Noise of a kind at a level in dB below full scale."""
    import numpy as np

    if level is None:
        return np.zeros(samples)
    noise = np.random.default_rng(seed).standard_normal(samples)
    if kind == "room":
        spectrum = np.fft.rfft(noise)
        frequencies = np.maximum(np.fft.rfftfreq(samples, 1 / RATE), 60)
        noise = np.fft.irfft(spectrum / frequencies, samples)
    return noise * 10 ** (level / 20) / np.sqrt(np.mean(noise**2))


def heard(path):
    """Samples of a recording at 16 kHz, one channel."""
    import numpy as np
    import soundfile
    from scipy.signal import resample_poly

    samples, rate = soundfile.read(path, dtype="float64", always_2d=True)
    samples = samples.mean(axis=1)
    return samples if rate == RATE else resample_poly(samples, RATE, rate).astype(np.float64)


def make(pairs, out, recordings, words, seed):
    import numpy as np
    import soundfile

    out.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    rows = []
    for number in range(recordings):
        kind, level = GROUNDS[number % len(GROUNDS)]
        order, parts, text, pieces, at = [], [], [], [], 0
        while sum(len(said.split()) for said in text) < words:
            if not order:
                order = draw.sample(pairs, len(pairs))
            path, said = order.pop()
            pause = np.zeros(int(draw.uniform(3, 20) * RATE))
            samples = heard(path)
            pieces.append([(at + len(pause)) / RATE, (at + len(pause) + len(samples)) / RATE])
            parts += [pause, samples]
            text.append(said)
            at += len(pause) + len(samples)
        whole = np.concatenate(parts)
        whole = np.clip(whole + ground(kind, level, len(whole), seed + number), -1, 1)
        name = f"pauses-{number + 1}-{kind}{'' if level is None else level}"
        soundfile.write(out / f"{name}.flac", whole, RATE, subtype="PCM_16")
        rows.append({"id": name, "file": f"{name}.flac", "kind": "pauses", "seconds": len(whole) / RATE, "language": "en", "text": " ".join(text), "pieces": pieces})
    (out / "manifest.json").write_text(json.dumps(rows, indent=1))
    print(f"{sum(row['seconds'] for row in rows):.0f} s, {sum(len(row['text'].split()) for row in rows)} words in {out}")


def main():
    if sys.argv[1:2] == ["--make"]:
        pairs, out, recordings, words, seed = json.load(sys.stdin)
        make(pairs, Path(out), recordings, words, seed)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--recordings", type=int, default=6)
    parser.add_argument("--words", type=int, default=240, help="fewest words of a recording")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    has_list = (args.folder / "manifest.json").exists()
    pairs = [(str(path), text) for path, text in (listed if has_list else beside)(args.folder) if text.strip()]
    if not pairs:
        sys.exit(f"{args.folder} has no recordings whose texts are known")
    TOOLS.install([PACKAGES])
    run([TOOLS.python, __file__, "--make"], input=json.dumps([pairs, str(args.out), args.recordings, args.words, args.seed]), text=True)


if __name__ == "__main__":
    main()
