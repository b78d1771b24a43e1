//! Inputs of programs that sample tokens themselves.

use flambeau_runtime::{Value, ValueSpec};
use flambeau_tensor::{DType, Tensor};

use super::generate::Request;

/// Types of the inputs after tokens and positions: temperature, top-k, top-p and seed, each of rank
/// 0.
const INPUTS: [DType; 4] = [DType::F32, DType::I64, DType::F32, DType::I64];

/// Sampling parameters of a program's next token. The program filters the likeliest tokens and adds
/// noise derived from the seed to their logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SamplingInputs {
    temperature: f32,
    top_k: i64,
    top_p: f32,
    seed: i32,
}

impl SamplingInputs {
    /// Parameters of the first token; `Err` names an unsupported request. Only the lowest 31 bits
    /// of the seed count.
    pub(super) fn first(request: &Request) -> Result<SamplingInputs, &'static str> {
        let params = &request.sampling;
        if request.logprobs.is_some() {
            return Err("no request for log probabilities");
        }
        if request.constraint.is_some() {
            return Err("no grammar");
        }
        if params.adjusts_logits() {
            return Err("no penalties and no logit bias");
        }
        if params.min_p > 0.0 {
            return Err("no min-p");
        }
        let top_k = if params.top_k == 0 { i64::MAX } else { i64::try_from(params.top_k).unwrap_or(i64::MAX) };
        let seed = (params.seed & i32::MAX as u64) as i32;
        Ok(SamplingInputs { temperature: params.temperature, top_k, top_p: params.top_p, seed })
    }

    /// Parameters of the following token: the seed plus one.
    pub(super) fn next(self) -> SamplingInputs {
        SamplingInputs { seed: self.seed.wrapping_add(1) & i32::MAX, ..self }
    }

    /// The inputs after tokens and positions.
    pub(super) fn inputs(self) -> [Value; 4] {
        let (temperature, top_p) = (Tensor::scalar(self.temperature), Tensor::scalar(self.top_p));
        [temperature, Tensor::scalar(self.top_k), top_p, Tensor::scalar(i64::from(self.seed))].map(Value::Tensor)
    }
}

/// Splits off the sampling inputs; also returns whether there are any.
pub(super) fn split_inputs(inputs: &[ValueSpec]) -> (&[ValueSpec], bool) {
    let is = |(spec, dtype): (&ValueSpec, DType)| spec.tensor().is_some_and(|t| t.dtype == dtype && t.dims.is_empty());
    match inputs.split_last_chunk::<4>() {
        Some((before, sampling)) if sampling.iter().zip(INPUTS).all(is) => (before, true),
        _ => (inputs, false),
    }
}
