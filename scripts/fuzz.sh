#!/usr/bin/env bash
# Runs fuzz targets for SECONDS each, one after the other: scripts/fuzz.sh SECONDS [TARGET...]. See fuzz/README.md.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:?usage: scripts/fuzz.sh SECONDS [TARGET...]}
shift
cargo run --quiet --locked -p seeds -- corpus
[ $# -gt 0 ] || mapfile -t targets < <(cargo +nightly fuzz list)
for target in "${@:-${targets[@]}}"; do
  cargo +nightly fuzz run "$target" -- -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=2048
done
