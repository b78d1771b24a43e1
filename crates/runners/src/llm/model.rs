//! A method as a language model: tokens in, logits of the next token out, or the next token itself.

use std::{collections::VecDeque, sync::Arc};

use flambeau_runtime::{DimSpec, Engine, LoadOptions, Method, Program, Sampling, TensorSpec, Value, ValueKind, ValueSpec};
use flambeau_tensor::{DType, Tensor, cast};
use flambeau_text::SamplingParams;

use super::{
    draft::{self, Draft},
    draw::{self, Draw},
    metadata::Metadata,
};
use crate::{Error, Result, logits};

/// How to load a language model.
#[derive(Clone, Debug, Default)]
pub struct ModelOptions {
    /// Method to use; without a name it is `forward`, the only method that computes something, or `target` with its draft.
    pub method: Option<String>,
    /// Most tokens of one step; without it as the program says.
    pub chunk: Option<usize>,
    /// Positions of a cache that the program does not keep itself; without it as the program says.
    pub context: Option<usize>,
}

/// How a method wants positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Positions {
    /// It counts for itself.
    None,
    /// One per token, in a tensor of this rank.
    Each { rank: usize },
    /// That of the step's first token, in a tensor of this rank.
    First { rank: usize },
}

/// Which input is what.
#[derive(Clone, Copy, Debug)]
struct Signature {
    tokens: usize,
    tokens_dtype: DType,
    positions: Positions,
    position_dtype: DType,
    /// Most tokens of one step.
    longest: Option<usize>,
    /// Whether every step takes exactly `longest` tokens.
    fixed: bool,
    /// Whether inputs that say how to draw follow, and the result is a token.
    draws: bool,
}

/// A loaded language model and the sequence in its caches.
#[derive(Debug)]
pub struct LanguageModel {
    method: Method,
    /// Guesses tokens, if the program brings a method for that.
    draft: Option<Draft>,
    signature: Signature,
    metadata: Metadata,
    chunk: usize,
    position: usize,
    /// Number of tokens of each step in flight, oldest first.
    in_flight: VecDeque<usize>,
}

/// Steps to keep in flight behind the one whose token is awaited: with two, the device stays busy while the host handles a token
/// and prepares the next step.
pub const PIPELINE_DEPTH: usize = 2;

/// A step takes no more tokens than this where the program sets no bound.
const LONGEST_STEP: usize = 512;

impl LanguageModel {
    /// Loads a model.
    ///
    /// # Errors
    /// The program cannot be loaded, or the method's inputs are not tokens and positions.
    pub fn load(program: &Program, engine: &Arc<dyn Engine>, options: &ModelOptions) -> Result<LanguageModel> {
        let name = method_name(program, options.method.as_deref())?;
        let mut metadata = Metadata::of(program);
        metadata.context = options.context.filter(|_| !metadata.cache.is_empty()).or(metadata.context);
        let load = LoadOptions { kv_cache: metadata.cache_config(output_dtype(program, &name)), ..LoadOptions::default() };
        let method = program.method(&name, engine, &load)?;
        // Files without metadata still show how long their caches are.
        metadata.context = [metadata.context, method.cache_len()].into_iter().flatten().min();
        let what = |what| Error::Signature { method: name.clone(), what };
        let signature = read_signature(method.inputs()).map_err(what)?;
        let asked = options.chunk.or(metadata.chunk).unwrap_or(LONGEST_STEP).max(1);
        let chunk = if signature.fixed { signature.longest.unwrap_or(1) } else { asked.min(signature.longest.unwrap_or(asked)) };
        if signature.fixed && chunk != 1 {
            return Err(what(format!("every step takes exactly {chunk} tokens; export it with a dynamic number of tokens")));
        }
        let (chunk, in_flight) = (chunk.max(1), VecDeque::new());
        let drafts = options.method.is_none() && draft::has_draft(program);
        let draft = drafts.then(|| Draft::load(program, engine)).transpose()?;
        Ok(LanguageModel { method, draft, signature, metadata, chunk, position: 0, in_flight })
    }

    /// What the program says of the model.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The method behind the model.
    pub fn method(&mut self) -> &mut Method {
        &mut self.method
    }

    /// Most tokens of one step.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Number of tokens in the caches.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Tokens that still fit; `None` if neither the program's metadata nor its caches state a bound.
    pub fn room(&self) -> Option<usize> {
        self.metadata.context.map(|context| context.saturating_sub(self.position))
    }

    /// Forgets the sequence.
    pub fn reset(&mut self) {
        self.method.reset();
        self.draft.iter_mut().for_each(Draft::reset);
        self.in_flight.clear();
        self.position = 0;
    }

    /// Whether the sequence can be shortened: positions are inputs, and caches keep a row for each. What lies at or beyond a
    /// step's positions is then taken not to be read, as attention masks it.
    pub fn can_go_back(&self) -> bool {
        let keeps_rows = self.metadata.context.is_some_and(|context| self.method.keeps_rows(context));
        let is_windowed = self.metadata.cache.iter().any(|layer| layer.window.is_some());
        self.signature.positions != Positions::None && keeps_rows && !is_windowed && !self.metadata.is_recurrent
    }

    /// Shortens the sequence to its first `position` tokens, or forgets it if it [cannot](Self::can_go_back) be shortened; returns
    /// its length. A sequence that is no longer stays as it is.
    pub fn go_back(&mut self, position: usize) -> usize {
        self.cancel();
        if position == 0 || position < self.position && !self.can_go_back() {
            self.reset();
        }
        self.position = self.position.min(position);
        self.draft.iter_mut().for_each(|draft| draft.go_back(position));
        self.position
    }

    /// Appends up to [`chunk`](Self::chunk) tokens and returns the logits `[V]` of the token after the last one.
    ///
    /// # Errors
    /// The method fails, or its result is no logits.
    pub fn step(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let mut logits = Vec::new();
        self.step_into(tokens, &mut logits)?;
        Ok(logits)
    }

    /// As [`step`](Self::step), with the logits in the place of what `logits` held.
    ///
    /// # Errors
    /// As [`step`](Self::step); `logits` then holds anything.
    pub fn step_into(&mut self, tokens: &[u32], logits: &mut Vec<f32>) -> Result<()> {
        self.cancel();
        if self.signature.draws {
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

    /// Whether the program computes the logits of every token, and not only of a step's last one.
    pub fn gives_all_logits(&self) -> bool {
        let dims = self.method.outputs().first().and_then(ValueSpec::tensor).map_or(&[][..], |spec| &spec.dims);
        !self.signature.fixed && dims.len() == 3 && !matches!(dims[1], DimSpec::Fixed(_))
    }

    /// As [`step`](Self::step), with the logits [S, V] after each of the `S` tokens, of which there is one unless the program
    /// [gives them all](Self::gives_all_logits).
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn step_all(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.cancel();
        let inputs = self.inputs(tokens)?;
        let outputs = self.method.run(&inputs)?;
        self.position += tokens.len();
        logits::all(self.method.name(), outputs.first())
    }

    /// Whether a draft can guess what follows: it knows the whole sequence, and guesses that turn out wrong can be taken back.
    pub(super) fn can_speculate(&self) -> bool {
        self.draft.as_ref().is_some_and(|draft| draft.known() == self.position) && self.can_go_back()
    }

    /// Appends `last` and what greedy decoding makes of it, as far as a draft guesses it; returns the tokens that follow `last`, at
    /// least one, of which only the last is not in the caches.
    ///
    /// # Errors
    /// The model cannot [speculate](Self::can_speculate), or a method fails.
    pub(super) fn speculate(&mut self, last: u32) -> Result<Vec<u32>> {
        let fits = self.room().unwrap_or(usize::MAX).min(self.chunk).saturating_sub(1);
        let guesses = match &mut self.draft {
            Some(draft) if fits.min(draft.most()) > 0 => draft.guess(last, fits.min(draft.most()))?,
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

    /// Whether the program draws the next token itself, so that it gives no logits.
    pub fn draws_tokens(&self) -> bool {
        self.signature.draws
    }

    /// How the program is to draw the first token.
    ///
    /// # Errors
    /// It does not take all of these parameters.
    pub(super) fn first_draw(&self, params: &SamplingParams) -> Result<Draw> {
        Draw::first(params).map_err(|what| Error::Drawing { method: self.method.name().to_owned(), what })
    }

    /// Appends up to [`chunk`](Self::chunk) tokens to the sequence of a model that [draws tokens](Self::draws_tokens), and returns the
    /// token that it draws.
    ///
    /// # Errors
    /// The method fails, or its result is no token.
    pub(super) fn step_drawn(&mut self, tokens: &[u32], draw: Draw) -> Result<u32> {
        let mut inputs = self.inputs(tokens)?;
        inputs.extend(draw.inputs());
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

    /// Whether a step can be submitted before the token of the previous one is known. That takes a program whose positions are inputs.
    pub fn can_pipeline(&mut self) -> bool {
        let is_float = |spec: &ValueSpec| matches!(&spec.kind, ValueKind::Tensor(t) if t.dtype.is_float());
        let gives_logits = self.method.outputs().first().is_some_and(is_float);
        gives_logits && self.signature.positions != Positions::None && self.method.can_pipeline()
    }

    /// Enqueues a step of up to [`chunk`](Self::chunk) tokens; the engine samples the token that follows.
    ///
    /// # Errors
    /// The model [cannot pipeline](Self::can_pipeline). If the step itself fails, [`receive`](Self::receive) reports it.
    pub fn submit(&mut self, tokens: &[u32], sampling: Sampling) -> Result<()> {
        self.submit_step(tokens, None, sampling)
    }

    /// Enqueues a step on the token that the previous step samples.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_next(&mut self, sampling: Sampling) -> Result<()> {
        self.submit_step(&[0], Some(self.signature.tokens), sampling)
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
    /// The step failed, or none is in flight.
    pub fn receive(&mut self) -> Result<u32> {
        let token = self.method.receive()?;
        self.in_flight.pop_front();
        Ok(token)
    }

    /// Number of steps submitted and not yet received.
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
        let s = &self.signature;
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
            Positions::None => return Ok(vec![ids.into()]),
            Positions::Each { rank } => {
                let each: Vec<i64> = (start..start + tokens.len() as i64).collect();
                self.tensor(&each, &shape(rank, each.len()), s.position_dtype)?
            }
            Positions::First { rank } => self.tensor(&[start], &shape(rank, 1), s.position_dtype)?,
        };
        Ok(if s.tokens == 0 { vec![ids.into(), positions.into()] } else { vec![positions.into(), ids.into()] })
    }

    fn tensor(&self, values: &[i64], shape: &[usize], dtype: DType) -> Result<Tensor> {
        let fail = |e: flambeau_tensor::Error| Error::Signature { method: self.method.name().to_owned(), what: e.to_string() };
        cast(&Tensor::from_slice(values, shape).map_err(fail)?, dtype).map_err(fail)
    }
}

fn method_name(program: &Program, asked: Option<&str>) -> Result<String> {
    if let Some(name) = asked {
        return Ok(name.to_owned());
    }
    let names: Vec<&str> = program.computing_methods().collect();
    match names.as_slice() {
        names if names.contains(&"forward") => Ok("forward".to_owned()),
        _ if draft::has_draft(program) => Ok(draft::TARGET.to_owned()),
        [only] => Ok((*only).to_owned()),
        names => {
            let what = format!("name the method to use, the program has {}", names.join(", "));
            Err(Error::Signature { method: "forward".into(), what })
        }
    }
}

/// The type of the first output as the file states it: that in which the model computes.
fn output_dtype(program: &Program, name: &str) -> DType {
    program.output_dtype(name).filter(|d| d.is_float()).unwrap_or(DType::BF16)
}

fn is_integer(spec: &TensorSpec) -> bool {
    matches!(spec.dtype, DType::I32 | DType::I64)
}

/// Tokens are `[1, S]`; positions are one per token or a single one, in either order of inputs.
fn read_signature(inputs: &[ValueSpec]) -> Result<Signature, String> {
    let listed = || inputs.iter().map(ValueSpec::to_string).collect::<Vec<_>>().join(", ");
    let (inputs, draws) = draw::split_inputs(inputs);
    let unfit = || format!("expected tokens i64[1, S] and positions i64[S] or i64[1], found ({})", listed());
    let specs: Vec<&TensorSpec> = inputs.iter().filter_map(ValueSpec::tensor).filter(|s| is_integer(s)).collect();
    if specs.len() != inputs.len() || specs.is_empty() || specs.len() > 2 {
        return Err(unfit());
    }
    let is_tokens = |spec: &TensorSpec| spec.dims.len() == 2 && spec.dims.first().is_some_and(|d| d.admits(1));
    let named = |i: usize| inputs.get(i).and_then(|s| s.name.as_deref()).is_some_and(|n| n.contains("pos"));
    let tokens = match specs.as_slice() {
        [_, second] if is_tokens(second) && (named(0) || !specs.first().is_some_and(|s| is_tokens(s))) => 1,
        _ => 0,
    };
    let spec = specs.get(tokens).filter(|s| is_tokens(s)).ok_or_else(unfit)?;
    let steps = spec.dims.last().copied().ok_or_else(unfit)?;
    let (positions, position_dtype) = match specs.get(1 - tokens) {
        None => (Positions::None, DType::I64),
        Some(p) => {
            let rank = p.dims.len();
            let each = p.dims.last().is_some_and(|d| *d == steps || matches!(d, DimSpec::UpTo(_)));
            (if each { Positions::Each { rank } } else { Positions::First { rank } }, p.dtype)
        }
    };
    let fixed = matches!(steps, DimSpec::Fixed(_));
    Ok(Signature { tokens, tokens_dtype: spec.dtype, positions, position_dtype, longest: steps.max(), fixed, draws })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(name: &str, dtype: DType, dims: &[DimSpec]) -> ValueSpec {
        ValueSpec { name: Some(name.into()), kind: ValueKind::Tensor(TensorSpec { dtype, dims: dims.to_vec() }) }
    }

    #[test]
    fn known_signatures_are_told_apart() {
        let (one, many) = (DimSpec::Fixed(1), DimSpec::UpTo(Some(512)));
        let check = |inputs: &[ValueSpec], tokens, positions, longest, fixed| {
            let s = read_signature(inputs).unwrap();
            assert_eq!((s.tokens, s.positions, s.longest, s.fixed), (tokens, positions, Some(longest), fixed));
        };
        let tokens = |d| input("input_ids", DType::I64, &[one, d]);
        let cache_position = |d| input("cache_position", DType::I64, &[d]);
        check(&[tokens(many), cache_position(many)], 0, Positions::Each { rank: 1 }, 512, false);
        check(&[cache_position(many), tokens(many)], 1, Positions::Each { rank: 1 }, 512, false);
        check(&[tokens(many), cache_position(one)], 0, Positions::First { rank: 1 }, 512, false);
        check(&[tokens(one), cache_position(one)], 0, Positions::Each { rank: 1 }, 1, true);
        check(&[input("position_ids", DType::I64, &[one, many]), tokens(many)], 1, Positions::Each { rank: 2 }, 512, false);
        check(&[tokens(many)], 0, Positions::None, 512, false);
    }

    #[test]
    fn programs_that_draw_say_so_by_their_inputs() {
        let many = DimSpec::UpTo(Some(8));
        let mut inputs = vec![input("tokens", DType::I64, &[DimSpec::Fixed(1), many]), input("pos", DType::I64, &[many])];
        assert!(!read_signature(&inputs).unwrap().draws);
        inputs.extend([DType::F32, DType::I64, DType::F32, DType::I64].map(|dtype| input("how", dtype, &[])));
        let s = read_signature(&inputs).unwrap();
        assert_eq!((s.draws, s.positions, s.longest), (true, Positions::Each { rank: 1 }, Some(8)));
        inputs.swap(2, 3);
        assert!(read_signature(&inputs).unwrap_err().contains("expected tokens"));
    }

    #[test]
    fn other_signatures_are_refused_with_what_was_found() {
        let many = DimSpec::UpTo(Some(8));
        for inputs in [
            vec![],
            vec![input("x", DType::F32, &[DimSpec::Fixed(1), many])],
            vec![input("x", DType::I64, &[many])],
            vec![input("a", DType::I64, &[DimSpec::Fixed(2), many]), input("b", DType::I64, &[many])],
        ] {
            let message = read_signature(&inputs).unwrap_err();
            assert!(message.contains("expected tokens"), "{message}");
        }
    }
}
