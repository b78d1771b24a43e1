//! A sequence of a language model: takes tokens, returns the logits of the next token or the next
//! token.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
};

use flambeau_runtime::{Method, Outcome, Sampling, Value, ValueKind, ValueSpec};
use flambeau_tensor::{DType, Tensor, cast};

use super::{
    adapters::Adapters, draft::Draft, draft_model::DraftModel, generate::Request, metadata::Metadata, model::Model,
    sampling_inputs::SamplingInputs, signature::Positions, snapshot::Snapshot,
};
use crate::{Error, Result, logits};

/// Number of steps in flight after the awaited one. With two, the device stays busy while the host
/// handles a token and prepares the next step.
pub const PIPELINE_DEPTH: usize = 2;

/// The tokens of one text in a model's caches and states.
#[derive(Debug)]
pub struct Sequence {
    model: Model,
    method: Method,
    /// The program's own draft method.
    draft: Option<Draft>,
    /// A draft model's sequence.
    guesser: Option<Box<DraftModel>>,
    position: usize,
    /// The adapters that compute its caches.
    adapters: Adapters,
    /// Number of tokens of each step in flight, oldest first.
    in_flight: VecDeque<usize>,
}

/// A token to feed to one of several sequences.
#[derive(Debug)]
pub struct TokenInput<'a> {
    pub sequence: &'a mut Sequence,
    pub token: u32,
    /// Receives the logits `[V]` of the token after it; earlier contents are replaced.
    pub logits: &'a mut Vec<f32>,
}

impl Sequence {
    /// Creates an empty sequence on a method loaded for it.
    pub(super) fn new(model: Model, method: Method, draft: Option<Draft>) -> Sequence {
        Sequence { model, method, draft, guesser: None, position: 0, adapters: Adapters::default(), in_flight: VecDeque::new() }
    }

    /// Adds a draft model's sequence.
    pub(super) fn with_guesser(self, guesser: Sequence) -> Sequence {
        Sequence { guesser: Some(Box::new(DraftModel::new(guesser))), ..self }
    }

    /// The sequence's model.
    pub fn model(&self) -> &Model {
        &self.model
    }
    /// Metadata of the program.
    pub fn metadata(&self) -> &Metadata {
        self.model.metadata()
    }

    /// The model's method.
    pub fn method(&mut self) -> &mut Method {
        &mut self.method
    }

    /// Maximum number of tokens per step.
    pub fn chunk(&self) -> usize {
        self.model.chunk()
    }

    /// Number of tokens in the caches.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The adapters that it applies.
    pub fn adapters(&self) -> &Adapters {
        &self.adapters
    }

    /// Applies these adapters from now on. A sequence that applied others is emptied.
    ///
    /// # Errors
    /// Fails if the model has fewer adapters.
    pub fn set_adapters(&mut self, adapters: &Adapters) -> Result<()> {
        if self.adapters != *adapters {
            self.model.check_adapters(adapters)?;
            self.reset();
            self.adapters = adapters.clone();
        }
        Ok(())
    }

    /// Number of tokens that still fit; `None` if neither the program's metadata nor its caches
    /// state a bound.
    pub fn room(&self) -> Option<usize> {
        self.model.context().map(|context| context.saturating_sub(self.position))
    }

    /// Empties the sequence.
    pub fn reset(&mut self) {
        self.method.reset();
        self.draft.iter_mut().for_each(Draft::reset);
        self.in_flight.clear();
        self.position = 0;
    }

    /// Truncates the sequence to its first `position` tokens, or empties it if it
    /// [cannot](Model::can_truncate) be truncated; returns its length. A shorter sequence stays
    /// unchanged.
    pub fn truncate(&mut self, position: usize) -> usize {
        self.cancel();
        if position == 0 || position < self.position && !self.model.can_truncate() {
            self.reset();
        }
        self.position = self.position.min(position);
        self.draft.iter_mut().for_each(|draft| draft.truncate(position));
        self.position
    }

    /// Copies the state of the first `tokens` tokens. This must be the whole sequence unless the
    /// model [can truncate](Model::can_truncate). Returns `None` if the model [does not support
    /// it](Model::can_snapshot) or the engine does not return its state.
    ///
    /// # Errors
    /// Fails if the engine fails.
    pub fn snapshot(&mut self, tokens: usize) -> Result<Option<Snapshot>> {
        self.cancel();
        let is_there = tokens == self.position || tokens < self.position && self.model.can_truncate();
        if !is_there || !self.model.can_snapshot() {
            return Ok(None);
        }
        let state = self.method.save(tokens)?;
        let adapters = self.adapters.clone();
        Ok(state.map(|state| Snapshot { position: tokens, adapters, state }))
    }

    /// Replaces the sequence by the first `tokens` tokens of a snapshot; returns its length. The
    /// count must be the whole snapshot unless the model [can truncate](Model::can_truncate);
    /// otherwise the sequence is empty. The sequence then applies the snapshot's adapters.
    ///
    /// # Errors
    /// Fails if the snapshot belongs to another model. The sequence is then empty.
    pub fn restore(&mut self, snapshot: &Snapshot, tokens: usize) -> Result<usize> {
        self.reset();
        let is_there = tokens == snapshot.position || tokens < snapshot.position && self.model.can_truncate();
        if is_there {
            if let Err(error) = self.method.restore(snapshot.position, &snapshot.state) {
                self.reset();
                return Err(error.into());
            }
            self.position = tokens;
            self.adapters = snapshot.adapters.clone();
        }
        Ok(self.position)
    }

    /// Appends up to [`chunk`](Self::chunk) tokens and returns the logits `[V]` after the last one.
    ///
    /// # Errors
    /// Fails if the method fails or does not return logits.
    pub fn step(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let mut logits = Vec::new();
        self.step_into(tokens, &mut logits)?;
        Ok(logits)
    }

    /// [`step`](Self::step) that replaces the contents of `logits`.
    ///
    /// # Errors
    /// As [`step`](Self::step); the contents of `logits` are then unspecified.
    pub fn step_into(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        self.cancel();
        if self.model.samples_tokens() {
            return Err(Error::Logits { method: self.method.name().to_owned(), found: "tokens that it draws itself".into() });
        }
        let inputs = self.inputs(tokens)?;
        let outputs = match &mut self.draft {
            None => self.method.run_last(&inputs)?,
            Some(draft) => {
                let outputs = self.method.run(&inputs)?;
                draft.note(outputs.get(1), tokens.len(), self.position)?;
                outputs
            }
        };
        self.position += tokens.len();
        logits::last(self.method.name(), outputs.first(), logits)
    }

    /// [`step_into`](Self::step_into) of one token for each of several sequences; outcomes are in
    /// the same order. Sequences of one model are batched if the engine
    /// [can](flambeau_runtime::Engine::run_last_of_each), so that each weight is read once for all.
    /// A sequence that fails or panics does not affect the others. A sequence that panicked must
    /// not be used again.
    pub fn step_each(feeds: &mut [TokenInput<'_>]) -> Vec<Outcome<(), Error>> {
        let inputs: Vec<Option<Result<Vec<Value>>>> = feeds.iter_mut().map(TokenInput::inputs).collect();
        let runs = feeds.iter_mut().zip(&inputs).filter_map(|(feed, inputs)| match inputs {
            Some(Ok(inputs)) => Some((&mut feed.sequence.method, &inputs[..])),
            _ => None,
        });
        let mut ended = Method::run_last_of_each(&mut runs.collect::<Vec<_>>()).into_iter();
        let outcomes = feeds.iter_mut().zip(inputs).map(|(feed, inputs)| match inputs {
            Some(Ok(_)) => ended.next().expect("each run has an outcome").map(|outputs| feed.take(&outputs?)),
            Some(Err(error)) => Ok(Err(error)),
            None => catch_unwind(AssertUnwindSafe(|| feed.sequence.step_into(&[feed.token], feed.logits))),
        });
        outcomes.collect()
    }

    /// [`step`](Self::step) that returns the logits [S, V] after each of the `S` tokens. Only the
    /// last row exists unless the program [returns all](Model::gives_all_logits).
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn step_all(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.cancel();
        let inputs = self.inputs(tokens)?;
        let outputs = self.method.run(&inputs)?;
        self.position += tokens.len();
        logits::all_rows(self.method.name(), outputs.first())
    }

    /// Whether the sequence has a draft model.
    pub(super) fn has_guesser(&self) -> bool {
        self.guesser.is_some()
    }

    /// Up to `most` draft tokens after `text`, from the draft model.
    ///
    /// # Errors
    /// Fails if the draft model fails.
    pub(super) fn guess(&mut self, text: &[u32], most: usize) -> Result<Vec<u32>> {
        self.guesser.as_mut().map_or_else(|| Ok(Vec::new()), |guesser| guesser.guess(text, most))
    }

    /// Maximum number of draft tokens in a step.
    pub(super) fn most_guesses(&self) -> usize {
        self.room().unwrap_or(usize::MAX).min(self.chunk()).saturating_sub(1)
    }

    /// Appends `last` and up to [`most_guesses`](Self::most_guesses) draft tokens; `logits`
    /// receives the logits `[1 + guesses, V]` after each.
    ///
    /// # Errors
    /// As [`step_into`](Self::step_into).
    pub(super) fn judge(&mut self, last: u32, guesses: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        if guesses.is_empty() {
            return self.step_into(&[last], logits);
        }
        *logits = self.step_all(&[&[last], guesses].concat())?;
        Ok(())
    }

    /// Whether the program's draft method can be used: it has seen the whole sequence, and rejected
    /// tokens can be removed.
    pub(super) fn can_speculate(&self) -> bool {
        self.draft.as_ref().is_some_and(|draft| draft.known() == self.position) && self.model.can_truncate()
    }

    /// Appends `last` and the accepted draft tokens of greedy decoding. Returns the tokens after
    /// `last`, at least one; only the last of them is not in the caches.
    ///
    /// # Errors
    /// Fails if the model cannot [speculate](Self::can_speculate), or if a method fails.
    pub(super) fn speculate(&mut self, last: u32) -> Result<Vec<u32>> {
        let fits = self.most_guesses();
        let guesses = match &mut self.draft {
            Some(draft) if fits.min(draft.max_tokens()) > 0 => draft.guess(last, fits.min(draft.max_tokens()))?,
            _ => Vec::new(),
        };
        let block = [&[last], &guesses[..]].concat();
        let outputs = self.method.run(&self.inputs(&block)?)?;
        let mut best = logits::best_tokens(self.method.name(), outputs.first(), block.len())?;
        let accepted = guesses.iter().zip(&best).take_while(|(guess, best)| guess == best).count();
        if let Some(draft) = &mut self.draft {
            draft.note(outputs.get(1), accepted + 1, self.position)?;
        }
        self.position += accepted + 1;
        best.truncate(accepted + 1);
        Ok(best)
    }

    /// Sampling parameters of the program's first token.
    ///
    /// # Errors
    /// Fails if the program does not support a requested parameter.
    pub(super) fn sampling_inputs(&self, request: &Request) -> Result<SamplingInputs> {
        SamplingInputs::first(request).map_err(|what| Error::Sampling { method: self.method.name().to_owned(), what })
    }

    /// Appends up to [`chunk`](Self::chunk) tokens to a sequence of a model that [samples
    /// tokens](Model::samples_tokens), and returns the sampled token.
    ///
    /// # Errors
    /// Fails if the method fails or does not return a token.
    pub(super) fn step_sampled(&mut self, tokens: &[u32], sampling: SamplingInputs) -> Result<u32> {
        let mut inputs = self.inputs(tokens)?;
        inputs.extend(sampling.inputs());
        let outputs = self.method.run(&inputs)?;
        self.position += tokens.len();
        let found = || outputs.first().map_or_else(|| "nothing".into(), Value::describe);
        let bad = || Error::Token { method: self.method.name().to_owned(), found: found() };
        let ids = outputs.first().and_then(Value::as_tensor).and_then(|t| cast(t, DType::I64).ok()).ok_or_else(bad)?;
        match ids.as_slice::<i64>() {
            Ok(&[id]) => u32::try_from(id).map_err(|_| bad()),
            _ => Err(bad()),
        }
    }

    /// Whether a step can be submitted before the previous step's token is known. This requires
    /// positions as inputs.
    pub fn can_pipeline(&mut self) -> bool {
        let is_float = |spec: &ValueSpec| matches!(&spec.kind, ValueKind::Tensor(t) if t.dtype.is_float());
        let gives_logits = self.method.outputs().first().is_some_and(is_float);
        gives_logits && self.model.signature().positions != Positions::None && self.method.can_pipeline()
    }

    /// Enqueues a step of up to [`chunk`](Self::chunk) tokens; the engine samples the next token.
    ///
    /// # Errors
    /// Fails if the model [cannot pipeline](Self::can_pipeline). If the step itself fails,
    /// [`receive`](Self::receive) reports it.
    pub fn submit(&mut self, tokens: &[u32], sampling: Sampling) -> Result<()> {
        self.submit_step(tokens, None, sampling)
    }

    /// Enqueues a step on the token that the previous step samples.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_next(&mut self, sampling: Sampling) -> Result<()> {
        self.submit_step(&[0], Some(self.model.signature().tokens), sampling)
    }

    fn submit_step(&mut self, tokens: &[u32], feedback: Option<usize>, sampling: Sampling) -> Result<()> {
        let inputs = self.inputs(tokens)?;
        self.method.submit(&inputs, feedback, sampling)?;
        self.position += tokens.len();
        self.in_flight.push_back(tokens.len());
        Ok(())
    }

    /// Waits for the token of the oldest step in flight.
    ///
    /// # Errors
    /// Fails if the step failed, or if none is in flight.
    pub fn receive(&mut self) -> Result<u32> {
        let token = self.method.receive()?;
        self.in_flight.pop_front();
        Ok(token)
    }

    /// Number of steps submitted but not yet received.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Drops the steps in flight.
    pub fn cancel(&mut self) {
        if !self.in_flight.is_empty() {
            self.method.cancel();
            self.position -= self.in_flight.drain(..).sum::<usize>();
        }
    }

    fn inputs(&self, tokens: &[u32]) -> Result<Vec<Value>> {
        let s = self.model.signature();
        let ids: Vec<i64> = tokens.iter().map(|&t| i64::from(t)).collect();
        let ids = self.tensor(&ids, &[1, tokens.len()], s.tokens_dtype)?;
        let start = self.position as i64;
        let shape = |rank: usize, n: usize| {
            let mut shape = vec![1; rank];
            if let Some(last) = shape.last_mut() {
                *last = n;
            }
            shape
        };
        let positions = match s.positions {
            Positions::None => return self.with_scales(vec![ids.into()]),
            Positions::Each { rank } => {
                let each: Vec<i64> = (start..start + tokens.len() as i64).collect();
                self.tensor(&each, &shape(rank, each.len()), s.position_dtype)?
            }
            Positions::First { rank } => self.tensor(&[start], &shape(rank, 1), s.position_dtype)?,
        };
        let inputs = if s.tokens == 0 { vec![ids.into(), positions.into()] } else { vec![positions.into(), ids.into()] };
        self.with_scales(inputs)
    }

    /// Adds the input with the adapters' scales, if the method takes it.
    fn with_scales(&self, mut inputs: Vec<Value>) -> Result<Vec<Value>> {
        if let Some(count) = self.model.signature().adapters {
            let scales = Tensor::from_slice(&self.adapters.of_model(count), &[count]);
            inputs.push(scales.map_err(|error| self.unfit(&error))?.into());
        }
        Ok(inputs)
    }

    fn tensor(&self, values: &[i64], shape: &[usize], dtype: DType) -> Result<Tensor> {
        let tensor = Tensor::from_slice(values, shape).and_then(|tensor| cast(&tensor, dtype));
        tensor.map_err(|error| self.unfit(&error))
    }

    fn unfit(&self, error: &flambeau_tensor::Error) -> Error {
        Error::Signature { method: self.method.name().to_owned(), what: error.to_string() }
    }
}

impl TokenInput<'_> {
    /// Inputs of the sequence's method; `None` if a step needs more than one run of the method.
    fn inputs(&mut self) -> Option<Result<Vec<Value>>> {
        let TokenInput { sequence, token, .. } = self;
        if sequence.draft.is_some() || sequence.model.samples_tokens() {
            return None;
        }
        sequence.cancel();
        Some(sequence.inputs(&[*token]))
    }

    fn take(&mut self, outputs: &[Value]) -> Result<()> {
        self.sequence.position += 1;
        logits::last(self.sequence.method.name(), outputs.first(), self.logits)
    }
}
