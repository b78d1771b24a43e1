#!/usr/bin/env bash
# Installs MLX's CPU build into target/mlx, where the tests of the MLX engine look for it. Without pip's index it says so, and those
# tests skip. Usage: scripts/install-mlx.sh [version specifier]
set -euo pipefail
cd "$(dirname "$0")/.."
specifier=${1:->=0.32.4,<0.33}
venv=target/mlx
case $(uname -s) in Linux) package=mlx[cpu] ;; *) package=mlx ;; esac

if [ ! -x "$venv/bin/python" ]; then
  python3 -m venv "$venv" || { echo "skipped: python3 has no venv module" >&2; rm -rf "$venv"; exit 0; }
fi
if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$package$specifier"; then
  echo "skipped: pip cannot install $package$specifier" >&2
  rm -rf "$venv"
fi
