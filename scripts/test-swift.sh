#!/usr/bin/env bash
# Builds the Swift package on the library that scripts/install-c.sh installed in PREFIX, and runs its tests.
# Usage: scripts/test-swift.sh PREFIX [ARGUMENTS OF SWIFT TEST]
set -euo pipefail
[ $# -ge 1 ] || { sed -n 's/^# Usage: /usage: /p' "$0" >&2; exit 2; }
prefix=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/../swift"
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
exec swift test -Xlinker -rpath -Xlinker "$prefix/lib" "$@"
