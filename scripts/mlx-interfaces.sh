#!/usr/bin/env bash
# Cross-compiles the MLX engine's C interface for arm64 macOS, against the `mlx-metal` wheel of each version. Checks that each symbol
# which it takes from libmlx is one that the library exports. Needs Python with pip, and Cargo; nothing of it runs on a Mac.
# Usage: scripts/mlx-interfaces.sh [--out FOLDER] [--all | VERSION ...]
# With --out, it keeps FOLDER/libflambeau_mlx-VERSION-DIGEST.dylib. The engine takes such a file instead of compiling one if the version
# of MLX and the digest of the interface's source are its own. --all compiles for every release from 0.30.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=$work/out
usage() { sed -n 's/^# Usage: /usage: /p' "$0" >&2; exit 2; }
if [ "${1:-}" = --out ]; then
  [ $# -ge 2 ] || usage
  mkdir -p "$2"
  out=$(cd "$2" && pwd)
  shift 2
fi
mkdir -p "$out"
[ "${1:-}" != --all ] || set -- 0.30.0 0.30.1 0.30.3 0.30.4 0.30.5 0.30.6 0.31.0 0.31.1 0.31.2 0.32.0 0.32.1 0.32.2 0.32.3 0.32.4
[ $# -gt 0 ] || set -- 0.32.4
case $1 in [0-9]*) ;; *) usage ;; esac

python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet ziglang==0.17.0 lief==1.0.0
(cd "$root" && cargo run --quiet --locked -p flambeau-mlx --example shim_sources -- "$work/shim")

for version; do
  wheel=$work/$version
  "$work/venv/bin/pip" download --quiet --no-deps --only-binary=:all: --platform macosx_14_0_arm64 --dest "$wheel" "mlx-metal==$version"
  unzip -q "$wheel"/mlx_metal-*.whl -d "$wheel"
  library=$out/libflambeau_mlx-$version-$(cat "$work/shim/digest").dylib

  # The flags are those of crates/mlx/src/shim.rs. The engine loads libmlx first, and the loader takes the symbols from there.
  "$work/venv/bin/python" -m ziglang c++ -target aarch64-macos.14.0 -std=c++20 -O2 -fPIC -shared -fvisibility=hidden -w \
    -I "$wheel/mlx/include" "$work/shim/shim.cpp" -o "$library" -Wl,-undefined,dynamic_lookup -Wl,-install_name,"@rpath/${library##*/}"

  "$work/venv/bin/python" - "$library" "$wheel/mlx/lib/libmlx.dylib" <<'PYTHON'
import sys

import lief

shim, library = (lief.MachO.parse(path).at(0) for path in sys.argv[1:])
if str(shim.header.cpu_type).rsplit(".", 1)[-1] != "ARM64":
    sys.exit(f"the shim is for {shim.header.cpu_type}, expected ARM64")
named = [found.name for found in shim.libraries if "libmlx" in found.name]
if named:
    sys.exit(f"the shim names {named[0]}, which may be another one than the engine has loaded")
exported = {symbol.name for symbol in library.exported_symbols}
taken = sorted(symbol.name for symbol in shim.imported_symbols if "3mlx4core" in symbol.name)
missing = [name for name in taken if name not in exported]
entries = sorted(symbol.name for symbol in shim.exported_symbols if symbol.name.startswith("_fl_"))
name = sys.argv[1].rsplit("/", 1)[-1]
print(f"{name}: {len(entries)} entries, {len(taken)} symbols taken from libmlx, {len(exported)} exported there, {len(missing)} missing")
if missing or not taken or not entries:
    sys.exit("\n".join(["missing:", *missing]))
PYTHON
  rm -rf "$wheel"
done
