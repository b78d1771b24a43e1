#!/usr/bin/env python3
"""Counts the words that `flambeau transcribe` gets wrong in recordings whose texts are known.

    python3 scripts/bench/word_errors.py MODEL FOLDER [--json FILE] [-- OPTIONS OF flambeau transcribe]
    python3 scripts/bench/word_errors.py whisper-tiny-en.pte clips -- --beam-size 5 --threads 2

FOLDER holds recordings, each with its text in a file of the same name that ends in .txt, or in LibriSpeech's lists (*.trans.txt), or
in a `manifest.json`: a list of objects, or one under `clips`, with `file` and `text`, where those of another `language` than English and
those without a text are left out. A recording whose text is empty says nothing: words that are written there are counted by themselves.
Both texts go through Whisper's normalizer of English (the package whisper-normalizer) with hyphens as spaces; the package jiwer aligns
the words. Both are installed into target/word-errors, once. Build Flambeau first:

    cargo build --release -p flambeau-cli
"""
import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from contest import FLAMBEAU, Rivals, run

TOOLS = Rivals("word-errors")
PACKAGES = ["whisper-normalizer", "jiwer"]
SOUNDS = {".wav", ".flac", ".mp3", ".ogg", ".m4a", ".aiff", ".webm"}


def listed(folder):
    """(recording, text) of the rows of manifest.json."""
    rows = json.loads((folder / "manifest.json").read_text())
    for row in rows["clips"] if isinstance(rows, dict) else rows:
        if row.get("text") is not None and row.get("language") in (None, "en") and row.get("kind") != "format":
            yield folder / row["file"], row["text"]


def beside(folder):
    """(recording, text) of the recordings with a text beside them or in a list of LibriSpeech's."""
    lines = (line for path in sorted(folder.rglob("*.trans.txt")) for line in path.read_text().splitlines())
    lists = dict(line.split(" ", 1) for line in lines if " " in line)
    for path in sorted(path for path in folder.rglob("*") if path.suffix.lower() in SOUNDS):
        text = path.with_suffix(".txt")
        if text.exists():
            yield path, text.read_text()
        elif path.stem in lists:
            yield path, lists[path.stem]


def transcribed(model, recordings, options):
    """What is written of each recording, seconds of all of them, and how many it took with the loading of the model."""
    with tempfile.TemporaryDirectory() as out:
        # Recordings of one name in several folders would share a transcript.
        links = [Path(out) / f"{number}{path.suffix}" for number, path in enumerate(recordings)]
        for link, path in zip(links, recordings):
            link.symlink_to(path.resolve())
        start = time.perf_counter()
        run([FLAMBEAU, "transcribe", "-m", model, *links, "-f", "json", "--output-dir", out, "--quiet", *options])
        took = time.perf_counter() - start
        transcripts = [json.loads(link.with_suffix(".json").read_text()) for link in links]
    return [transcript["text"] for transcript in transcripts], sum(t["duration"] for t in transcripts), took


def score(rows):
    """Adds to each row its words and what is wrong with them. Runs where the packages are."""
    import jiwer
    from whisper_normalizer.english import EnglishTextNormalizer

    normalize = EnglishTextNormalizer()
    for row in rows:
        said, written = (normalize(row[key].replace("-", " ")).split() for key in ("said", "written"))
        row["words"] = len(said)
        if said:
            errors = jiwer.process_words(" ".join(said), " ".join(written))
            row |= {"changed": errors.substitutions, "left out": errors.deletions, "added": errors.insertions}
        else:
            row["invented"] = len(written)
    return rows


def errors(row):
    return sum(row.get(key, 0) for key in ("changed", "left out", "added"))


def main():
    if sys.argv[1:] == ["--score"]:
        json.dump(score(json.load(sys.stdin)), sys.stdout)
        return
    own, options = sys.argv[1:], []
    if "--" in own:
        own, options = own[: own.index("--")], own[own.index("--") + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="a file for a row of each recording")
    args = parser.parse_args(own)
    if not FLAMBEAU.exists():
        sys.exit(f"{FLAMBEAU} is missing: cargo build --release -p flambeau-cli")
    pairs = list(listed(args.folder) if (args.folder / "manifest.json").exists() else beside(args.folder))
    if not pairs:
        sys.exit(f"{args.folder} has no recordings whose texts are known")
    TOOLS.install([PACKAGES])
    texts, seconds, took = transcribed(args.model, [path for path, _ in pairs], options)
    rows = [{"file": str(path), "said": said, "written": text} for (path, said), text in zip(pairs, texts)]
    scored = run([TOOLS.python, __file__, "--score"], input=json.dumps(rows), stdout=subprocess.PIPE, text=True).stdout
    rows = json.loads(scored)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False))
    print("| recording | words | changed | left out | added | invented |\n|---|---:|---:|---:|---:|---:|")
    for row in rows:
        cells = [row.get(key, "") for key in ("words", "changed", "left out", "added", "invented")]
        print(f"| {Path(row['file']).stem} | {' | '.join(map(str, cells))} |")
    words, wrong, invented = sum(row["words"] for row in rows), sum(map(errors, rows)), sum(row.get("invented", 0) for row in rows)
    print(f"\n{wrong} of {words} words are wrong, {100 * wrong / max(words, 1):.2f} %; {invented} words where nothing is said; "
          f"{seconds:.0f} s in {took:.1f} s, a real-time factor of {took / seconds:.3f}")


if __name__ == "__main__":
    main()
