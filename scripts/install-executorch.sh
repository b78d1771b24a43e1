#!/usr/bin/env bash
# Unpacks ExecuTorch's libraries and headers into target/executorch, where the tests of the C interface look for them. Without pip's
# index it says so, and those tests are ignored. Usage: scripts/install-executorch.sh [version specifier]
set -euo pipefail
cd "$(dirname "$0")/.."
specifier=${1:-==1.5.1}
folder=target/executorch
if ! python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: --upgrade --target "$folder" \
  "executorch$specifier"; then
  echo "skipped: pip cannot install executorch$specifier" >&2
  rm -rf "$folder"
fi
