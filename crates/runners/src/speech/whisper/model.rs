//! A loaded Whisper: its methods, window and caches.

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

/// A loaded Whisper, with its current window and the tokens in its caches.
#[derive(Debug)]
pub struct Whisper {
    encoder: Method,
    /// Keys and values of cross-attention, if they are inputs of the decoder.
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

/// Cross-attention inputs of the decoder: a key for each layer, then a value for each.
#[derive(Debug)]
struct Apart {
    method: Method,
    made: Vec<Value>,
}

impl Whisper {
    /// Methods that identify a Whisper.
    pub(crate) const METHODS: &[&str] = &["encoder", "decoder"];

    /// Whether a program has a Whisper's methods.
    pub fn is_in(program: &Program) -> bool {
        has_methods(program, Whisper::METHODS)
    }

    /// Loads a program that this project exported.
    ///
    /// # Errors
    /// [`Error::NoSpeechModel`](crate::Error::NoSpeechModel) for another program. Other errors if
    /// the program cannot be loaded.
    pub fn load(program: &Program, engine: &Arc<dyn Engine>) -> Result<Whisper> {
        if !Whisper::is_in(program) {
            return Err(unfit("it has no methods `encoder` and `decoder`"));
        }
        let facts = Facts::of(program, FAMILY);
        // The methods share a state, because the others read what the encoder writes.
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

    /// Loads the three programs of ExecuTorch's exporter, `encoder`, `cross_kv` and `decoder`, each
    /// with a method `forward`. They have no metadata: sizes come from their methods, and special
    /// tokens from the tokenizer. Special tokens are never chosen, and no other token is
    /// suppressed. Words have no times, and texts are decoded one at a time.
    ///
    /// # Errors
    /// [`Error::NoSpeechModel`](crate::Error::NoSpeechModel) for other programs or another model's
    /// tokenizer. Other errors if the programs cannot be loaded.
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

    /// Suppresses the tokens of a `generation_config.json`. This project's programs contain these
    /// lists.
    ///
    /// # Errors
    /// [`Error::NoSpeechModel`](crate::Error::NoSpeechModel) if the file is of another kind, or
    /// lists tokens outside the model's vocabulary.
    pub fn suppress(&mut self, generation_config: &[u8]) -> Result<()> {
        self.vocabulary.suppress(generation_config)
    }

    /// The methods of a greedy transcription, and the one that times words.
    pub(in crate::speech) fn methods(&mut self) -> Vec<&mut Method> {
        let mut methods = vec![&mut self.encoder, &mut self.decoder];
        methods.extend(self.apart.as_mut().map(|apart| &mut apart.method));
        methods.extend(self.alignment.as_mut());
        methods
    }

    /// The ids that steer the model.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Samples of a window.
    pub fn window(&self) -> usize {
        self.frames() * self.features.hop()
    }

    /// Samples per timestamp step, which is a position of the encoder.
    pub fn step_samples(&self) -> usize {
        2 * self.features.hop()
    }

    /// Tokens that the caches hold.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The method that decodes several texts at a time, with its own cache. It is loaded on first
    /// use.
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
    /// Fails if the method fails. Programs of this project's exporter never do.
    pub fn features(&mut self, samples: &[f32]) -> Result<Tensor> {
        let frames = self.frames();
        let features = self.features.window(samples, frames);
        Tensor::from_slice(&features, &[1, self.mels, frames]).map_err(|_| unfit("its window is too long"))
    }

    /// Encodes a window, and forgets the text of the previous one. Returns the encoder's last
    /// hidden state [1, positions, width].
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
        // A decoder with cross-attention inputs takes one token at a time.
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

    /// Loads the same program again, with its own window and caches.
    ///
    /// # Errors
    /// The program cannot be loaded again. ExecuTorch's three programs never can.
    pub(super) fn another(&self) -> Result<Whisper> {
        if self.apart.is_some() {
            return Err(unfit("its three programs listen to one window at a time"));
        }
        Whisper::load(self.decoder.program(), self.decoder.engine())
    }

    /// Appends a token to each model, and replaces its logits with the logits `[V]` of the next
    /// token. The engine may read each weight once for all models.
    ///
    /// # Errors
    /// As [`step`](Whisper::step), for the first model that fails.
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

    /// Attention weights of the alignment heads: the share of each token's attention to every
    /// position of the window, f32 [heads, tokens, positions]. `None` if the program has no
    /// alignment. Clears the tokens in the caches.
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
