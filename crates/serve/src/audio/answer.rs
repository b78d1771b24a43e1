//! Transcripts in OpenAI's response formats.

use axum::response::Response;
use flambeau::runners::speech::{Segment, Task, Transcript};
use serde_json::{Value as Json, json};

use super::SpeechUpdate;
use crate::{
    error::Result,
    reply::{self, Events, Frames, ResponseBuilder},
};

/// Value of `response_format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TranscriptFormat {
    Json,
    Text,
    Srt,
    Vtt,
    Verbose,
}

/// A transcript in progress.
#[derive(Debug)]
pub(crate) struct TranscriptAnswer {
    form: TranscriptFormat,
    transcript: Transcript,
    words: bool,
    segments: bool,
}

impl TranscriptAnswer {
    /// Creates an empty transcript. The verbose format lists words or segments on request.
    pub(crate) fn new(form: TranscriptFormat, task: Task, words: bool, segments: bool) -> TranscriptAnswer {
        let transcript = Transcript { language: None, task, seconds: 0.0, segments: Vec::new() };
        TranscriptAnswer { form, transcript, words, segments }
    }

    fn usage(&self) -> Json {
        json!({ "type": "duration", "seconds": self.transcript.seconds.ceil() as u64 })
    }

    fn verbose(&self) -> Json {
        let mut all = self.transcript.to_json();
        let mut words = Vec::new();
        for segment in all["segments"].as_array_mut().into_iter().flatten().filter_map(Json::as_object_mut) {
            words.extend(segment.remove("words").and_then(|words| words.as_array().cloned()).into_iter().flatten());
        }
        if !self.segments {
            all["segments"] = json!([]);
        }
        if self.words {
            all["words"] = words.into();
        }
        if self.transcript.language.is_none() {
            // Clients take it for a text.
            all["language"] = "unknown".into();
        }
        all["usage"] = self.usage();
        all
    }

    /// Appends a transcriber result and returns the new segments.
    fn apply(&mut self, update: SpeechUpdate) -> Result<(bool, &[Segment])> {
        let before = self.transcript.segments.len();
        let mut is_over = false;
        match update {
            SpeechUpdate::Begun | SpeechUpdate::Words(_) => {}
            SpeechUpdate::Segments(segments) => self.transcript.segments.extend(segments),
            SpeechUpdate::Finished { language, seconds } => {
                (self.transcript.language, self.transcript.seconds) = (language, seconds);
                is_over = true;
            }
            SpeechUpdate::Failed(error) => return Err(error),
        }
        Ok((is_over, &self.transcript.segments[before..]))
    }
}

impl ResponseBuilder for TranscriptAnswer {
    type Update = SpeechUpdate;

    fn take(&mut self, update: SpeechUpdate) -> Result<bool> {
        Ok(self.apply(update)?.0)
    }

    fn into_response(self) -> Response {
        match self.form {
            TranscriptFormat::Json => reply::json(&json!({ "text": self.transcript.text(), "usage": self.usage() })),
            TranscriptFormat::Verbose => reply::json(&self.verbose()),
            TranscriptFormat::Text => reply::text(self.transcript.text() + "\n"),
            TranscriptFormat::Srt => reply::text(self.transcript.srt()),
            TranscriptFormat::Vtt => reply::text(self.transcript.vtt()),
        }
    }
}

impl Events for TranscriptAnswer {
    type Update = SpeechUpdate;
    type ResponseBuilder = TranscriptAnswer;

    fn builder(self) -> TranscriptAnswer {
        self
    }

    fn begin(&mut self, _: &mut Frames) {}

    fn update(&mut self, update: SpeechUpdate, frames: &mut Frames) -> Result<bool> {
        let is_first = self.transcript.segments.is_empty();
        let (is_over, new) = self.apply(update)?;
        let text: String = new.iter().map(|segment| segment.text.as_str()).collect();
        let text = if is_first { text.trim_start() } else { &text };
        if !text.is_empty() {
            frames.data(&json!({ "type": "transcript.text.delta", "delta": text }));
        }
        Ok(is_over)
    }

    fn end(&mut self, frames: &mut Frames) {
        frames.data(&json!({ "type": "transcript.text.done", "text": self.transcript.text(), "usage": self.usage() }));
        frames.done();
    }
}
