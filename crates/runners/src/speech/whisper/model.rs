//! The methods of a Whisper's program.

use std::sync::Arc;

use flambeau_audio::LogMel;
use flambeau_runtime::{DimSpec, Engine, LoadOptions, Method, Program, SharedState, Value, ValueSpec};
use flambeau_tensor::{DType, Tensor, cast};
use flambeau_text::Tokenizer;

use super::{FAMILY, Vocabulary, branches::Branches, unfit};
use crate::{
    Result, error, logits,
    speech::{
        Facts, has_methods,
        inputs::{self, ids, positions},
    },
};

const BRANCHES: &str = "branches";

/// A loaded Whisper, the window that it last listened to, and the tokens in its caches.
#[derive(Debug)]
pub struct Whisper {
    encoder: Method,
    /// Method for keys and values of cross-attention, if the decoder takes them.
    apart: Option<Apart>,
    decoder: Method,
    alignment: Option<Method>,
    branches: Option<Branches>,
    /// Load options of methods.
    options: LoadOptions,
    vocabulary: Vocabulary,
    features: LogMel,
    mels: usize,
    audio_positions: usize,
    context: usize,
    position: usize,
}

/// Keys and values of cross-attention as inputs of the decoder, a key for each layer, then a value for each.
#[derive(Debug)]
struct Apart {
    method: Method,
    made: Vec<Value>,
}

impl Whisper {
    /// The methods by which a program is taken for one.
    pub(crate) const METHODS: &[&str] = &["encoder", "decoder"];

    /// Whether a program has a Whisper's methods.
    pub fn is_in(program: &Program) -> bool {
        has_methods(program, Whisper::METHODS)
    }

    /// Loads a program that this project exported.
    ///
    /// # Errors
    /// [`Error::NoSpeechModel`](crate::Error::NoSpeechModel) for another program; it cannot be loaded.
    pub fn load(program: &Program, engine: &Arc<dyn Engine>) -> Result<Whisper> {
        if !Whisper::is_in(program) {
            return Err(unfit("it has no methods `encoder` and `decoder`"));
        }
        let facts = Facts::of(program, FAMILY);
        // One state: the encoder writes what the others read.
        let options = LoadOptions { shared: Some(SharedState::default()), ..LoadOptions::default() };
        let method = |name: &str| program.method(name, engine, &options);
        let has_alignment = has_methods(program, &["alignment"]);
        let mels = facts.size("num_mel_bins")?;
        Ok(Whisper {
            encoder: method("encoder")?,
            apart: None,
            decoder: method("decoder")?,
            alignment: has_alignment.then(|| method("alignment")).transpose()?,
            branches: None,
            options: options.clone(),
            vocabulary: Vocabulary::of(&facts)?,
            features: LogMel::new(mels),
            mels,
            audio_positions: facts.size("get_audio_positions")?,
            context: facts.size("get_max_seq_len")?,
            position: 0,
        })
    }

    /// Loads the three programs that ExecuTorch's exporter writes, `encoder`, `cross_kv` and `decoder`, each with a method `forward`. They say
    /// nothing of themselves: sizes are those of their inputs, and special tokens those of the tokenizer, which are never chosen. No
    /// other token is suppressed, words have no times, and one text is tried at a time.
    ///
    /// # Errors
    /// [`Error::NoSpeechModel`](crate::Error::NoSpeechModel) for other programs or the tokenizer of another model; they cannot be loaded.
    pub fn load_apart(programs: [&Program; 3], tokenizer: &Tokenizer, engine: &Arc<dyn Engine>) -> Result<Whisper> {
        let options = LoadOptions::default();
        let [encoder, cross_kv, decoder] = programs.map(|program| program.method("forward", engine, &options));
        let (encoder, cross_kv, decoder) = (encoder?, cross_kv?, decoder?);
        let input = encoder.inputs().first().and_then(ValueSpec::tensor).map(|spec| &spec.dims[..]);
        let Some(&[_, DimSpec::Fixed(mels), DimSpec::Fixed(frames)]) = input else {
            return Err(unfit("its encoder does not take windows of one length"));
        };
        if decoder.inputs().len() != 2 + cross_kv.outputs().len() {
            return Err(unfit("its decoder does not take what `cross_kv` makes"));
        }
        let logits = decoder.outputs().first().and_then(ValueSpec::tensor).and_then(|spec| spec.dims.last().copied());
        let Some(DimSpec::Fixed(size)) = logits else { return Err(unfit("its decoder gives no logits")) };
        let context = decoder.cache_len().ok_or_else(|| unfit("its decoder keeps nothing"))?;
        Ok(Whisper {
            encoder,
            apart: Some(Apart { method: cross_kv, made: Vec::new() }),
            decoder,
            alignment: None,
            branches: None,
            options,
            vocabulary: Vocabulary::of_tokenizer(tokenizer, size)?,
            features: LogMel::new(mels),
            mels,
            audio_positions: frames / 2,
            context,
            position: 0,
        })
    }

    /// Never chooses the tokens that a `generation_config.json` suppresses, as programs of this project do by themselves.
    ///
    /// # Errors
    /// [`Error::NoSpeechModel`](crate::Error::NoSpeechModel) for what is no such file; its lists name tokens that the model does not have.
    pub fn suppress(&mut self, generation_config: &[u8]) -> Result<()> {
        self.vocabulary.suppress(generation_config)
    }

    /// The ids that steer the model.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Samples of a window.
    pub fn window(&self) -> usize {
        self.frames() * self.features.hop()
    }

    /// Samples of a step of the timestamps: an encoder's position.
    pub fn step_samples(&self) -> usize {
        2 * self.features.hop()
    }

    /// Tokens that the caches hold.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Whether the model can tell when words were said.
    pub fn can_align(&self) -> bool {
        self.alignment.is_some()
    }

    /// What decodes several texts at a time, with a cache of its own; loaded when it is first asked for.
    ///
    /// # Errors
    /// The program has no such method, or it cannot be loaded.
    pub(super) fn branches(&mut self) -> Result<&mut Branches> {
        let program = self.decoder.program();
        if !has_methods(program, &[BRANCHES]) {
            return Err(unfit("it has no method `branches`, which several texts at a time take: export it again"));
        }
        match &mut self.branches {
            Some(branches) => Ok(branches),
            empty => Ok(empty.insert(Branches::new(program.method(BRANCHES, self.decoder.engine(), &self.options)?)?)),
        }
    }

    fn frames(&self) -> usize {
        2 * self.audio_positions
    }

    /// The log-mel spectrogram f32 [1, mels, frames] of a window that begins with these samples.
    ///
    /// # Errors
    /// None that a program of ours leads to.
    pub fn features(&mut self, samples: &[f32]) -> Result<Tensor> {
        let frames = self.frames();
        let features = self.features.window(samples, frames);
        Tensor::from_slice(&features, &[1, self.mels, frames]).map_err(|_| unfit("its window is too long"))
    }

    /// Listens to a window, and forgets what was decoded of the one before; returns the encoder's last hidden state
    /// [1, positions, width].
    ///
    /// # Errors
    /// The method fails.
    pub fn encode(&mut self, features: Tensor) -> Result<Tensor> {
        self.restart();
        let mut outputs = self.encoder.run(&[inputs::floats(&self.encoder, 0, &features)?])?;
        let hidden = match outputs.pop() {
            Some(Value::Tensor(hidden)) if outputs.is_empty() => hidden,
            _ => return Err(unfit("its encoder returns no hidden state")),
        };
        if let Some(apart) = &mut self.apart {
            apart.made = apart.method.run(&[Value::Tensor(hidden.clone())])?;
        }
        Ok(hidden)
    }

    /// Forgets the tokens, not the window.
    pub fn restart(&mut self) {
        self.position = 0;
    }

    /// Tokens in the caches.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Appends tokens, and puts the logits `[V]` of the next one into the place of what `logits` held.
    ///
    /// # Errors
    /// The method fails, or the tokens do not fit.
    pub fn step(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        // A decoder that takes cross-attention from its caller takes one token at a time.
        let chunk = if self.apart.is_some() { 1 } else { tokens.len().max(1) };
        let mut outputs = Vec::new();
        for tokens in tokens.chunks(chunk) {
            let mut inputs = vec![ids(tokens)?, positions(self.position, tokens.len())?];
            inputs.extend(self.apart.iter().flat_map(|apart| &apart.made).cloned());
            outputs = self.decoder.run(&inputs)?;
            self.position += tokens.len();
        }
        logits::last(self.decoder.name(), outputs.first(), logits)
    }

    /// Another one of the same program, with a window and caches of its own.
    ///
    /// # Errors
    /// It cannot be loaded again, as ExecuTorch's three programs cannot.
    pub(super) fn another(&self) -> Result<Whisper> {
        if self.apart.is_some() {
            return Err(unfit("its three programs listen to one window at a time"));
        }
        Whisper::load(self.decoder.program(), self.decoder.engine())
    }

    /// Appends a token to each, and puts the logits `[V]` of the next one into the place of what stood beside it. The engine may read each
    /// weight once for all of them.
    ///
    /// # Errors
    /// As [`step`](Whisper::step), of the first that fails.
    pub(super) fn step_each(runs: &mut [(&mut Whisper, u32, &mut Vec<f32>)]) -> Result<()> {
        let inputs = runs.iter().map(|(model, token, _)| Ok([ids(&[*token])?, positions(model.position, 1)?]));
        let inputs: Vec<[Value; 2]> = inputs.collect::<Result<_>>()?;
        let methods = runs.iter_mut().zip(&inputs).map(|((model, ..), inputs)| (&mut model.decoder, &inputs[..]));
        let outcomes = Method::run_last_of_each(&mut methods.collect::<Vec<_>>());
        for ((model, _, logits), outcome) in runs.iter_mut().zip(outcomes) {
            let outputs = error::settled(outcome)?;
            model.position += 1;
            logits::last(model.decoder.name(), outputs.first(), logits)?;
        }
        Ok(())
    }

    /// Which share of the attention of each alignment head every position of the window gets from each token, f32
    /// [heads, tokens, positions]; `None` if the program cannot tell. The tokens in the caches are forgotten.
    ///
    /// # Errors
    /// As [`step`](Whisper::step).
    pub fn align(&mut self, tokens: &[u32]) -> Result<Option<Tensor>> {
        self.restart();
        let Some(alignment) = &mut self.alignment else { return Ok(None) };
        let outputs = alignment.run(&[ids(tokens)?, positions(0, tokens.len())?])?;
        let shares = outputs.first().and_then(Value::as_tensor).and_then(|shares| cast(shares, DType::F32).ok());
        let shares = shares.and_then(|shares| match *shares.shape() {
            [1, heads, count, positions] if count == tokens.len() => shares.reshape(&[heads, count, positions]).ok(),
            _ => None,
        });
        shares.map(Some).ok_or_else(|| unfit("its alignment gives no shares of attention"))
    }
}
