#!/usr/bin/env bash
# Runs the tests of the kernels and of the CPU engine under AddressSanitizer, and the tests of the thread pool under ThreadSanitizer
# with an instrumented standard library. Needs rustup's nightly toolchain with rust-src. Takes at least ten minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
target=x86_64-unknown-linux-gnu

check() {
  local sanitizer=$1 level=$2
  shift 2
  RUSTFLAGS="-Zsanitizer=$sanitizer" CARGO_INCREMENTAL=0 cargo +nightly test --locked --target "$target" \
    --target-dir "target/$sanitizer" --config "profile.dev.package.flambeau-kernels.opt-level=$level" "$@"
}

check address 1 -p flambeau-kernels -p flambeau-cpu --lib --test sessions --test random_graphs --test cases
# ThreadSanitizer only sees the standard library's locks if that library is instrumented.
check thread 0 -Zbuild-std -p flambeau-kernels --lib -- pool
