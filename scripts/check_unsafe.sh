#!/usr/bin/env bash
# Tests unsafe code with sanitizers: scripts/check_unsafe.sh [cpu|threads|mlx]..., all three without a name.
#   cpu      kernels and the CPU engine under AddressSanitizer
#   threads  the thread pool under ThreadSanitizer, with an instrumented standard library
#   mlx      engines of MLX that come and go, and their C interface, under AddressSanitizer with a check for leaks
# Needs rustup's nightly toolchain, for `threads` with rust-src, and for `mlx` g++ and an MLX from scripts/install-mlx.sh. The first
# two take at least ten minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
target=x86_64-unknown-linux-gnu

check() {
  local sanitizer=$1 level=$2
  shift 2
  RUSTFLAGS="-Zsanitizer=$sanitizer ${flags-}" CARGO_INCREMENTAL=0 cargo +nightly test --locked --target "$target" \
    --target-dir "target/$sanitizer" --config "profile.dev.package.flambeau-kernels.opt-level=$level" "$@"
}

# The C interface is compiled by the first `c++` of the path. It takes the sanitizer's functions from the test, which exports them.
# The sanitizer finds the functions for C++ exceptions only if the test itself links to C++'s library.
check_mlx() {
  local bin=$PWD/target/address/bin
  mkdir -p "$bin" "target/address/$target"
  ln -sfn "$PWD/target/mlx" "target/address/$target/mlx"
  printf '#!/bin/sh\nexec g++ -g1 -fsanitize=address "$@" -nodefaultlibs -lstdc++ -lm -lgcc_s -lc\n' >"$bin/c++"
  chmod +x "$bin/c++"
  PATH=$bin:$PATH flags="-Clink-arg=-rdynamic -Clink-arg=-Wl,--no-as-needed -Clink-arg=-lstdc++" \
    check address 0 -p flambeau-mlx --test ending --test pipelined --test sessions
}

[ $# -gt 0 ] || set -- cpu threads mlx
for part; do
  case $part in
    cpu) check address 1 -p flambeau-kernels -p flambeau-cpu --lib --test sessions --test random_graphs --test cases ;;
    # ThreadSanitizer only sees the standard library's locks if that library is instrumented.
    threads) check thread 0 -Zbuild-std -p flambeau-kernels --lib -- pool ;;
    mlx) check_mlx ;;
    *) echo "there is no part $part: cpu, threads or mlx" >&2 && exit 2 ;;
  esac
done
