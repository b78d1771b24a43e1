//! The methods of a Voxtral's program.

use std::sync::Arc;

use flambeau_audio::LogMel;
use flambeau_runtime::{DimSpec, Engine, LoadOptions, Method, Program, SharedState, ValueSpec};
use flambeau_tensor::Tensor;

use super::{FAMILY, unfit};
use crate::{
    Result,
    speech::{
        Facts, has_methods, inputs,
        text_decoder::{TextDecoder, floats},
    },
};

/// A loaded Voxtral, with the prompt in its caches.
#[derive(Debug)]
pub struct Voxtral {
    encoder: Method,
    text: TextDecoder,
    features: LogMel,
    mels: usize,
    frames: usize,
}

impl Voxtral {
    /// Methods that identify a Voxtral.
    pub(crate) const METHODS: &[&str] = &["audio_encoder", "token_embedding", "text_decoder"];

    /// Whether a program has a Voxtral's methods, of this project's exporter or of ExecuTorch's.
    pub fn is_in(program: &Program) -> bool {
        has_methods(program, Voxtral::METHODS)
    }

    /// Loads a program.
    ///
    /// # Errors
    /// [`crate::Error::NoSpeechModel`] for another program. Other errors if the program cannot be
    /// loaded.
    pub fn load(program: &Program, engine: &Arc<dyn Engine>) -> Result<Voxtral> {
        if !Voxtral::is_in(program) {
            return Err(unfit("it has no methods `audio_encoder`, `token_embedding` and `text_decoder`"));
        }
        let options = LoadOptions { shared: Some(SharedState::default()), ..LoadOptions::default() };
        let encoder = program.method("audio_encoder", engine, &options)?;
        if Facts::of(program, FAMILY).size("delay_tokens").is_ok() {
            return Err(unfit("it is a Voxtral Realtime that listens to whole recordings: export one that streams"));
        }
        let spec = encoder.inputs().first().and_then(ValueSpec::tensor);
        let Some(&[_, DimSpec::Fixed(mels), DimSpec::Fixed(frames)]) = spec.map(|spec| &spec.dims[..]) else {
            return Err(unfit("its encoder does not take windows of one length"));
        };
        let text = TextDecoder::load(program, engine, &options, FAMILY)?;
        Ok(Voxtral { encoder, text, features: LogMel::new(mels), mels, frames })
    }

    pub(in crate::speech) fn methods(&mut self) -> Vec<&mut Method> {
        let mut methods = vec![&mut self.encoder];
        methods.extend(self.text.methods());
        methods
    }

    /// Samples of a window.
    pub fn window(&self) -> usize {
        self.frames * self.features.hop()
    }

    /// Maximum rows in the caches.
    pub fn context(&self) -> usize {
        self.text.context()
    }

    /// Rows in the caches.
    pub fn position(&self) -> usize {
        self.text.position()
    }

    /// The log-mel spectrogram f32 [1, mels, frames] of a window that begins with these samples.
    ///
    /// # Errors
    /// None for programs of this project's exporter.
    pub fn features(&mut self, samples: &[f32]) -> Result<Tensor> {
        let features = self.features.window(samples, self.frames);
        Tensor::from_slice(&features, &[1, self.mels, self.frames]).map_err(|_| unfit("its window is too long"))
    }

    /// Encodes a window to rows [t, hidden] that take the place of embeddings.
    ///
    /// # Errors
    /// The method fails.
    pub fn encode(&mut self, features: Tensor) -> Result<Vec<f32>> {
        let outputs = self.encoder.run(&[inputs::floats(&self.encoder, 0, &features)?])?;
        let rows = floats(outputs.first()).filter(|rows| !rows.is_empty() && rows.len().is_multiple_of(self.text.hidden()));
        rows.ok_or_else(|| unfit("its encoder gives no rows of the text decoder's width"))
    }

    /// Width of the rows.
    pub fn hidden(&self) -> usize {
        self.text.hidden()
    }

    /// Clears the caches and reads a prompt: tokens, the rows of the windows, tokens. Replaces
    /// `logits` with the logits `[V]` of the next token.
    ///
    /// # Errors
    /// A method fails, or the prompt does not fit.
    pub fn begin(&mut self, [head, tail]: [&[u32]; 2], heard: &[f32], logits: &mut Vec<f32>) -> Result<()> {
        self.text.restart();
        let mut rows = self.text.embed(head)?;
        rows.extend_from_slice(heard);
        rows.extend(self.text.embed(tail)?);
        self.text.step(&rows, logits)
    }

    /// Appends a token, and replaces `logits` as [`begin`](Self::begin) does.
    ///
    /// # Errors
    /// A method fails, or the token does not fit.
    pub fn step(&mut self, token: u32, logits: &mut Vec<f32>) -> Result<()> {
        let row = self.text.embed(&[token])?;
        self.text.step(&row, logits)
    }
}
