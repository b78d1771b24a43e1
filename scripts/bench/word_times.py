#!/usr/bin/env python3
"""Counts words with impossible times in what `flambeau transcribe --word-timestamps` writes of the recordings of a folder.

    python3 scripts/bench/word_times.py MODEL FOLDER [--transcripts DIR] [-- OPTIONS OF flambeau transcribe]
    python3 scripts/bench/word_times.py whisper-tiny-en.pte pauses -- --vad --batch-size 4

FOLDER is one that `word_errors.py` reads, such as the one that `pauses.py` makes. A word must lie within its segment and within the
recording, begin no earlier than the word before it, and take at most 0.6 seconds, plus 0.1 for each letter and 0.4 for each digit. Where a
manifest has the pieces of a recording, as that of `pauses.py` does, a word must not lie in a pause between them by 0.6 seconds or more.
"""
import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path

from contest import FLAMBEAU, run
from word_errors import beside, listed

# Times are written in milliseconds.
TOLERANCE = 0.0015
LATE = 0.6


def longest(word):
    digits = sum(c in "0123456789" for c in word)
    return 0.6 + 0.1 * (sum(c.isalnum() for c in word) - digits) + 0.4 * digits


def faults(transcript, pieces):
    """(fault, segment, word) of each word with a fault."""
    last = 0
    for segment in transcript["segments"]:
        for word in segment["words"]:
            start, end = word["start"], word["end"]
            found = {
                "ends behind its segment": end > segment["end"] + TOLERANCE,
                "begins ahead of its segment": start < segment["start"] - TOLERANCE,
                "ends behind the recording": end > transcript["duration"] + TOLERANCE,
                "ends before it begins": end < start,
                "takes no time": end == start,
                "begins before the word ahead of it": start < last - TOLERANCE,
                "is too long": end - start > longest(word["word"]) + TOLERANCE,
                "lies in a pause": pieces and not any(start < b + LATE and end > a - LATE for a, b in pieces),
                "reaches into a pause": pieces and not any(a - LATE <= start and end <= b + LATE for a, b in pieces),
            }
            last = start
            yield from ((fault, segment, word) for fault, is_found in found.items() if is_found)
        if segment["end"] > transcript["duration"] + TOLERANCE:
            yield "the segment ends behind the recording", segment, segment


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--transcripts", type=Path, help="folder for the transcripts; those in it are not made again")
    parser.add_argument("options", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    options = args.options[1:] if args.options[:1] == ["--"] else args.options
    has_list = (args.folder / "manifest.json").exists()
    paths = [path for path, _ in (listed if has_list else beside)(args.folder)]
    rows = json.loads((args.folder / "manifest.json").read_text()) if has_list else []
    pieces = {row["file"]: row.get("pieces") for row in (rows["clips"] if isinstance(rows, dict) else rows)}
    with tempfile.TemporaryDirectory() as scratch:
        out = args.transcripts or Path(scratch)
        missing = [path for path in paths if not (out / path.name).with_suffix(".json").exists()]
        if missing:
            how = ["--word-timestamps", "-f", "json", "--output-dir", out, "--quiet", *options]
            run([FLAMBEAU, "transcribe", "-m", args.model, *missing, *how])
        count, words = Counter(), 0
        for path in paths:
            transcript = json.loads((out / path.name).with_suffix(".json").read_text())
            words += sum(len(segment["words"]) for segment in transcript["segments"])
            for fault, segment, word in faults(transcript, pieces.get(str(path.relative_to(args.folder)))):
                count[fault] += 1
                of = f"{segment['start']:.2f}-{segment['end']:.2f} {segment['text'].strip()[:60]!r}"
                print(f"{path.name}: {word.get('word', '')!r} {word['start']:.2f}-{word['end']:.2f} {fault} ({of})")
    print(f"\n{words} words, {sum(count.values())} faults: {dict(count)}")


if __name__ == "__main__":
    main()
