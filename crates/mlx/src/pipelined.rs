//! Pipelined decoding: each step is submitted before the token of the previous one is read.

use flambeau_ir::{
    Tid,
    engine::{DecodeStep, EngineError, Sampling, Value},
};
use flambeau_tensor::DType;

use crate::{
    error::{OpError, Result},
    ffi::{Api, ArgReduce, Array, Binary, Order, Reduce, Unary},
    ops::shape::Window,
    state::{Built, Pending, State, bytes_of, last_entry},
    tokens::{NONE, Submitted, Token},
    values::Feedback,
    values::Slot,
};

/// Maximum size in bytes of carried state kept for taking steps back.
const MAX_CARRIED_BYTES: u64 = 1 << 28;

impl State {
    /// Whether steps can be taken back.
    pub(crate) fn can_take_back(&self) -> bool {
        let m = &self.machine;
        let bytes = |tid: Tid| m.env.tensors.get(tid.0 as usize).and_then(Option::as_ref).map_or(0, bytes_of);
        !m.graph.draws_without_seed() && self.carried.iter().copied().map(bytes).sum::<u64>() <= MAX_CARRIED_BYTES
    }

    /// Handles to the carried state.
    pub(crate) fn carried(&self) -> Result<Vec<(Tid, Slot)>> {
        let m = &self.machine;
        let slot = |&tid: &Tid| m.env.tensors.get(tid.0 as usize).and_then(Option::as_ref).map(|slot| Ok((tid, slot.share()?)));
        self.carried.iter().filter_map(slot).collect()
    }

    pub(crate) fn take_back(&mut self) {
        let in_flight = std::mem::take(&mut self.in_flight);
        for (tid, slot) in in_flight.steps.into_iter().next().into_iter().flat_map(|step| step.before) {
            self.machine.set(tid, slot);
        }
    }

    /// Enqueues a step by itself.
    pub(crate) fn enqueue(&mut self, step: &DecodeStep) {
        let before = self.carried();
        let token = self.submit(step);
        let step = match before {
            Ok(before) => Submitted { token, before },
            Err(error) => Submitted { token: Err(error.into()), before: Vec::new() },
        };
        self.in_flight.steps.push_back(step);
    }

    fn submit(&mut self, step: &DecodeStep) -> Result<Token, EngineError> {
        let feedback = step.feedback.map(|input| self.feedback(input, &step.inputs)).transpose()?;
        let is_pipelined = feedback.is_some();
        self.main.plan.iter_mut().for_each(|plan| plan.is_pipelined = is_pipelined);
        let built = self.build(&step.inputs, feedback.as_ref());
        self.main.plan.iter_mut().for_each(|plan| plan.is_pipelined = false);
        let submitted = built.and_then(|built| self.submit_built(&built, step));
        if submitted.is_err() {
            self.settle();
        }
        let (token, last) = submitted?;
        self.in_flight.last = Some(Token::Own(last));
        Ok(Token::Own(token))
    }

    /// Enqueues a step and its token, and returns two handles to the token.
    fn submit_built(&self, built: &Built, step: &DecodeStep) -> Result<(Array, Array), EngineError> {
        let Some(Pending::Array(logits)) = built.results.get(step.logits) else {
            return Err(EngineError::Arguments(format!("result {} holds no logits", step.logits)));
        };
        let submit = || -> Result<_> {
            let token = sample(&row(logits)?, &step.sampling)?;
            let buffers = self.buffers()?;
            self.machine.api.submit(std::iter::once(&token).chain(&buffers))?;
            Ok((token.share()?, token))
        };
        submit().map_err(EngineError::from)
    }

    /// The token of the previous step in place of an input.
    pub(crate) fn feedback(&self, input: usize, inputs: &[Value]) -> Result<Feedback, EngineError> {
        let refuse = |what: &str| EngineError::Arguments(format!("input {input} cannot take the previous token: {what}"));
        let last = self.in_flight.last.as_ref().ok_or_else(|| refuse("there is no previous step"))?;
        let Some(Value::Tensor(replaced)) = inputs.get(input).filter(|v| matches!(v, Value::Tensor(t) if t.numel() == 1)) else {
            return Err(refuse("it is not a tensor of one element"));
        };
        let array = last.array().and_then(|last| Ok(last.cast(replaced.dtype())?.reshape(replaced.shape())?));
        Ok(Feedback { input, array: array? })
    }

    pub(crate) fn receive(&mut self) -> Result<u32, EngineError> {
        let none = || EngineError::Arguments("no step is in flight".into());
        let token = self.in_flight.steps.pop_front().ok_or_else(none)?.token?;
        let read = token.read();
        if read.is_err() {
            // The states kept for later steps derive from the failed step.
            self.in_flight.steps.iter_mut().for_each(|step| step.before.clear());
            self.settle();
        }
        let id = read.map_err(EngineError::from)?;
        u32::try_from(id).map_err(|_| EngineError::Arguments("no logit exceeds −∞".into()))
    }
}

/// The last row, `[V]`.
fn row(logits: &Array) -> Result<Array> {
    let last = last_entry(logits)?;
    let (_, shape) = last.spec()?;
    match (shape.last(), shape.iter().product::<usize>()) {
        (Some(&vocab), elements) if vocab > 0 && elements == vocab => Ok(last.reshape(&[vocab])?),
        _ => Err(OpError::value(format!("logits of one row were expected, found {:?}", &shape[..]))),
    }
}

fn scalar(api: Api, value: f64, dtype: DType) -> Result<Array> {
    Ok(Array::full(api, &[], value, dtype)?)
}

/// The token drawn from logits `[V]`, i32 `[1]`.
fn sample(logits: &Array, how: &Sampling) -> Result<Array> {
    let (api, (dtype, _)) = (logits.api(), logits.spec()?);
    let lowest = scalar(api, f64::NEG_INFINITY, dtype)?;
    let z = logits.unary(Unary::IsNan)?.choose(&lowest, logits)?;
    let best = z.arg_reduce(ArgReduce::Max, 0, true)?;
    let max = z.take(&best, 0)?;
    let is_usable = max.binary(Binary::Greater, &lowest)?;
    let chosen = if is_greedy(how) { best } else { pick(&z, &max, how)? };
    Ok(is_usable.choose(&chosen.cast(DType::I32)?, &scalar(api, NONE, DType::I32)?)?)
}

/// The tokens drawn from the rows of logits `[N, V]`, i32 `[N]`.
pub(crate) fn sample_rows(rows: &Array, how: &[&Sampling]) -> Result<Array> {
    let (api, (dtype, shape)) = (rows.api(), rows.spec()?);
    if !how.iter().all(|how| is_greedy(how)) {
        let row = |(i, how): (usize, &&Sampling)| {
            let row = Window::whole(&shape).narrow(0, i, 1, 1).of(rows)?;
            sample(&row.reshape(&[shape[1]])?, how)
        };
        let tokens = how.iter().enumerate().map(row).collect::<Result<Vec<_>>>()?;
        return Ok(Array::concatenate(api, &tokens, 0)?);
    }
    let lowest = scalar(api, f64::NEG_INFINITY, dtype)?;
    let z = rows.unary(Unary::IsNan)?.choose(&lowest, rows)?;
    let best = z.arg_reduce(ArgReduce::Max, 1, true)?;
    let is_usable = z.take_along_axis(&best, 1)?.binary(Binary::Greater, &lowest)?;
    let tokens = is_usable.choose(&best.cast(DType::I32)?, &scalar(api, NONE, DType::I32)?)?;
    Ok(tokens.reshape(&[shape[0]])?)
}

fn is_greedy(how: &Sampling) -> bool {
    how.temperature == 0.0 || how.top_k == 1
}

/// Samples by the running sum of weights: in the order of ids, or of descending weight if bounds
/// need that order.
fn pick(z: &Array, max: &Array, how: &Sampling) -> Result<Array> {
    let (api, f32s) = (z.api(), DType::F32);
    let number = |value: f32| scalar(api, value.into(), f32s);
    let (z, max) = (z.cast(f32s)?, max.cast(f32s)?);
    let below = z.binary(Binary::Subtract, &max)?.binary(Binary::Divide, &number(how.temperature)?)?;
    // An infinite maximum minus itself is no number.
    let mut weights = z.binary(Binary::Equal, &max)?.choose(&number(1.0)?, &below.unary(Unary::Exp)?)?;
    let mut order = None;
    let bounds_count = how.top_k > 0 && how.top_k < z.spec()?.1[0];
    if bounds_count || how.top_p < 1.0 {
        let mut ids = z.unary(Unary::Negative)?.order(Order::Argsort, 0)?;
        if bounds_count {
            ids = ids.slice(&[0], &[how.top_k as i64], &[1])?;
        }
        weights = weights.take(&ids, 0)?;
        order = Some(ids);
    }
    let keep = |weights: &Array, condition: Array| -> Result<Array> { Ok(condition.choose(weights, &number(0.0)?)?) };
    if how.top_p < 1.0 {
        let goal = weights.reduce(Reduce::Sum, &[0], true, 0)?.binary(Binary::Multiply, &number(how.top_p)?)?;
        let before = weights.cumsum(0, false, true)?.binary(Binary::Subtract, &weights)?;
        weights = keep(&weights, before.binary(Binary::Less, &goal)?)?;
    }
    if how.min_p > 0.0 {
        weights = keep(&weights, weights.binary(Binary::GreaterEqual, &number(how.min_p)?)?)?;
    }
    let sums = weights.cumsum(0, false, true)?;
    let last = weights.spec()?.1[0] as i64 - 1;
    let total = sums.slice(&[last], &[last + 1], &[1])?;
    let count = |condition: Array| condition.cast(DType::I32)?.reduce(Reduce::Sum, &[0], true, 0);
    let passed = count(sums.binary(Binary::LessEqual, &total.binary(Binary::Multiply, &number(how.uniform)?)?)?)?;
    // Rounding can put the target at the total itself.
    let at = passed.binary(Binary::Minimum, &count(sums.binary(Binary::Less, &total)?)?)?;
    Ok(match order {
        Some(ids) => ids.take(&at, 0)?,
        None => at,
    })
}
