#!/usr/bin/env bash
# Builds the Python package into a virtual environment in target/python, checks its types, and runs its tests. Tests of PyTorch and
# ExecuTorch run where the environment has them: `target/python/bin/pip install torch executorch`. Usage: scripts/test-python.sh [PYTEST ARGUMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."
venv=target/python
if [ ! -x "$venv/bin/python" ]; then
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check 'maturin>=1.9,<2' pytest numpy ml_dtypes mypy
fi
# The profile of the tests, most of which is built already.
rm -rf target/wheels-dev
"$venv/bin/maturin" build --quiet --profile dev --locked --interpreter "$venv/bin/python" --out target/wheels-dev
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps target/wheels-dev/*.whl
"$venv/bin/mypy"
# An MLX of the tests, where there is one.
if [ -x target/mlx/bin/python ]; then export VIRTUAL_ENV="$PWD/target/mlx"; fi
# Outside of the sources, so that the installed package is tested.
"$venv/bin/python" -m pytest -q -p no:cacheprovider --rootdir . python/tests "$@"
