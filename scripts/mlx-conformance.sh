#!/usr/bin/env bash
# Runs the repository's cases, and the archives beside the checkout if present, on the MLX installed by scripts/install-mlx.sh:
# ExecuTorch's programs, and programs compiled from exported archives.
# Usage: scripts/mlx-conformance.sh [built flambeau command]
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x target/mlx/bin/python ] || { echo "not run: MLX is not installed in target/mlx (scripts/install-mlx.sh)" >&2; exit 0; }

flambeau=${1:-}
if [ -z "$flambeau" ]; then
  cargo build --quiet --locked -p flambeau-cli
  flambeau=target/debug/flambeau
fi
folders=(crates/testcases/cases)
for name in ops models; do
  archive=../shared/conformance/$name.tar.xz
  if [ -f "$archive" ]; then
    folder=target/mlx-cases/$name
    [ -d "$folder" ] || { mkdir -p target/mlx-cases && tar -xJf "$archive" -C target/mlx-cases; }
    folders+=("$folder")
  else
    echo "not run: there is no $archive" >&2
  fi
done
for folder in "${folders[@]}"; do
  for from in pte pt2; do
    echo "== $folder from $from" >&2
    "$flambeau" conformance "$folder" --from "$from" --engine mlx --device cpu --mlx-path target/mlx
  done
done
