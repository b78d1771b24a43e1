#!/usr/bin/env bash
# Runs ExecuTorch's own MLX operator tests, unmodified, against Flambeau's op_test_runner.
# ExecuTorch exports and lowers every configuration to a .pte file, our engine runs it, and ExecuTorch's code compares the
# result with PyTorch's. Needs Python 3.11 or 3.12 and about 6 GB for PyTorch and ExecuTorch (a virtual environment under target/).
# Usage: scripts/executorch_harness.sh [TEST...]      a test's name ("add") or a configuration's ("add_scalar"); default: all
set -euo pipefail
cd "$(dirname "$0")/.."
home=$PWD/target/executorch-harness
python=$home/venv/bin/python
stubs=$PWD/scripts/reference/stubs
log=$home/log.txt
jobs=$(nproc)

say() { printf '== %s\n' "$*" >&2; }

say "building op_test_runner (release)"
cargo build --release --locked -p flambeau-cli --bin op_test_runner

mkdir -p "$home"
if [ ! -x "$python" ]; then
  say "installing executorch 1.5.1, torch 2.15.0 and transformers 4.57.1 into $home/venv (minutes, about 6 GB)"
  python3 -m venv "$home/venv"
  "$python" -m pip install --quiet --disable-pip-version-check torch==2.15.0 executorch==1.5.1 torchao==0.18.0 transformers==4.57.1 pytest
fi

# The wheel leaves out the modules that its build generates from the schema; its generator writes them, then fails on a
# template that the wheel leaves out too.
package=$("$python" -c 'import importlib.util as u; print(u.find_spec("executorch").submodule_search_locations[0])')
if [ ! -e "$package/backends/mlx/serialization/_generated_serializers.py" ]; then
  say "generating the serializers that the wheel lacks"
  PATH="$home/venv/bin:$PATH" "$python" "$package/backends/mlx/serialization/generate.py" > "$home/generate.txt" 2>&1 || true
fi
if [ ! -e "$package/backends/mlx/_generated_inspector.py" ]; then
  "$python" -c 'from executorch.backends.mlx.serialization import generate as g
g.GENERATED_INSPECTOR.write_text(g.generate_inspector(g.parse_fbs(g.SCHEMA_FBS)))'
fi

# The harness looks for its runner below a source tree's build folder, and takes the current folder for that tree.
mkdir -p "$home/tree/backends" "$home/tree/cmake-out/backends/mlx/test"
touch "$home/tree/CMakeLists.txt"
ln -sf "$PWD/target/release/op_test_runner" "$home/tree/cmake-out/backends/mlx/test/op_test_runner"

say "running ${*:-all configurations} with $jobs workers; everything printed goes to $log"
cd "$home/tree"
set +e
PYTHONPATH=$stubs OMP_NUM_THREADS=1 "$python" -m executorch.backends.mlx.test.run_all_tests --parallel "$jobs" --max-tasks-per-worker 100 "$@" > "$log" 2>&1
status=$?
set -e
PYTHONPATH=$stubs "$python" -m executorch.backends.mlx.test.run_all_tests --clean "$@" > /dev/null 2>&1 || true
grep -A1 '✗ FAILED' "$log" | grep -v '^--' | head -60 || true
sed -n '/^TEST SUMMARY/,$p' "$log" | grep -E '^(Passed|Failed)' || { say "the harness did not finish; the end of its log:"; tail -20 "$log" >&2; exit 1; }
exit "$status"
