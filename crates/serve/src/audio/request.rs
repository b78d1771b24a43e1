//! A transcription request.

use flambeau::runners::speech::{Settings, Task};
use serde_json::Value as Json;

use super::answer::{TranscriptAnswer, TranscriptFormat};
use crate::{
    error::{ApiError, Result},
    json::{Fields, wrong},
};

/// Ignored fields.
const HARMLESS: &[&str] = &["chunking_strategy", "user"];

/// A request for a transcript.
#[derive(Debug)]
pub(crate) struct TranscriptionRequest {
    pub(crate) settings: Settings,
    pub(crate) streams: bool,
    pub(crate) answer: TranscriptAnswer,
}

impl TranscriptionRequest {
    /// Parses a form after `model` was taken. All values are strings or lists of strings.
    ///
    /// # Errors
    /// The error names the invalid or unsupported field.
    pub(crate) fn read(mut fields: Fields, task: Task) -> Result<TranscriptionRequest> {
        let form = form(&mut fields)?;
        let (words, segments) = granularities(&mut fields)?;
        if words && form != TranscriptFormat::Verbose {
            let message = "times of words come with `response_format` verbose_json alone";
            return Err(ApiError::value("timestamp_granularities", message));
        }
        let streams = flag(&mut fields, "stream")?;
        if streams && !matches!(form, TranscriptFormat::Json | TranscriptFormat::Text) {
            return Err(ApiError::unsupported("stream", "a stream can be of text or json only"));
        }
        let settings = Settings {
            language: fields.text("language")?.filter(|code| !code.is_empty()),
            task,
            prompt: fields.text("prompt")?.unwrap_or_default(),
            temperatures: temperatures(&mut fields)?,
            words,
            ..Settings::default()
        };
        fields.finish(HARMLESS)?;
        Ok(TranscriptionRequest { settings, streams, answer: TranscriptAnswer::new(form, task, words, segments) })
    }
}

fn form(fields: &mut Fields) -> Result<TranscriptFormat> {
    const NAME: &str = "response_format";
    match fields.text(NAME)?.as_deref() {
        None | Some("json") => Ok(TranscriptFormat::Json),
        Some("text") => Ok(TranscriptFormat::Text),
        Some("srt") => Ok(TranscriptFormat::Srt),
        Some("vtt") => Ok(TranscriptFormat::Vtt),
        Some("verbose_json") => Ok(TranscriptFormat::Verbose),
        Some(other) => Err(wrong(NAME, "json, text, srt, verbose_json or vtt", &other.into())),
    }
}

/// Whether word times and segment times are requested.
fn granularities(fields: &mut Fields) -> Result<(bool, bool)> {
    const NAME: &str = "timestamp_granularities";
    let asked = match fields.take(NAME) {
        None => return Ok((false, true)),
        Some(Json::Array(list)) => list,
        Some(one) => vec![one],
    };
    let (mut words, mut segments) = (false, false);
    for value in &asked {
        match value.as_str() {
            Some("word") => words = true,
            Some("segment") => segments = true,
            _ => return Err(wrong(NAME, "word or segment", value)),
        }
    }
    Ok((words, segments))
}

fn flag(fields: &mut Fields, name: &str) -> Result<bool> {
    match fields.text(name)?.as_deref() {
        None => Ok(false),
        Some(text) if text.eq_ignore_ascii_case("true") => Ok(true),
        Some(text) if text.eq_ignore_ascii_case("false") => Ok(false),
        Some(other) => Err(wrong(name, "true or false", &other.into())),
    }
}

/// Fallback temperatures from the requested one upward. Greedy decoding (0) comes first by default.
fn temperatures(fields: &mut Fields) -> Result<Vec<f32>> {
    const NAME: &str = "temperature";
    let Some(text) = fields.text(NAME)? else { return Ok(Settings::default().temperatures) };
    let first = text.trim().parse::<f32>().ok().filter(|value| (0.0..=1.0).contains(value));
    let first = first.ok_or_else(|| wrong(NAME, "a number from 0 to 1", &text.into()))?;
    let above = Settings::default().temperatures.into_iter().filter(|&value| value > first);
    Ok(std::iter::once(first).chain(above).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, Json)]) -> Result<TranscriptionRequest> {
        let map = pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        TranscriptionRequest::read(Fields::of(map), Task::Transcribe)
    }

    #[test]
    fn a_temperature_is_where_the_ladder_begins() {
        let ladder = |text: &str| read(&[("temperature", text.into())]).unwrap().settings.temperatures;
        assert_eq!(ladder("0"), Settings::default().temperatures);
        assert_eq!(ladder("0.5"), [0.5, 0.6, 0.8, 1.0]);
    }

    #[test]
    fn fields_that_are_wrong_are_named() {
        for (name, value) in [
            ("response_format", "xml".into()),
            ("temperature", "2".into()),
            ("temperature", "NaN".into()),
            ("stream", "perhaps".into()),
            ("timestamp_granularities", Json::Array(vec!["word".into(), "letter".into()])),
            ("timestamp_granularities", "word".into()),
            ("include", Json::Array(vec!["logprobs".into()])),
            ("known_speaker_names", "me".into()),
        ] {
            let error = read(&[(name, value.clone())]).unwrap_err();
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(name)), "{value}: {error}");
        }
        let error = read(&[("stream", "true".into()), ("response_format", "srt".into())]).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("stream"));
    }
}
