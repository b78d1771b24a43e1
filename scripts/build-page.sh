#!/usr/bin/env bash
# Bundles the chat page from crates/serve/page/src into crates/serve/page/dist, which is committed: building Flambeau needs no npm.
# With --check the bundle is made elsewhere and compared with the committed one. The versions in package-lock.json are exact. After a change
# of package.json, write it anew: npm install --package-lock-only --omit-lockfile-registry-resolved --prefix crates/serve/page. Usage: scripts/build-page.sh [--check]
set -euo pipefail
cd "$(dirname "$0")/.."
page=crates/serve/page
made=target/page
mkdir -p "$made"
if ! cmp -s "$page/package-lock.json" "$made/package-lock.json" || [ ! -d "$made/node_modules/esbuild" ]; then
  cp "$page/package.json" "$page/package-lock.json" "$made"
  if ! npm ci --silent --no-audit --no-fund --prefix "$made"; then
    rm -rf "$made"
    [ "${1:-}" = --check ] || exit 1
    echo "skipped: npm cannot install the page's packages" >&2
    exit 0
  fi
fi
ln -sfn "../../../target/page/node_modules" "$page/node_modules"
trap 'rm -f "$page/node_modules"' EXIT
"$made/node_modules/.bin/tsc" -p "$page/tsconfig.json"
if [ "${1:-}" = --check ]; then
  node "$page/build.mjs" "$made" "$made/dist" "$made/NOTICE"
  diff -r "$page/dist" "$made/dist"
  diff crates/serve/NOTICE "$made/NOTICE"
else
  node "$page/build.mjs" "$made" "$page/dist" crates/serve/NOTICE
fi
