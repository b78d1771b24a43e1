#!/usr/bin/env bash
# Builds the release archive of a target: the command, manual pages, completions, licences, and a checksum beside it.
# Usage: scripts/release-archive.sh OUT [TARGET]
# TARGET is this machine's by default. Pages and completions are in archives of this machine's target only.
set -euo pipefail
usage() { sed -n 's/^# Usage: /usage: /p' "$0" >&2; exit 2; }
[ $# -eq 1 ] || [ $# -eq 2 ] || usage
mkdir -p "$1"
out=$(cd "$1" && pwd)
host=$(rustc -vV | sed -n 's/^host: //p')
target=${2:-$host}
cd "$(dirname "$0")/.."

cargo build --release --locked -p flambeau-cli --bin flambeau --target "$target"
folder=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/$target/release
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
case $target in *windows*) suffix=.exe ;; *) suffix= ;; esac

name=flambeau-$version-$target
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/$name/man" "$work/$name/completions"
cp "$folder/flambeau$suffix" README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "$work/$name"
case $target in
  *windows*) ;;
  *apple*) strip -x "$work/$name/flambeau" ;;
  *) "${STRIP:-strip}" "$work/$name/flambeau" ;;
esac
# Pages and completions need a command that runs here.
if [ "$target" = "$host" ]; then
  run=$work/$name/flambeau$suffix
  "$run" man > "$work/$name/man/flambeau.1"
  "$run" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' | grep -v '^help$' | while read -r command; do
    "$run" man "$command" > "$work/$name/man/flambeau-$command.1"
  done
  for shell in bash zsh fish elvish powershell; do
    "$run" completions $shell > "$work/$name/completions/flambeau.$shell"
  done
else
  rmdir "$work/$name/man" "$work/$name/completions"
fi

cd "$work"
case $target in
  *windows*) archive=$name.zip && 7z a -bd "$out/$archive" "$name" > "$work/log" ;;
  *)
    archive=$name.tar.gz
    find "$name" -exec touch -h -d @0 {} + 2>/dev/null || find "$name" -exec touch -h -t 197001010000 {} +
    find "$name" -print0 | LC_ALL=C sort -z | tar --null --no-recursion --numeric-owner -T - -cf - | gzip -n9 > "$out/$archive"
    ;;
esac
cd "$out"
if command -v sha256sum > /dev/null; then sha256sum "$archive"; else shasum -a 256 "$archive"; fi > "$archive.sha256"
cat "$archive.sha256"
