#!/usr/bin/env bash
# Runs every test of the workspace. Tests that need the conformance archives beside the checkout, or Python, say that they skip.
set -euo pipefail
cd "$(dirname "$0")/.."
echo "== building and running all tests of the workspace (a few minutes the first time)" >&2
exec cargo test --workspace --locked "$@"
