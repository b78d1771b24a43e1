//! The flags that say how tokens are drawn.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use flambeau::text::{GenerationDefaults, SamplingParams};

use crate::failure::usage;

#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct SamplingArgs {
    /// Sampling temperature; 0 is greedy decoding. By default the model's own, if its
    /// generation_config.json asks for sampling, else 0
    #[arg(long, value_name = "T", allow_negative_numbers = true, alias = "temp")]
    temperature: Option<f32>,

    /// Sample from the K most likely tokens; 0 means all. By default the model's own, or all, as
    /// for the other flags
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,

    /// Nucleus sampling: sample from the most likely tokens whose probabilities sum up to P
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,

    /// Drop tokens less likely than P times the most likely one
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f32>,

    /// Repetition penalty on tokens that occurred already; 1 is none
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    repeat_penalty: Option<f32>,

    /// Seed for sampling; without it, or with -1, each run differs
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    seed: Option<Seed>,
}

/// A seed, or that there is none.
#[derive(Clone, Copy, Debug)]
struct Seed(Option<u64>);

fn seed(text: &str) -> Result<Seed, String> {
    match text {
        "-1" => Ok(Seed(None)),
        _ => text.parse().map(|seed| Seed(Some(seed))).map_err(|_| "expected a whole number from 0, or -1 for any".to_owned()),
    }
}

impl SamplingArgs {
    /// Parameters from the flags, then from the model's `generation_config.json`.
    pub(crate) fn params(&self, advice: Option<&GenerationDefaults>) -> Result<SamplingParams> {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
        let base = advice.map_or_else(SamplingParams::default, |advice| advice.sampling(0));
        let params = SamplingParams {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition_penalty: self.repeat_penalty.unwrap_or(base.repetition_penalty),
            seed: self.seed.and_then(|seed| seed.0).unwrap_or_else(clock),
            ..base
        };
        params.validate().map_err(|e| usage(e.to_string()))?;
        Ok(params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_come_before_what_the_makers_advise() {
        let none = SamplingArgs::default();
        let advice = GenerationDefaults {
            do_sample: Some(true),
            temperature: Some(0.6),
            top_k: Some(20),
            suppress_tokens: vec![7],
            ..Default::default()
        };
        let check = |args: &SamplingArgs, advice: Option<&GenerationDefaults>, expected| {
            let params = args.params(advice).unwrap();
            assert_eq!((params.temperature, params.top_k, params.logit_bias.len()), expected);
        };
        check(&none, None, (0.0, 0, 0));
        check(&none, Some(&advice), (0.6, 20, 1));
        check(&none, Some(&GenerationDefaults { do_sample: None, ..advice.clone() }), (0.0, 0, 1));
        check(&SamplingArgs { temperature: Some(0.0), ..none }, Some(&advice), (0.0, 20, 1));
        assert!(seed("-1").unwrap().0.is_none() && seed("5").unwrap().0 == Some(5) && seed("-2").is_err());
    }
}
