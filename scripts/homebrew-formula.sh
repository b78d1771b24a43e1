#!/usr/bin/env bash
# Prints the Homebrew formula for the release archives in a folder.
# Usage: scripts/homebrew-formula.sh FOLDER
set -euo pipefail
usage() { sed -n 's/^# Usage: /usage: /p' "$0" >&2; exit 2; }
[ $# -eq 1 ] || usage
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
url=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

# Prints the lines of one target. Fails without its checksum.
source_of() {
  local archive=flambeau-$version-$1.tar.gz
  printf '      url "%s/releases/download/v%s/%s"\n' "$url" "$version" "$archive"
  printf '      sha256 "%s"\n' "$(cut -d ' ' -f 1 "$folder/$archive.sha256")"
}

cat << EOF
class Flambeau < Formula
  desc "Compile, run and serve PyTorch programs and language models"
  homepage "$url"
  version "$version"
  license any_of: ["MIT", "Apache-2.0"]

  on_macos do
    on_arm do
$(source_of aarch64-apple-darwin)
    end
    on_intel do
$(source_of x86_64-apple-darwin)
    end
  end
  on_linux do
    on_arm do
$(source_of aarch64-unknown-linux-gnu)
    end
    on_intel do
$(source_of x86_64-unknown-linux-gnu)
    end
  end

  def install
    bin.install "flambeau"
    man1.install Dir["man/*.1"]
    bash_completion.install "completions/flambeau.bash" => "flambeau"
    zsh_completion.install "completions/flambeau.zsh" => "_flambeau"
    fish_completion.install "completions/flambeau.fish"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/flambeau --version")
  end
end
EOF
