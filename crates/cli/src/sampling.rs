//! The flags that say how tokens are drawn.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use flambeau::text::SamplingParams;

use crate::failure::usage;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SamplingArgs {
    /// Sampling temperature; 0 is greedy decoding
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true, alias = "temp")]
    temperature: f32,

    /// Sample from the K most likely tokens; 0 means all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: usize,

    /// Nucleus sampling: sample from the most likely tokens whose probabilities sum up to P
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    top_p: f32,

    /// Drop tokens less likely than P times the most likely one
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    min_p: f32,

    /// Repetition penalty on tokens that occurred already; 1 is none
    #[arg(long, value_name = "R", default_value_t = 1.0, allow_negative_numbers = true)]
    repeat_penalty: f32,

    /// Seed for sampling; without it each run differs
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl SamplingArgs {
    pub(crate) fn params(&self) -> Result<SamplingParams> {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
        let params = SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            seed: self.seed.unwrap_or_else(clock),
            ..SamplingParams::default()
        };
        params.validate().map_err(|e| usage(e.to_string()))?;
        Ok(params)
    }
}
