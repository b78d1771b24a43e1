//! The methods of a Moonshine's program.

use std::sync::Arc;

use flambeau_runtime::{Engine, LoadOptions, Method, Program, SharedState, Value};
use flambeau_tensor::Tensor;

use super::{FAMILY, unfit};
use crate::{
    Result, logits,
    speech::{
        Facts,
        inputs::{ids, positions},
    },
};

/// A loaded Moonshine, with its current window and the tokens in its caches.
#[derive(Debug)]
pub struct Moonshine {
    encoder: Method,
    decoder: Method,
    least_samples: usize,
    most_samples: usize,
    context: usize,
    /// The begin token and the end tokens of a text.
    start: u32,
    ends: Vec<u32>,
    /// Positions of the window.
    heard: usize,
    position: usize,
}

impl Moonshine {
    /// Loads a program that this project exported.
    ///
    /// # Errors
    /// [`Error::NoSpeechModel`](crate::Error::NoSpeechModel) for another program. Other errors if
    /// the program cannot be loaded.
    pub fn load(program: &Program, engine: &Arc<dyn Engine>) -> Result<Moonshine> {
        let facts = Facts::of(program, FAMILY);
        // The methods share a state, because the decoder reads what the encoder writes.
        let options = LoadOptions { shared: Some(SharedState::default()), ..LoadOptions::default() };
        Ok(Moonshine {
            encoder: program.method("encoder", engine, &options)?,
            decoder: program.method("decoder", engine, &options)?,
            least_samples: facts.size("get_min_samples")?,
            most_samples: facts.size("get_max_samples")?,
            context: facts.size("get_max_seq_len")?,
            start: facts.id("get_bos_id")?,
            ends: facts.ids("get_eos_ids"),
            heard: 0,
            position: 0,
        })
    }

    pub(in crate::speech) fn methods(&mut self) -> Vec<&mut Method> {
        vec![&mut self.encoder, &mut self.decoder]
    }

    /// Maximum samples of a window.
    pub fn window(&self) -> usize {
        self.most_samples
    }

    /// Tokens that the caches hold.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Token that begins a text.
    pub fn start(&self) -> u32 {
        self.start
    }

    /// Whether a token ends a text.
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }

    /// Encodes a window, and forgets the text of the previous one. Returns the encoder's last
    /// hidden state [1, positions, width]. Short input is padded with silence; samples beyond
    /// [`window`](Self::window) are ignored.
    ///
    /// # Errors
    /// The method fails.
    pub fn encode(&mut self, samples: &[f32]) -> Result<Tensor> {
        self.restart();
        let mut samples = samples[..samples.len().min(self.most_samples)].to_vec();
        samples.resize(samples.len().max(self.least_samples), 0.0);
        let input = Tensor::from_slice(&samples, &[1, samples.len()]).map_err(|_| unfit("its window is too long"))?;
        let mut outputs = self.encoder.run(&[Value::Tensor(input)])?;
        match outputs.pop() {
            Some(Value::Tensor(hidden)) if outputs.is_empty() && hidden.rank() == 3 => {
                self.heard = hidden.shape()[1];
                Ok(hidden)
            }
            _ => Err(unfit("its encoder returns no hidden state")),
        }
    }

    /// Forgets the tokens but keeps the window.
    pub fn restart(&mut self) {
        self.position = 0;
    }

    /// Tokens in the caches.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Appends tokens, and replaces `logits` with the logits `[V]` of the next token.
    ///
    /// # Errors
    /// The method fails, or the tokens do not fit.
    pub fn step(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        let heard = positions(self.heard, 1)?;
        let outputs = self.decoder.run(&[ids(tokens)?, positions(self.position, tokens.len())?, heard])?;
        self.position += tokens.len();
        logits::last(self.decoder.name(), outputs.first(), logits)
    }
}
