//! The families of models that transcribe.

use std::sync::Arc;

use flambeau_runtime::{Engine, Program};
use flambeau_text::Tokenizer;

use super::{
    Facts, Settings,
    moonshine::{Moonshine, MoonshineListener},
    parakeet::{Parakeet, ParakeetListener},
    transcriber::Listener,
    voxtral::{Voxtral, VoxtralListener},
    voxtral_realtime::{RealtimeListener, VoxtralRealtime},
    whisper::{Whisper, WhisperListener},
};
use crate::Result;

/// A loaded model of speech. A family is a variant, which its programs name in `get_model_type`, and a `Listener`.
#[derive(Debug)]
pub enum SpeechModel {
    Moonshine(Box<Moonshine>),
    Parakeet(Box<Parakeet>),
    Whisper(Box<Whisper>),
    Voxtral(Box<Voxtral>),
    VoxtralRealtime(Box<VoxtralRealtime>),
}

impl SpeechModel {
    /// Whether a program is a model of one of the families.
    pub fn is_in(program: &Program) -> bool {
        let family = Facts::of(program, "model of speech").text("get_model_type");
        let is_known = family.is_some_and(|family| ["moonshine", "parakeet", "whisper"].contains(&family.as_str()));
        is_known || VoxtralRealtime::is_in(program) || Voxtral::is_in(program) || Whisper::is_in(program)
    }

    /// Loads a program that this project exported.
    ///
    /// # Errors
    /// [`Error::NoSpeechModel`](crate::Error::NoSpeechModel) for a program of none of the families; it cannot be loaded.
    pub fn load(program: &Program, engine: &Arc<dyn Engine>) -> Result<SpeechModel> {
        let family = Facts::of(program, "model of speech").text("get_model_type");
        // ExecuTorch's programs do not name their family.
        Ok(match family.as_deref() {
            Some("moonshine") => SpeechModel::Moonshine(Box::new(Moonshine::load(program, engine)?)),
            Some("parakeet") => SpeechModel::Parakeet(Box::new(Parakeet::load(program, engine)?)),
            _ if VoxtralRealtime::is_in(program) => SpeechModel::VoxtralRealtime(Box::new(VoxtralRealtime::load(program, engine)?)),
            _ if Voxtral::is_in(program) => SpeechModel::Voxtral(Box::new(Voxtral::load(program, engine)?)),
            _ => SpeechModel::Whisper(Box::new(Whisper::load(program, engine)?)),
        })
    }

    /// What transcribes one recording with the model.
    pub(super) fn listener<'a>(&'a mut self, tokenizer: &'a Tokenizer, settings: Settings) -> Result<Box<dyn Listener + 'a>> {
        Ok(match self {
            SpeechModel::Moonshine(model) => Box::new(MoonshineListener::new(model, tokenizer, &settings)?),
            SpeechModel::Parakeet(model) => Box::new(ParakeetListener::new(model, tokenizer, &settings)?),
            SpeechModel::Whisper(model) => Box::new(WhisperListener::new(model, tokenizer, settings)?),
            SpeechModel::Voxtral(model) => Box::new(VoxtralListener::new(model, tokenizer, &settings)?),
            SpeechModel::VoxtralRealtime(model) => Box::new(RealtimeListener::new(model, tokenizer, &settings)?),
        })
    }
}
