#!/usr/bin/env bash
# Installs the C and C++ interface into a folder: libraries, headers, and files for pkg-config and CMake.
# Usage: scripts/install-c.sh PREFIX [--from FOLDER]
# Builds a shared and a static library in release mode. With --from it copies libflambeau_capi.so (.dylib) from FOLDER, and
# libflambeau_capi.a if present. The installed folder is relocatable.
set -euo pipefail
usage() { sed -n 's/^# Usage: /usage: /p' "$0" >&2; exit 2; }
[ $# -eq 1 ] || { [ $# -eq 3 ] && [ "$2" = --from ]; } || usage
mkdir -p "$1"
prefix=$(cd "$1" && pwd)
[ $# -eq 1 ] || from=$(cd "$3" && pwd)
cd "$(dirname "$0")/.."
crate=crates/capi

if [ -z "${from:-}" ]; then
  cargo rustc --release --locked -p flambeau-capi --lib --crate-type cdylib,staticlib
  from=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release
fi

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
url=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
abi=$(sed -n 's/^#define FLB_ABI_VERSION //p' $crate/include/flambeau.h)
case $(uname -s) in
  Darwin) built=libflambeau_capi.dylib name=libflambeau.dylib soname=libflambeau.$abi.dylib shared=libflambeau.$version.dylib
          soname_at=@rpath/$soname static_libs="-framework CoreFoundation -framework Security -liconv -lm" ;;
  *) built=libflambeau_capi.so name=libflambeau.so soname=libflambeau.so.$abi shared=libflambeau.so.$version
     soname_at=$soname static_libs="-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc" ;;
esac

install -d "$prefix/include" "$prefix/lib/pkgconfig" "$prefix/lib/cmake/flambeau"
install -m 644 $crate/include/flambeau.h $crate/include/flambeau.hpp "$prefix/include"
install -d "$prefix/share/flambeau/executorch"
install -m 644 $crate/executorch/CMakeLists.txt $crate/executorch/mlx_backend.cpp $crate/executorch/values.h "$prefix/share/flambeau/executorch"
install -m 755 "$from/$built" "$prefix/lib/$shared"
ln -sf "$shared" "$prefix/lib/$soname"
ln -sf "$soname" "$prefix/lib/$name"
if [ -f "$from/libflambeau_capi.a" ]; then
  install -m 644 "$from/libflambeau_capi.a" "$prefix/lib/libflambeau.a"
fi

# Writes a file from its template.
fill() {
  sed -e "s|@VERSION@|$version|g" -e "s|@MAJOR_MINOR@|${version%.*}|g" -e "s|@URL@|$url|g" -e "s|@SHARED@|$shared|g" \
    -e "s|@SONAME@|$soname_at|g" -e "s|@STATIC_LIBS@|$static_libs|g" "$crate/package/$1.in" >"$2/$1"
}
fill flambeau.pc "$prefix/lib/pkgconfig"
fill flambeau-config.cmake "$prefix/lib/cmake/flambeau"
fill flambeau-config-version.cmake "$prefix/lib/cmake/flambeau"
echo "installed flambeau $version (binary interface $abi) in $prefix" >&2
