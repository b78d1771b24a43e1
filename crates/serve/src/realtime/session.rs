//! Session settings.

use flambeau::runners::speech::Settings;
use serde_json::{Map, Value as Json, json};

use super::{sound::Format, turns::Detection};
use crate::{
    error::{ApiError, Result},
    ids::unique_id,
    json::{Fields, wrong},
};

/// Supported sample rates of 16-bit audio, in Hz.
const RATES: std::ops::RangeInclusive<u64> = 8000..=48_000;

/// Names of formats in the beta protocol.
const BETA_FORMATS: [(&str, Format); 3] =
    [("pcm16", Format::Pcm(24_000)), ("g711_ulaw", Format::Mulaw), ("g711_alaw", Format::Alaw)];

/// Seconds of audio between two hypotheses.
const HYPOTHESES: f64 = 1.0;

#[derive(Clone, Debug)]
pub(super) struct Session {
    id: String,
    /// Whether the client speaks the beta protocol.
    pub(super) is_beta: bool,
    pub(super) format: Format,
    pub(super) model: Option<String>,
    language: Option<String>,
    prompt: String,
    /// Turn detection; `None` if the client commits turns.
    pub(super) detection: Option<Detection>,
}

impl Session {
    /// OpenAI's default settings.
    pub(super) fn new(model: Option<String>, is_beta: bool) -> Session {
        let (id, format, detection) = (unique_id("sess_"), Format::Pcm(24_000), Some(Detection::default()));
        Session { id, is_beta, format, model, language: None, prompt: String::new(), detection }
    }

    /// Settings for the transcriber.
    pub(super) fn settings(&self) -> Settings {
        let (language, prompt) = (self.language.clone(), self.prompt.clone());
        Settings { language, prompt, live: Some(HYPOTHESES), ..Settings::default() }
    }

    /// Applies an update to the session.
    ///
    /// # Errors
    /// The error names the invalid or unsupported setting.
    pub(super) fn updated(mut self, update: Map<String, Json>) -> Result<Session> {
        let mut fields = Fields::of(update);
        match fields.text("type")?.as_deref() {
            None | Some("transcription") => {}
            Some(other) => return Err(wrong("type", "transcription", &other.into()).inside("session")),
        }
        let audio = fields.object("audio")?.unwrap_or_default();
        fields.finish(&["include", "id", "object", "expires_at"]).map_err(|error| error.inside("session"))?;
        let mut audio = Fields::of(audio);
        let input = audio.object("input")?.unwrap_or_default();
        audio.finish(&["output"]).map_err(|error| error.inside("session.audio"))?;
        self.set(input).map_err(|error| error.inside("session.audio.input"))?;
        self.is_beta = false;
        Ok(self)
    }

    /// Applies an update in the beta's form.
    ///
    /// # Errors
    /// As [`updated`](Self::updated).
    pub(super) fn updated_in_beta(mut self, mut update: Map<String, Json>) -> Result<Session> {
        let inside = |error: ApiError| error.inside("session");
        self.detect(update.remove("turn_detection")).map_err(inside)?;
        let mut fields = Fields::of(update);
        if let Some(name) = fields.text("input_audio_format").map_err(inside)? {
            let found = BETA_FORMATS.into_iter().find(|(known, _)| *known == name);
            let wrong = || wrong("input_audio_format", "pcm16, g711_ulaw or g711_alaw", &name.as_str().into());
            self.format = found.ok_or_else(wrong).map_err(inside)?.1;
        }
        if let Some(given) = fields.object("input_audio_transcription").map_err(inside)? {
            let place = "session.input_audio_transcription";
            self.transcription(Fields::of(given)).map_err(|error| error.inside(place))?;
        }
        fields.finish(&["input_audio_noise_reduction", "include", "id", "object", "expires_at", "modalities"]).map_err(inside)?;
        self.is_beta = true;
        Ok(self)
    }

    /// Changes the detection of turns: `null` turns it off, and no value leaves it.
    fn detect(&mut self, given: Option<Json>) -> Result<()> {
        match given {
            None => {}
            Some(Json::Null) => self.detection = None,
            Some(Json::Object(given)) => self.detection = Some(Detection::read(given)?),
            Some(other) => return Err(wrong("turn_detection", "an object or null", &other)),
        }
        Ok(())
    }

    fn set(&mut self, mut input: Map<String, Json>) -> Result<()> {
        self.detect(input.remove("turn_detection"))?;
        let mut fields = Fields::of(input);
        if let Some(format) = fields.object("format")? {
            self.format = format_of(Fields::of(format)).map_err(|error| error.inside("format"))?;
        }
        if let Some(given) = fields.object("transcription")? {
            self.transcription(Fields::of(given)).map_err(|error| error.inside("transcription"))?;
        }
        fields.finish(&["noise_reduction"])
    }

    fn transcription(&mut self, mut fields: Fields) -> Result<()> {
        self.model = fields.text("model")?.or_else(|| self.model.take());
        self.language = fields.text("language")?.filter(|language| !language.is_empty());
        self.prompt = fields.text("prompt")?.unwrap_or_default();
        fields.finish(&["delay"])
    }

    /// The session in the format of the client's protocol.
    pub(super) fn to_json(&self) -> Json {
        let format = match self.format {
            Format::Pcm(rate) => json!({ "type": "audio/pcm", "rate": rate }),
            Format::Mulaw => json!({ "type": "audio/pcmu" }),
            Format::Alaw => json!({ "type": "audio/pcma" }),
        };
        let transcription = json!({ "model": self.model, "language": self.language, "prompt": self.prompt });
        let detection = self.detection.map(|detection| detection.to_json());
        if self.is_beta {
            let format = BETA_FORMATS.into_iter().find(|(_, format)| *format == self.format);
            return json!({
                "id": self.id,
                "object": "realtime.transcription_session",
                "input_audio_format": format.map_or("pcm16", |(name, _)| name),
                "input_audio_transcription": transcription,
                "turn_detection": detection,
                "input_audio_noise_reduction": null,
                "include": null,
            });
        }
        let input =
            json!({ "format": format, "transcription": transcription, "turn_detection": detection, "noise_reduction": null });
        json!({
            "id": self.id,
            "object": "realtime.transcription_session",
            "type": "transcription",
            "audio": { "input": input },
            "include": null,
        })
    }
}

fn format_of(mut fields: Fields) -> Result<Format> {
    let kind = fields.text("type")?.unwrap_or_default();
    let rate = fields.count("rate", RATES)?;
    fields.finish(&[])?;
    match kind.as_str() {
        "audio/pcm" => Ok(Format::Pcm(rate.map_or(24_000, |rate| rate as u32))),
        "audio/pcmu" => Ok(Format::Mulaw),
        "audio/pcma" => Ok(Format::Alaw),
        _ => Err(wrong("type", "audio/pcm, audio/pcmu or audio/pcma", &kind.into())),
    }
}

impl Detection {
    fn read(given: Map<String, Json>) -> Result<Detection> {
        let inside = |error: ApiError| error.inside("turn_detection");
        let mut fields = Fields::of(given);
        match fields.text("type").map_err(inside)?.as_deref() {
            Some("server_vad") => {}
            other => return Err(inside(wrong("type", "server_vad", &other.into()))),
        }
        let usual = Detection::default();
        let prefix = fields.count("prefix_padding_ms", 0..=5000).map_err(inside)?;
        let silence = fields.count("silence_duration_ms", 100..=10_000).map_err(inside)?;
        // The detector finds its own threshold above the noise.
        fields.finish(&["threshold", "create_response", "interrupt_response", "idle_timeout_ms"]).map_err(inside)?;
        Ok(Detection {
            prefix_ms: prefix.map_or(usual.prefix_ms, |ms| ms as u64),
            silence_ms: silence.map_or(usual.silence_ms, |ms| ms as u64),
        })
    }

    fn to_json(self) -> Json {
        json!({ "type": "server_vad", "threshold": 0.5, "prefix_padding_ms": self.prefix_ms, "silence_duration_ms": self.silence_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(input: Json) -> Result<Session> {
        let update = json!({ "type": "transcription", "audio": { "input": input } });
        Session::new(None, false).updated(update.as_object().unwrap().clone())
    }

    #[test]
    fn settings_that_are_wrong_are_named() {
        for (input, param) in [
            (json!({ "format": { "type": "audio/mp3" } }), "session.audio.input.format.type"),
            (json!({ "format": { "type": "audio/pcm", "rate": 100 } }), "session.audio.input.format.rate"),
            (json!({ "turn_detection": { "type": "semantic_vad" } }), "session.audio.input.turn_detection.type"),
            (json!({ "turn_detection": 1 }), "session.audio.input.turn_detection"),
            (json!({ "transcription": { "voice": "x" } }), "session.audio.input.transcription.voice"),
            (json!({ "gain": 2 }), "session.audio.input.gain"),
        ] {
            assert_eq!(update(input.clone()).unwrap_err().param.as_deref(), Some(param), "{input}");
        }
    }

    #[test]
    fn the_beta_has_other_names() {
        let update = |update: Json| Session::new(None, true).updated_in_beta(update.as_object().unwrap().clone());
        let given = json!({
            "input_audio_format": "g711_ulaw",
            "input_audio_transcription": { "model": "m", "language": "de", "prompt": "" },
            "turn_detection": null,
            "input_audio_noise_reduction": { "type": "near_field" },
        });
        let session = update(given.clone()).unwrap();
        assert_eq!((session.format, session.detection), (Format::Mulaw, None));
        let json = session.to_json();
        for key in ["input_audio_format", "input_audio_transcription", "turn_detection"] {
            assert_eq!(json[key], given[key]);
        }
        for (wrong, param) in [
            (json!({ "input_audio_format": "mp3" }), "session.input_audio_format"),
            (json!({ "input_audio_transcription": { "voice": 1 } }), "session.input_audio_transcription.voice"),
            (json!({ "turn_detection": { "type": "x" } }), "session.turn_detection.type"),
            (json!({ "audio": {} }), "session.audio"),
        ] {
            assert_eq!(update(wrong.clone()).unwrap_err().param.as_deref(), Some(param), "{wrong}");
        }
    }

    #[test]
    fn an_update_leaves_what_it_does_not_name() {
        let session = update(json!({ "turn_detection": null, "format": { "type": "audio/pcma" } })).unwrap();
        assert_eq!((session.detection, session.format.rate()), (None, 8000));
        let input = json!({ "transcription": { "model": "m", "language": "de" } });
        let session = session.updated(json!({ "audio": { "input": input } }).as_object().unwrap().clone()).unwrap();
        assert_eq!((session.detection, session.format), (None, Format::Alaw));
        assert_eq!(session.to_json()["audio"]["input"]["transcription"]["language"], "de");
    }
}
