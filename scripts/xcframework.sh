#!/usr/bin/env bash
# Lays out the XCFramework of the Swift package from static libraries of crates/capi.
# Usage: scripts/xcframework.sh [--interfaces FOLDER] OUTPUT.xcframework TRIPLE=LIBRARY.a [TRIPLE=LIBRARY.a ...]
# A triple is Rust's: aarch64-apple-darwin, aarch64-apple-ios or aarch64-apple-ios-sim. The libraries come from
#   cargo rustc --release --locked -p flambeau-capi --lib --crate-type staticlib --target TRIPLE
# With --interfaces, the part for macOS has the interfaces to MLX that scripts/mlx-interfaces.sh left in FOLDER, in a folder `mlx`.
set -euo pipefail
fail() { echo "xcframework.sh: $1" >&2; exit 2; }
interfaces=
if [ "${1:-}" = --interfaces ] && [ $# -ge 2 ]; then
  interfaces=$2
  [ -n "$(find "$interfaces" -name 'libflambeau_mlx-*.dylib')" ] || fail "\`$interfaces\` has no interface to MLX"
  shift 2
fi
[ $# -ge 2 ] || { sed -n 's/^# Usage: /usage: /p' "$0" >&2; exit 2; }
output=$1
shift
case $output in *.xcframework) ;; *) fail "\`$output\` does not end in .xcframework" ;; esac
[ ! -e "$output" ] || fail "\`$output\` exists"
header=$(cd "$(dirname "$0")/.." && pwd)/crates/capi/include/flambeau.h

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
entries=
for pair in "$@"; do
  triple=${pair%%=*} library=${pair#*=} variant=
  case $triple in
    aarch64-apple-darwin) identifier=macos-arm64 platform=macos ;;
    aarch64-apple-ios) identifier=ios-arm64 platform=ios ;;
    aarch64-apple-ios-sim) identifier=ios-arm64-simulator platform=ios variant=simulator ;;
    *) fail "the triple \`$triple\` is unknown" ;;
  esac
  [ "$(head -c 7 "$library")" = '!<arch>' ] || fail "\`$library\` is no static library"
  [ ! -e "$work/$identifier" ] || fail "there are two libraries for $triple"
  # Module maps of several frameworks would meet in one folder of headers, so this one has a folder of its own.
  headers=$work/$identifier/Headers/CFlambeau
  mkdir -p "$headers"
  cp "$library" "$work/$identifier/libflambeau.a"
  if [ -n "$interfaces" ] && [ "$platform" = macos ]; then
    mkdir "$work/$identifier/mlx"
    cp "$interfaces"/libflambeau_mlx-*.dylib "$work/$identifier/mlx"
  fi
  cp "$header" "$headers/flambeau.h"
  printf 'module CFlambeau [system] {\n  header "flambeau.h"\n  export *\n}\n' >"$headers/module.modulemap"
  entries+="
    <dict>
      <key>HeadersPath</key><string>Headers</string>
      <key>LibraryIdentifier</key><string>$identifier</string>
      <key>LibraryPath</key><string>libflambeau.a</string>
      <key>SupportedArchitectures</key><array><string>arm64</string></array>
      <key>SupportedPlatform</key><string>$platform</string>${variant:+
      <key>SupportedPlatformVariant</key><string>$variant</string>}
    </dict>"
done

cat >"$work/Info.plist" <<PLIST
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>AvailableLibraries</key>
  <array>$entries
  </array>
  <key>CFBundlePackageType</key><string>XFWK</string>
  <key>XCFrameworkFormatVersion</key><string>1.0</string>
</dict>
</plist>
PLIST
mkdir -p "$(dirname "$output")"
chmod 755 "$work"
cp -R "$work" "$output"
echo "made $output" >&2
