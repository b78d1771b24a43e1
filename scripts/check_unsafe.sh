#!/usr/bin/env bash
# Runs the tests of the kernels and of the CPU engine under AddressSanitizer, and those of the thread pool under ThreadSanitizer
# with a standard library that is built for it. Needs rustup's nightly toolchain with rust-src; ten minutes and more.
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
# Without a standard library of its own, ThreadSanitizer does not see what the library's locks order.
check thread 0 -Zbuild-std -p flambeau-kernels --lib -- pool
