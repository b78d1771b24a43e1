#!/usr/bin/env bash
# Looks for misspelled words. Uses the command `typos`, or installs it from PyPI into target/typos. Usage: scripts/check-typos.sh
set -euo pipefail
cd "$(dirname "$0")/.."
typos=$(command -v typos || echo target/typos/bin/typos)
if ! command -v "$typos" > /dev/null; then
  { python3 -m venv target/typos && target/typos/bin/pip install --quiet --disable-pip-version-check "typos==1.52.*"; } || {
    echo "left out, typos cannot be installed"
    exit 0
  }
fi
"$typos"
