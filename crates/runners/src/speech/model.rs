//! The model families for transcription.

use std::sync::Arc;

use flambeau_runtime::{Engine, Method, Program};
use flambeau_text::Tokenizer;

use super::{
    Facts, Settings, has_methods,
    moonshine::{Moonshine, MoonshineListener},
    parakeet::{self, LiveParakeet, Parakeet, ParakeetListener},
    transcriber::Listener,
    voxtral::{self, Voxtral, VoxtralListener},
    voxtral_realtime::{self, RealtimeListener, VoxtralRealtime},
    whisper::{self, LiveWhisper, Whisper, WhisperBatch, WhisperListener},
};
use crate::{Error, Result};

/// A loaded speech model. Each family is a variant with its own `Listener`. Programs name their
/// family in `get_model_type`.
#[derive(Debug)]
pub enum SpeechModel {
    Moonshine(Box<Moonshine>),
    Parakeet(Box<Parakeet>),
    Whisper(Box<Whisper>),
    Voxtral(Box<Voxtral>),
    VoxtralRealtime(Box<VoxtralRealtime>),
}

impl SpeechModel {
    /// Whether a program has the methods of a family, or names Parakeet as its family.
    pub fn is_in(program: &Program) -> bool {
        let family = Facts::of(program, "model of speech").text("get_model_type");
        family.is_some_and(|family| family == "parakeet") || METHODS.iter().any(|(_, methods)| has_methods(program, methods))
    }

    /// Loads a program from this project's exporter or from ExecuTorch's. ExecuTorch's Whisper
    /// consists of three programs: see
    /// [`Whisper::load_apart`](super::whisper::Whisper::load_apart).
    ///
    /// # Errors
    /// [`Error::NoSpeechModel`], with the missing methods, if the program belongs to no family.
    /// Other errors if the program cannot be loaded.
    pub fn load(program: &Program, engine: &Arc<dyn Engine>) -> Result<SpeechModel> {
        let family = Facts::of(program, "model of speech").text("get_model_type");
        // ExecuTorch's programs do not name their family.
        Ok(match family.as_deref() {
            Some("moonshine") => SpeechModel::Moonshine(Box::new(Moonshine::load(program, engine)?)),
            Some("parakeet") => SpeechModel::Parakeet(Box::new(Parakeet::load(program, engine)?)),
            _ if Parakeet::is_transducer_in(program) => SpeechModel::Parakeet(Box::new(Parakeet::load(program, engine)?)),
            _ if VoxtralRealtime::is_in(program) => SpeechModel::VoxtralRealtime(Box::new(VoxtralRealtime::load(program, engine)?)),
            _ if Voxtral::is_in(program) => SpeechModel::Voxtral(Box::new(Voxtral::load(program, engine)?)),
            _ if Whisper::is_in(program) => SpeechModel::Whisper(Box::new(Whisper::load(program, engine)?)),
            _ => return Err(lacking(program)),
        })
    }

    /// Whether the model takes [live](Settings::live) sound. Others hear whole windows.
    pub fn hears_live(&self) -> bool {
        match self {
            SpeechModel::Parakeet(_) | SpeechModel::Whisper(_) => true,
            SpeechModel::VoxtralRealtime(model) => model.window().is_none(),
            SpeechModel::Moonshine(_) | SpeechModel::Voxtral(_) => false,
        }
    }

    /// The methods of the model, for measurements.
    pub fn methods(&mut self) -> Vec<&mut Method> {
        match self {
            SpeechModel::Moonshine(model) => model.methods(),
            SpeechModel::Parakeet(model) => model.methods(),
            SpeechModel::Whisper(model) => model.methods(),
            SpeechModel::Voxtral(model) => model.methods(),
            SpeechModel::VoxtralRealtime(model) => model.methods(),
        }
    }

    /// Creates the family's listener for one recording.
    pub(super) fn listener<'a>(&'a mut self, tokenizer: &'a Tokenizer, settings: Settings) -> Result<Box<dyn Listener + 'a>> {
        let (is_live, is_batch) = (settings.live.is_some(), settings.batch > 1);
        Ok(match self {
            SpeechModel::Moonshine(model) => Box::new(MoonshineListener::new(model, tokenizer, &settings)?),
            SpeechModel::Parakeet(model) => match is_live {
                true => Box::new(LiveParakeet::new(model, tokenizer, &settings)?),
                false => Box::new(ParakeetListener::new(model, tokenizer, &settings)?),
            },
            SpeechModel::Whisper(model) => match (is_live, is_batch) {
                (true, _) => Box::new(LiveWhisper::new(model, tokenizer, settings)?),
                (false, true) => Box::new(WhisperBatch::new(model, tokenizer, settings)?),
                (false, false) => Box::new(WhisperListener::new(model, tokenizer, settings)?),
            },
            SpeechModel::Voxtral(model) => Box::new(VoxtralListener::new(model, tokenizer, &settings)?),
            SpeechModel::VoxtralRealtime(model) => Box::new(RealtimeListener::new(model, tokenizer, &settings)?),
        })
    }
}

/// Methods that identify each family.
const METHODS: [(&str, &[&str]); 4] = [
    (whisper::FAMILY, Whisper::METHODS),
    (parakeet::FAMILY, Parakeet::METHODS),
    (voxtral::FAMILY, Voxtral::METHODS),
    (voxtral_realtime::FAMILY, VoxtralRealtime::METHODS),
];

/// The error for an unknown program. It names the methods that the program lacks of the closest
/// family.
fn lacking(program: &Program) -> Error {
    let missing = |methods: &[&str]| -> Vec<String> {
        methods.iter().filter(|name| !has_methods(program, &[name])).map(|name| format!("`{name}`")).collect()
    };
    let closest = METHODS.iter().map(|(family, methods)| (*family, methods.len(), missing(methods)));
    match closest.min_by_key(|(_, all, missing)| (missing.len() == *all, missing.len())) {
        Some((family, all, missing)) if missing.len() < all => {
            Error::NoSpeechModel { family, what: format!("it has no method {}", missing.join(" and no ")) }
        }
        _ => Error::NoSpeechModel {
            family: "model of speech",
            what: "it has none of the methods of a family that transcribes".into(),
        },
    }
}
