//! The methods of a Parakeet's program.

use std::sync::Arc;

use flambeau_audio::ParakeetMel;
use flambeau_runtime::{Engine, LoadOptions, Method, Program, Value};
use flambeau_tensor::{DType, Tensor, cast};

use super::{FAMILY, unfit};
use crate::{
    Result, logits,
    speech::{Facts, has_methods, inputs::ids},
};

/// A loaded Parakeet.
#[derive(Debug)]
pub struct Parakeet {
    encoder: Method,
    pub(super) transducer: Option<Transducer>,
    features: ParakeetMel,
    mels: usize,
    /// Frames of a position, and most positions of a window.
    factor: usize,
    positions: usize,
    pub(super) blank: u32,
    pub(super) vocab: usize,
}

/// The methods that decode with what was said before in mind.
#[derive(Debug)]
pub(super) struct Transducer {
    decoder_step: Method,
    joint: Method,
    /// Positions that a token may take; empty where each leaves its position to the next one.
    pub(super) durations: Vec<usize>,
    /// Most tokens of one position.
    pub(super) most_symbols: usize,
    /// The beginning of a sequence.
    zeros: Tensor,
}

/// What a transducer has heard of the tokens so far.
#[derive(Clone, Debug)]
pub(super) struct Heard {
    /// What the joint network takes of it.
    g: Value,
    /// States of the layers.
    h: Value,
    c: Value,
}

impl Parakeet {
    /// Loads a program that this project exported.
    ///
    /// # Errors
    /// [`Error::NoSpeechModel`](crate::Error::NoSpeechModel) for another program; it cannot be loaded.
    pub fn load(program: &Program, engine: &Arc<dyn Engine>) -> Result<Parakeet> {
        if !has_methods(program, &["encoder"]) {
            return Err(unfit("it has no method `encoder`"));
        }
        let facts = Facts::of(program, FAMILY);
        let mels = facts.size("num_mel_bins")?;
        let method = |name: &str| program.method(name, engine, &LoadOptions::default());
        let transducer = has_methods(program, &["joint"])
            .then(|| Transducer::load(&facts, method("decoder_step")?, method("joint")?))
            .transpose()?;
        Ok(Parakeet {
            encoder: method("encoder")?,
            transducer,
            features: ParakeetMel::new(mels),
            mels,
            factor: facts.size("encoder_subsampling_factor")?,
            positions: facts.size("get_audio_positions")?,
            blank: facts.id("blank_id")?,
            vocab: facts.size("vocab_size")?,
        })
    }

    /// Samples of a position of the encoder's output.
    pub fn step_samples(&self) -> usize {
        self.factor * self.features.hop()
    }

    /// Most positions of a window.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Whether several positions may make one token.
    pub(super) fn is_ctc(&self) -> bool {
        self.transducer.is_none()
    }

    /// The log-mel spectrogram f32 [1, samples / 160, mels] of a window.
    ///
    /// # Errors
    /// There is not a single frame.
    pub fn features(&mut self, samples: &[f32]) -> Result<Tensor> {
        let rows = self.features.window(samples);
        Tensor::from_slice(&rows, &[1, rows.len() / self.mels, self.mels]).map_err(|_| unfit("its window is too long"))
    }

    /// Listens to a spectrogram: the last hidden state [1, positions, width], and what is decoded [1, positions, ..].
    ///
    /// # Errors
    /// The method fails.
    pub fn encode(&mut self, features: Tensor) -> Result<[Tensor; 2]> {
        let outputs = self.encoder.run(&[Value::Tensor(features)])?;
        match <[Value; 2]>::try_from(outputs) {
            Ok([Value::Tensor(hidden), Value::Tensor(made)]) if made.rank() == 3 && made.shape()[1] > 0 => Ok([hidden, made]),
            _ => Err(unfit("its encoder does not return a hidden state and what is decoded")),
        }
    }
}

impl Transducer {
    fn load(facts: &Facts<'_>, decoder_step: Method, joint: Method) -> Result<Transducer> {
        let shape = [facts.size("num_rnn_layers")?, 1, facts.size("pred_hidden")?];
        let dtype = i8::try_from(facts.size("get_dtype")?).ok().and_then(DType::from_code);
        let dtype = dtype.ok_or_else(|| unfit("it states no element type that is known"))?;
        Ok(Transducer {
            decoder_step,
            joint,
            durations: facts.ids("durations").into_iter().map(|duration| duration as usize).collect(),
            most_symbols: facts.size("max_symbols_per_step")?,
            zeros: Tensor::zeros(dtype, &shape).map_err(|_| unfit("its states are too large"))?,
        })
    }

    /// The beginning of a sequence, which the blank stands for.
    pub(super) fn begin(&mut self, blank: u32) -> Result<Heard> {
        let zeros = || Value::Tensor(self.zeros.clone());
        let heard = Heard { g: Value::None, h: zeros(), c: zeros() };
        self.hear(heard, blank)
    }

    /// Hears one more token.
    pub(super) fn hear(&mut self, heard: Heard, token: u32) -> Result<Heard> {
        let outputs = self.decoder_step.run(&[ids(&[token])?, heard.h, heard.c])?;
        match <[Value; 3]>::try_from(outputs) {
            Ok([g, h, c]) => Ok(Heard { g, h, c }),
            Err(_) => Err(unfit("its decoder does not return what it hears and two states")),
        }
    }

    /// Puts the logits of tokens and durations at a position of what the encoder made into the place of what `to` held.
    pub(super) fn join(&mut self, made: &Tensor, position: usize, heard: &Heard, to: &mut Vec<f32>) -> Result<()> {
        let f = row(made, position).ok_or_else(|| unfit("its encoder gives no positions"))?;
        let outputs = self.joint.run(&[Value::Tensor(f), heard.g.clone()])?;
        logits::last(self.joint.name(), outputs.first(), to)
    }
}

/// Position `at` [1, 1, n] of a tensor [1, positions, n].
fn row(made: &Tensor, at: usize) -> Option<Tensor> {
    let &[1, positions, n] = made.shape() else { return None };
    let size = n * made.dtype().size();
    (at < positions).then(|| Tensor::new(made.dtype(), &[1, 1, n], made.bytes().slice(at * size..(at + 1) * size)).ok())?
}

/// Rows of floats [1, positions, n] as f32 [positions · n], and n.
pub(super) fn rows(made: &Tensor) -> Result<(Vec<f32>, usize)> {
    let no_floats = || unfit("its encoder makes no floats");
    let wide = cast(made, DType::F32).map_err(|_| no_floats())?.aligned();
    let width = made.shape().last().copied().filter(|&n| n > 0).ok_or_else(no_floats)?;
    Ok((wide.as_slice::<f32>().map_err(|_| no_floats())?.to_vec(), width))
}
