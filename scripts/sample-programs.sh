#!/usr/bin/env bash
# Draws programs that nobody here wrote with a seed, compiles and runs them, and compares with PyTorch: PyTorch's own operator samples,
# positions among equal elements, and random chains of views, writes and dynamic shapes. Prints a command that repeats each failure.
# Usage: scripts/sample-programs.sh [SEED [FOLDER]]      default: today's date, a new temporary folder
# PYTHON: a Python with PyTorch 2.15. FLAMBEAU: the command, by default target/release/flambeau.
set -uo pipefail
cd "$(dirname "$0")/.."
seed=${1:-$(date +%Y%m%d)}
out=${2:-$(mktemp -d)}
python=${PYTHON:-python3}
flambeau=${FLAMBEAU:-target/release/flambeau}
[ -x "$flambeau" ] || { echo "there is no $flambeau; build it with: cargo build --release -p flambeau-cli" >&2; exit 2; }
mkdir -p "$out"
status=0

# Writes cases with a script of scripts/reference, runs them, and prints how to reproduce failures.
sample() {
  local name=$1
  shift
  echo "== $name, seed $seed"
  "$python" "scripts/reference/$1" "$out/$name" "${@:2}" --seed "$seed" > "$out/$name.log" 2>&1 || { tail -5 "$out/$name.log"; status=1; return; }
  "$flambeau" conformance "$out/$name" --from pt2 > "$out/$name.txt" 2>&1 && { tail -1 "$out/$name.txt"; return; }
  status=1
  grep '^FAILED' "$out/$name.txt"
  tail -1 "$out/$name.txt"
  echo "repeat: $python scripts/reference/$1 CASES ${*:2} --seed $seed && $flambeau conformance CASES --from pt2 --filter NAME"
}

for dtype in f32 bf16 f16 i64 u8 bool; do
  sample "operators-$dtype" opinfo_cases.py --dtypes "$dtype"
done
sample ties tie_cases.py --count 300
for script in scripts/reference/*_chains.py; do
  sample "$(basename "$script" .py)" "$(basename "$script")" --count 300
done
exit $status
