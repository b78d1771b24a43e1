#!/usr/bin/env bash
# Cross-compiles the MLX engine's C interface for arm64 macOS, links it to the libmlx of the `mlx-metal` wheel, and checks that
# each symbol which it takes from libmlx is one that the library exports. Needs Python with pip, and Cargo; nothing of it runs on a Mac.
set -euo pipefail
version=${1:-0.32.4}
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet ziglang==0.17.0 lief==1.0.0
"$work/venv/bin/pip" download --quiet --no-deps --only-binary=:all: --platform macosx_14_0_arm64 --dest "$work" "mlx-metal==$version"
unzip -q "$work"/mlx_metal-*.whl -d "$work/wheel"

(cd "$root" && cargo run --quiet --locked -p flambeau-mlx --example shim_sources -- "$work/shim")

# The flags are those of crates/mlx/src/shim.rs.
"$work/venv/bin/python" -m ziglang c++ -target aarch64-macos.14.0 -std=c++20 -O2 -fPIC -shared -fvisibility=hidden -w \
  -I "$work/wheel/mlx/include" "$work/shim/shim.cpp" -o "$work/libflambeau_mlx.dylib" \
  -L "$work/wheel/mlx/lib" -lmlx

"$work/venv/bin/python" - "$work/libflambeau_mlx.dylib" "$work/wheel/mlx/lib/libmlx.dylib" <<'PYTHON'
import sys

import lief

shim, library = (lief.MachO.parse(path).at(0) for path in sys.argv[1:])
if str(shim.header.cpu_type).rsplit(".", 1)[-1] != "ARM64":
    sys.exit(f"the shim is for {shim.header.cpu_type}, expected ARM64")
exported = {symbol.name for symbol in library.exported_symbols}
taken = sorted(symbol.name for symbol in shim.imported_symbols if "3mlx4core" in symbol.name)
missing = [name for name in taken if name not in exported]
entries = sorted(symbol.name for symbol in shim.exported_symbols if symbol.name.startswith("_fl_"))
print(f"{len(entries)} entries, {len(taken)} symbols taken from libmlx, {len(exported)} exported there, {len(missing)} missing")
if missing or not taken or not entries:
    sys.exit("\n".join(["missing:", *missing]))
PYTHON
