//! Kinds of models with their configs.

use crate::{
    encoder,
    spec::DecoderConfig,
    speech::{moonshine, parakeet, voxtral, voxtral_realtime, whisper},
};

/// Kind of a checkpoint's model.
#[derive(Clone, Debug)]
pub(crate) enum Architecture {
    /// From tokens to logits.
    Decoder(DecoderConfig),
    /// From tokens to a vector.
    Encoder(Box<encoder::EncoderConfig>),
    /// From audio to tokens.
    Moonshine(moonshine::MoonshineConfig),
    Parakeet(parakeet::ParakeetConfig),
    Whisper(whisper::WhisperConfig),
    Voxtral(Box<voxtral::VoxtralConfig>),
    VoxtralRealtime(Box<voxtral_realtime::VoxtralRealtimeConfig>),
}

impl Architecture {
    /// The config of the language model.
    pub(crate) fn text_mut(&mut self) -> Option<&mut DecoderConfig> {
        match self {
            Architecture::Decoder(config) => Some(config),
            Architecture::Encoder(_) | Architecture::Moonshine(_) | Architecture::Parakeet(_) | Architecture::Whisper(_) => None,
            Architecture::Voxtral(config) => Some(&mut config.text),
            Architecture::VoxtralRealtime(config) => Some(&mut config.text),
        }
    }

    /// Whether it is a speech model, which has tensors beside the language model.
    pub(crate) fn listens(&self) -> bool {
        !matches!(self, Architecture::Decoder(_) | Architecture::Encoder(_))
    }
}
