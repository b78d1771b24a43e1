//! Runs that follow one another on the device: each is submitted before the token of the one before is read.

use std::collections::VecDeque;

use flambeau_ir::engine::{Ahead, Draw, EngineError, TokenRun, Value};
use flambeau_tensor::DType;

use crate::{
    error::{OpError, Result},
    ffi::{Api, ArgReduce, Array, Binary, Order, Reduce, Unary},
    session::{Built, Fed, MlxSession, Pending, State, engine_error, last_entry},
};

/// Submitted runs.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// The token of each run that is not received, oldest first, or why there is none.
    tokens: VecDeque<Result<Array, EngineError>>,
    /// The token that the next run may be fed.
    last: Option<Array>,
}

/// Stands for a token where no logit is a number greater than −∞.
const NONE: f64 = -1.0;

impl Ahead for MlxSession {
    fn submit(&mut self, run: TokenRun) {
        self.post(move |state| {
            let token = state.submit(&run);
            state.in_flight.tokens.push_back(token);
        });
    }

    fn receive(&mut self) -> Result<u32, EngineError> {
        self.with_state(State::receive)?
    }

    fn forget(&mut self) {
        self.post(|state| state.in_flight = InFlight::default());
    }
}

impl State {
    fn submit(&mut self, run: &TokenRun) -> Result<Array, EngineError> {
        let fed = run.fed.map(|input| self.feed(input, &run.inputs)).transpose()?;
        let is_ahead = fed.is_some();
        self.machine.fused.iter_mut().for_each(|plan| plan.is_ahead = is_ahead);
        let built = self.build(&run.inputs, fed.as_ref());
        self.machine.fused.iter_mut().for_each(|plan| plan.is_ahead = false);
        let submitted = built.and_then(|built| self.submit_built(&built, run));
        if submitted.is_err() {
            self.settle();
        }
        let (token, last) = submitted?;
        self.in_flight.last = Some(last);
        Ok(token)
    }

    /// Begins to compute a run and its token, of which there are two handles then.
    fn submit_built(&self, built: &Built, run: &TokenRun) -> Result<(Array, Array), EngineError> {
        let Some(Pending::Array(logits)) = built.results.get(run.logits) else {
            return Err(EngineError::Arguments(format!("result {} holds no logits", run.logits)));
        };
        let submit = || {
            let token = draw(&row(logits)?, &run.draw)?;
            let buffers = self.buffers()?;
            self.machine.api.submit(std::iter::once(&token).chain(&buffers))?;
            Ok((token.share()?, token))
        };
        submit().map_err(engine_error)
    }

    /// The last run's token in place of an input.
    fn feed(&self, input: usize, inputs: &[Value]) -> Result<Fed, EngineError> {
        let refuse = |what: &str| EngineError::Arguments(format!("input {input} cannot be fed: {what}"));
        let last = self.in_flight.last.as_ref().ok_or_else(|| refuse("there is no run before"))?;
        let Some(Value::Tensor(replaced)) = inputs.get(input).filter(|v| matches!(v, Value::Tensor(t) if t.numel() == 1)) else {
            return Err(refuse("it is no tensor of one element"));
        };
        let array = last.cast(replaced.dtype()).and_then(|token| token.reshape(replaced.shape()));
        Ok(Fed { input, array: array.map_err(|e| engine_error(e.into()))? })
    }

    fn receive(&mut self) -> Result<u32, EngineError> {
        let none = || EngineError::Arguments("there is no submitted run".into());
        let token = self.in_flight.tokens.pop_front().ok_or_else(none)??;
        let read = token.to_tensor().map_err(OpError::from).and_then(|token| crate::ops::integers(&token));
        if read.is_err() {
            self.settle();
        }
        let id = read.map_err(engine_error)?.first().copied().unwrap_or(NONE as i64);
        u32::try_from(id).map_err(|_| EngineError::Arguments("no logit is a number greater than −∞".into()))
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
fn draw(logits: &Array, how: &Draw) -> Result<Array> {
    let (api, (dtype, _)) = (logits.api(), logits.spec()?);
    let lowest = scalar(api, f64::NEG_INFINITY, dtype)?;
    let z = logits.unary(Unary::IsNan)?.choose(&lowest, logits)?;
    let best = z.arg_reduce(ArgReduce::Max, 0, true)?;
    let max = z.take(&best, 0)?;
    let is_usable = max.binary(Binary::Greater, &lowest)?;
    let chosen = if how.temperature == 0.0 || how.top_k == 1 { best } else { pick(&z, &max, how)? };
    Ok(is_usable.choose(&chosen.cast(DType::I32)?, &scalar(api, NONE, DType::I32)?)?)
}

/// Draws by the running sum of weights: in the order of ids, or of descending weight where bounds need that order.
fn pick(z: &Array, max: &Array, how: &Draw) -> Result<Array> {
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
    let passed = count(sums.binary(Binary::LessEqual, &total.binary(Binary::Multiply, &number(how.unit)?)?)?)?;
    // Rounding can put the target at the total itself.
    let at = passed.binary(Binary::Minimum, &count(sums.binary(Binary::Less, &total)?)?)?;
    Ok(match order {
        Some(ids) => ids.take(&at, 0)?,
        None => at,
    })
}
