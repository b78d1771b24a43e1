#!/usr/bin/env bash
# Runs every test of the workspace. Tests whose input is missing (archives of cases, MLX) are counted as ignored, with the reason.
set -euo pipefail
cd "$(dirname "$0")/.."
echo "== building and running all tests of the workspace (a few minutes the first time)" >&2
exec cargo test --workspace --locked "$@"
