//! The methods of a Parakeet's program.

use std::sync::Arc;

use flambeau_audio::ParakeetMel;
use flambeau_runtime::{DimSpec, Engine, LoadOptions, Method, Program, Value, ValueSpec};
use flambeau_tensor::{DType, Tensor, cast};

use super::{FAMILY, unfit};
use crate::{
    Result, logits,
    speech::{
        Facts, has_methods,
        inputs::{self, ids, positions},
    },
};

/// Defaults from the published models: possible token durations in positions, and maximum tokens at
/// one position.
const DURATIONS: [usize; 5] = [0, 1, 2, 3, 4];
const MOST_SYMBOLS: usize = 10;

/// A loaded Parakeet.
#[derive(Debug)]
pub struct Parakeet {
    encoder: Method,
    takes_length: bool,
    pub(super) transducer: Option<Transducer>,
    features: ParakeetMel,
    mels: usize,
    /// Spectrogram frames per position, and maximum positions of a window.
    factor: usize,
    positions: usize,
    pub(super) blank: u32,
    pub(super) vocab: usize,
}

/// Transducer methods. They predict each token from the tokens before it.
#[derive(Debug)]
pub(super) struct Transducer {
    decoder_step: Method,
    joint: Method,
    /// Possible token durations in positions; empty if tokens have no duration.
    pub(super) durations: Vec<usize>,
    /// Whether the joint network returns a token and the index of its duration instead of logits.
    chooses: bool,
    /// Maximum tokens at one position.
    pub(super) most_symbols: usize,
    /// Initial state of a sequence.
    zeros: Tensor,
}

/// State of the prediction network of a transducer after the tokens so far.
#[derive(Clone, Debug)]
pub(super) struct PredictionState {
    /// Input of the joint network.
    g: Value,
    /// States of the layers.
    h: Value,
    c: Value,
}

impl Parakeet {
    /// Methods that identify a transducer.
    pub(crate) const METHODS: &[&str] = &["encoder", "decoder_step", "joint"];

    /// Whether a program has a Parakeet transducer's methods, from this project's exporter or
    /// ExecuTorch's.
    pub fn is_transducer_in(program: &Program) -> bool {
        has_methods(program, Parakeet::METHODS)
    }

    /// Loads a program from this project's exporter or from ExecuTorch's.
    ///
    /// # Errors
    /// [`Error::NoSpeechModel`](crate::Error::NoSpeechModel) for another program. Other errors if
    /// the program cannot be loaded.
    pub fn load(program: &Program, engine: &Arc<dyn Engine>) -> Result<Parakeet> {
        if !has_methods(program, &["encoder"]) {
            return Err(unfit("it has no method `encoder`"));
        }
        let facts = Facts::of(program, FAMILY);
        let method = |name: &str| program.method(name, engine, &LoadOptions::default());
        let encoder = method("encoder")?;
        let input = encoder.inputs().first().and_then(ValueSpec::tensor).map(|spec| &spec.dims[..]);
        // ExecuTorch's encoder has frames as its last dimension, and takes their number as a second
        // input.
        let takes_length = encoder.inputs().len() == 2;
        let (mels, most_frames) = match input {
            Some(&[_, DimSpec::Fixed(mels), frames]) if takes_length => (mels, frames.max()),
            Some(&[_, frames, DimSpec::Fixed(mels)]) if !takes_length => (mels, frames.max()),
            _ => return Err(unfit("its encoder takes no spectrogram")),
        };
        let factor = facts.size("encoder_subsampling_factor")?;
        let positions = facts.size("get_audio_positions").ok().or(most_frames.map(|frames| frames / factor));
        let transducer = if has_methods(program, &["joint", "decoder_step"]) {
            Some(Transducer::load(&facts, method("decoder_step")?, method("joint")?)?)
        } else {
            None
        };
        let blank = facts.id("blank_id")?;
        Ok(Parakeet {
            encoder,
            takes_length,
            transducer,
            features: ParakeetMel::new(mels),
            mels,
            factor,
            positions: positions.ok_or_else(|| unfit("it does not state `get_audio_positions`"))?,
            blank,
            // ExecuTorch's vocabulary size excludes the blank.
            vocab: facts.size("vocab_size")?.max(blank as usize + 1),
        })
    }

    pub(in crate::speech) fn methods(&mut self) -> Vec<&mut Method> {
        let mut methods = vec![&mut self.encoder];
        methods.extend(self.transducer.iter_mut().flat_map(|transducer| [&mut transducer.decoder_step, &mut transducer.joint]));
        methods
    }

    /// Samples per position of the encoder's output.
    pub fn step_samples(&self) -> usize {
        self.factor * self.features.hop()
    }

    /// Maximum positions of a window.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Whether several positions may form one token.
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

    /// Encodes a spectrogram. Returns the last hidden state [1, positions, width] and the output to
    /// decode [1, positions, ..]. ExecuTorch's programs return the latter alone, and it takes both
    /// places.
    ///
    /// # Errors
    /// The method fails.
    pub fn encode(&mut self, features: Tensor) -> Result<[Tensor; 2]> {
        if self.takes_length {
            return self.encode_counted(&features);
        }
        let outputs = self.encoder.run(&[Value::Tensor(features)])?;
        match <[Value; 2]>::try_from(outputs) {
            Ok([Value::Tensor(hidden), Value::Tensor(made)]) if made.rank() == 3 && made.shape()[1] > 0 => Ok([hidden, made]),
            _ => Err(unfit("its encoder does not return a hidden state and what is decoded")),
        }
    }

    /// [`encode`](Self::encode) for an encoder with frames as the last dimension and their number
    /// as input.
    fn encode_counted(&mut self, features: &Tensor) -> Result<[Tensor; 2]> {
        let no_rows = || unfit("its encoder does not return what is decoded and the number of positions");
        let (rows, mels) = rows(features)?;
        let frames = rows.len() / mels;
        let transposed: Vec<f32> = (0..mels).flat_map(|bin| rows.iter().skip(bin).step_by(mels).copied()).collect();
        let transposed = Tensor::from_slice(&transposed, &[1, mels, frames]).map_err(|_| no_rows())?;
        let inputs = [inputs::floats(&self.encoder, 0, &transposed)?, positions(frames, 1)?];
        let outputs = self.encoder.run(&inputs)?;
        let [Value::Tensor(made), count] = &outputs[..] else { return Err(no_rows()) };
        let (&[1, _, width], Some(count)) = (made.shape(), number(count)) else { return Err(no_rows()) };
        let bytes = made.bytes().clone();
        let size = count * width * made.dtype().size();
        let heard = (count > 0 && size <= bytes.len()).then(|| bytes.slice(..size)).ok_or_else(no_rows)?;
        let heard = Tensor::new(made.dtype(), &[1, count, width], heard).map_err(|_| no_rows())?;
        Ok([heard.clone(), heard])
    }
}

impl Transducer {
    fn load(facts: &Facts<'_>, decoder_step: Method, joint: Method) -> Result<Transducer> {
        let state = decoder_step.inputs().get(1).and_then(ValueSpec::tensor).cloned();
        let state = state.ok_or_else(|| unfit("its decoder takes no states"))?;
        let sizes = state.dims.iter().map(|dim| if let DimSpec::Fixed(size) = dim { Some(*size) } else { None });
        let sizes: Option<Vec<usize>> = sizes.collect();
        let zeros = sizes.and_then(|sizes| Tensor::zeros(state.dtype, &sizes).ok());
        let chooses = joint.outputs().len() == 2;
        let durations: Vec<usize> = facts.ids("durations").into_iter().map(|duration| duration as usize).collect();
        Ok(Transducer {
            decoder_step,
            joint,
            durations: if durations.is_empty() && chooses { DURATIONS.to_vec() } else { durations },
            chooses,
            most_symbols: facts.size("max_symbols_per_step").unwrap_or(MOST_SYMBOLS),
            zeros: zeros.ok_or_else(|| unfit("its states are too large"))?,
        })
    }

    /// The state at the beginning of a sequence, after a blank.
    pub(super) fn begin(&mut self, blank: u32) -> Result<PredictionState> {
        let zeros = || Value::Tensor(self.zeros.clone());
        let state = PredictionState { g: Value::None, h: zeros(), c: zeros() };
        self.predict(state, blank)
    }

    /// Advances the state by one token.
    pub(super) fn predict(&mut self, state: PredictionState, token: u32) -> Result<PredictionState> {
        let outputs = self.decoder_step.run(&[ids(&[token])?, state.h, state.c])?;
        match <[Value; 3]>::try_from(outputs) {
            Ok([g, h, c]) => Ok(PredictionState { g, h, c }),
            Err(_) => Err(unfit("its decoder does not return what it hears and two states")),
        }
    }

    /// Runs the joint network at a position of the encoder's output. Returns a token and its
    /// duration, or replaces `to` with the logits of both.
    pub(super) fn join(
        &mut self,
        made: &Tensor,
        position: usize,
        state: &PredictionState,
        to: &mut Vec<f32>,
    ) -> Result<Option<[usize; 2]>> {
        let f = row(made, position).ok_or_else(|| unfit("its encoder gives no positions"))?;
        let outputs = self.joint.run(&[Value::Tensor(f), state.g.clone()])?;
        if !self.chooses {
            logits::last(self.joint.name(), outputs.first(), to)?;
            return Ok(None);
        }
        let chosen = match &outputs[..] {
            [token, duration] => number(token).zip(number(duration).and_then(|index| self.durations.get(index).copied())),
            _ => None,
        };
        chosen.map(|(token, duration)| Some([token, duration])).ok_or_else(|| unfit("its joint network chooses no token"))
    }
}

/// The single integer of a value.
fn number(value: &Value) -> Option<usize> {
    let number = match value {
        Value::Tensor(tensor) => cast(tensor, DType::I64).ok()?.aligned().as_slice::<i64>().ok()?.first().copied()?,
        other => other.as_int()?,
    };
    usize::try_from(number).ok()
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
