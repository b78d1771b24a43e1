//! Default sampling settings of the server.

use anyhow::Result;
use flambeau::text::{GenerationDefaults, SamplingParams};

use crate::failure::usage;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DefaultsArgs {
    /// Default sampling temperature; without it the model's own, or 1
    #[arg(help_heading = "Defaults of requests", long, value_name = "T", alias = "temp", allow_negative_numbers = true)]
    temperature: Option<f32>,

    /// Sample from the K most likely tokens; 0 means all
    #[arg(help_heading = "Defaults of requests", long, value_name = "K")]
    top_k: Option<usize>,

    /// Nucleus sampling: sample from the most likely tokens whose probabilities sum up to P
    #[arg(help_heading = "Defaults of requests", long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,

    /// Drop tokens less likely than P times the most likely one
    #[arg(help_heading = "Defaults of requests", long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f32>,

    /// Repetition penalty on tokens that already occurred; 1 disables it
    #[arg(help_heading = "Defaults of requests", long, value_name = "R", allow_negative_numbers = true)]
    repeat_penalty: Option<f32>,
}

impl DefaultsArgs {
    /// Parameters from the flags, then from the model's `generation_config.json`, then from
    /// OpenAI's defaults.
    pub(crate) fn params(&self, advice: Option<&GenerationDefaults>) -> Result<SamplingParams> {
        let advised = advice.map_or_else(SamplingParams::default, |advice| advice.sampling(0));
        let samples = advice.is_some_and(|advice| advice.do_sample == Some(true));
        let base = if samples { advised } else { SamplingParams { temperature: 1.0, ..advised } };
        let params = SamplingParams {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition_penalty: self.repeat_penalty.unwrap_or(base.repetition_penalty),
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
    fn flags_come_before_advice_and_advice_before_openai() {
        let none = DefaultsArgs { temperature: None, top_k: None, top_p: None, min_p: None, repeat_penalty: None };
        let advice = GenerationDefaults { do_sample: Some(true), temperature: Some(0.6), top_k: Some(20), ..Default::default() };
        let check = |args: &DefaultsArgs, advice: Option<&GenerationDefaults>, expected| {
            let params = args.params(advice).unwrap();
            assert_eq!((params.temperature, params.top_k), expected);
        };
        check(&none, None, (1.0, 0));
        check(&none, Some(&GenerationDefaults::default()), (1.0, 0));
        check(&none, Some(&advice), (0.6, 20));
        check(&DefaultsArgs { temperature: Some(0.0), ..none.clone() }, Some(&advice), (0.0, 20));
        assert!(DefaultsArgs { top_p: Some(2.0), ..none }.params(None).is_err());
    }
}
