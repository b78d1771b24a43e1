"""Speech transcription."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from . import _native
from ._flags import engine_flags, flags


class Word(NamedTuple):
    """A word with its times in seconds."""

    text: str
    start: float
    end: float


class Segment(NamedTuple):
    """A stretch of speech with its times in seconds."""

    text: str
    start: float
    end: float
    #: Empty unless requested.
    words: list[Word]


class Transcript(NamedTuple):
    """The transcript of a recording."""

    text: str
    #: Language code, if the model distinguishes languages.
    language: str | None
    #: Length of the transcribed audio in seconds.
    duration: float
    segments: list[Segment]

    @property
    def words(self) -> list[Word]:
        """All words, if requested."""
        return [word for segment in self.segments for word in segment.words]


class Transcriber:
    """A speech model: Whisper, Parakeet, Moonshine or Voxtral.

    ``model`` is a program, a folder or file of weights, or a name on the Hugging Face hub, as for
    ``flambeau transcribe``.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        engine: str = "cpu",
        threads: int | None = None,
        device: str | None = None,
        tokenizer: str | os.PathLike[str] | None = None,
        dtype: str | None = None,
        qlinear: str | None = None,
        group_size: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self._name = os.fspath(model)
        options = {
            "model": self._name,
            "threads": threads,
            "tokenizer": tokenizer,
            "dtype": dtype,
            "qlinear": qlinear,
            "group_size": group_size,
            "cache_dir": cache_dir,
        }
        self._model = _native.SpeechModel(flags(options), engine_flags(engine, threads, device))

    def transcribe(
        self,
        recording: str | os.PathLike[str] | bytes | Any,
        *,
        rate: int = 16000,
        language: str | None = None,
        translate: bool = False,
        word_timestamps: bool = False,
        prompt: str | None = None,
        hotwords: str | None = None,
        beam_size: int | None = None,
        vad: bool = False,
        on_segment: Callable[[float, float, str], object] | None = None,
    ) -> Transcript:
        """Transcribes a file, the bytes of a file, or an array of samples.

        Arrays have the shape [samples] or [samples, channels], and hold floats from -1 to 1 or
        integers, at ``rate`` samples per second. With ``word_timestamps``, segments have words with
        times. ``on_segment`` is called with the start, end and text of each finished segment. The
        other options are those of ``flambeau transcribe``.
        """
        options = flags(
            {
                "language": language,
                "translate": translate,
                "word_timestamps": word_timestamps,
                "prompt": prompt,
                "hotwords": hotwords,
                "beam_size": beam_size,
                "vad": vad,
            }
        )
        found = json.loads(self._model.transcribe(recording, rate, options, on_segment))
        segments = [
            Segment(
                text=segment["text"].strip(),
                start=segment["start"],
                end=segment["end"],
                words=[Word(word["word"].strip(), word["start"], word["end"]) for word in segment["words"]],
            )
            for segment in found["segments"]
        ]
        return Transcript(found["text"], found["language"], found["duration"], segments)

    def __repr__(self) -> str:
        return f"<Transcriber {self._name}>"
