#!/usr/bin/env bash
# Installs the Python packages openai and anthropic into target/clients, where the server's tests look for them. Without pip's index it
# says so, and those tests skip. Usage: scripts/install-clients.sh
set -euo pipefail
cd "$(dirname "$0")/.."
venv=target/clients
if [ ! -x "$venv/bin/python" ]; then
  python3 -m venv "$venv" || { echo "skipped: python3 has no venv module" >&2; rm -rf "$venv"; exit 0; }
fi
if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check openai anthropic; then
  echo "skipped: pip cannot install openai and anthropic" >&2
  rm -rf "$venv"
fi
