#!/usr/bin/env bash
# Runs the kernels' tests as a 64-bit Arm program under QEMU's user-mode emulator: every kernel on NEON against the portable one
# and against its definition. Needs rustup's target aarch64-unknown-linux-gnu, `qemu-aarch64` (Debian: qemu-user) and a linker
# with Arm's C library (Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross); without them it says that it skips.
# Usage: scripts/check_neon.sh [PACKAGE...]
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
root=/usr/aarch64-linux-gnu
packages=("${@:-flambeau-kernels}")

skip() { echo "skipped: $1" >&2; exit 0; }
command -v qemu-aarch64 >/dev/null || skip "there is no qemu-aarch64"
command -v aarch64-linux-gnu-gcc >/dev/null || skip "there is no aarch64-linux-gnu-gcc"
[ -e "$root/lib/libc.so.6" ] || skip "there is no C library for 64-bit Arm in $root"
[ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || skip "rustc has no target $target"

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L $root"
# Kernels that are optimised less compile faster by more than the emulated tests lose.
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=false
cargo test --locked --target "$target" --config 'profile.dev.package.flambeau-kernels.opt-level=1' "${packages[@]/#/--package=}"
