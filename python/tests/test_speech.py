"""A Whisper model of a few kilobytes with meaningless text."""

import io
import wave

import numpy as np
import pytest
from cases import CHECKPOINTS

import flambeau

FOLDER = CHECKPOINTS / "speech-whisper"


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    return flambeau.Transcriber(FOLDER / "checkpoint", cache_dir=tmp_path_factory.mktemp("cache"), threads=1)


def samples():
    with wave.open(str(FOLDER / "audio.wav")) as file:
        frames = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        return frames.reshape(-1, file.getnchannels()), file.getframerate()


def test_files_bytes_and_arrays_are_transcribed_alike(whisper):
    path = FOLDER / "audio.wav"
    of_file = whisper.transcribe(path, language="en")
    assert of_file.duration > 0 and isinstance(of_file.text, str)
    assert whisper.transcribe(path.read_bytes(), language="en") == of_file
    frames, rate = samples()
    assert whisper.transcribe(frames, rate=rate, language="en") == of_file
    floats = (frames.astype(np.float32) / 32768).mean(axis=1)
    assert whisper.transcribe(floats, rate=rate, language="en").duration == of_file.duration


def test_segments_are_told_as_they_come(whisper):
    told = []
    transcript = whisper.transcribe(FOLDER / "audio.wav", language="en", on_segment=lambda *segment: told.append(segment))
    assert told == [(segment.start, segment.end, segment.text) for segment in transcript.segments]


def test_an_error_in_the_callback_comes_back(whisper):
    if not whisper.transcribe(FOLDER / "audio.wav", language="en").segments:
        pytest.skip("the model says nothing")
    with pytest.raises(ZeroDivisionError):
        whisper.transcribe(FOLDER / "audio.wav", language="en", on_segment=lambda *_: 1 / 0)


def test_wrong_inputs_are_named(whisper):
    with pytest.raises(flambeau.InputError, match="cannot read nowhere.wav"):
        whisper.transcribe("nowhere.wav")
    with pytest.raises(flambeau.InputError):
        whisper.transcribe(b"no recording")
    with pytest.raises(flambeau.InputError, match="samples are i64"):
        whisper.transcribe(np.zeros(10, np.int64))
    with pytest.raises(flambeau.InputError, match="--beam-size"):
        whisper.transcribe(np.zeros(16000, np.float32), beam_size=99)


def test_silence_gives_no_error(whisper):
    silence = io.BytesIO()
    with wave.open(silence, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(bytes(32000))
    assert whisper.transcribe(silence.getvalue(), language="en", vad=True).duration == pytest.approx(1.0, abs=0.1)
