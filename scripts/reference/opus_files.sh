#!/usr/bin/env bash
# Writes the recordings of crates/audio/tests/opus: half a second of a tone of 440 Hz, coded as Opus by ffmpeg's libopus.
# Usage: scripts/reference/opus_files.sh
set -euo pipefail
cd "$(dirname "$0")/../../crates/audio/tests/opus"

# encode NAME CHANNELS OPTION...: a tone of amplitude 0.5, as a file of that name.
encode() {
  local name=$1 channels=$2
  shift 2
  ffmpeg -v error -y -f lavfi -i "aevalsrc=0.5*sin(2*PI*440*t):s=48000:d=0.5" -ac "$channels" -c:a libopus -fflags +bitexact \
    -flags:a +bitexact "$@" "$name"
}
encode speech.ogg 1 -b:a 16k -application voip
encode music.ogg 2 -b:a 32k -application audio
encode low.ogg 1 -b:a 8k -application lowdelay -frame_duration 10
encode music.webm 2 -b:a 32k -application audio
