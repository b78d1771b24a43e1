#!/usr/bin/env bash
# Installs OpenAI's Python package into target/openai, where the server's tests look for it. Without pip's index it says so, and those
# tests skip. Usage: scripts/install-openai.sh
set -euo pipefail
cd "$(dirname "$0")/.."
venv=target/openai
if [ ! -x "$venv/bin/python" ]; then
  python3 -m venv "$venv" || { echo "skipped: python3 has no venv module" >&2; rm -rf "$venv"; exit 0; }
fi
if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check openai; then
  echo "skipped: pip cannot install openai" >&2
  rm -rf "$venv"
fi
