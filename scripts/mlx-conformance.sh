#!/usr/bin/env bash
# Runs the conformance archives beside the checkout on the MLX that scripts/install-mlx.sh installed: ExecuTorch's files, and what
# this compiler makes of the exported programs. Usage: scripts/mlx-conformance.sh [built flambeau command]
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x target/mlx/bin/python ] || { echo "skipped: MLX is not installed in target/mlx (scripts/install-mlx.sh)" >&2; exit 0; }
archives=../shared/conformance
[ -d "$archives" ] || { echo "skipped: there is no $archives" >&2; exit 0; }

flambeau=${1:-}
if [ -z "$flambeau" ]; then
  cargo build --quiet --locked -p flambeau-cli
  flambeau=target/debug/flambeau
fi
cases=target/mlx-cases
for archive in ops models; do
  [ -d "$cases/$archive" ] || { mkdir -p "$cases" && tar -xJf "$archives/$archive.tar.xz" -C "$cases"; }
  for from in pte pt2; do
    echo "== $archive from $from" >&2
    "$flambeau" conformance "$cases/$archive" --from "$from" --engine mlx --device cpu --mlx-path target/mlx
  done
done
