//! Sampling flags.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use flambeau::text::{GenerationDefaults, SamplingParams, Tokenizer};

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

    /// Repetition penalty on tokens that already occurred; 1 disables it
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    repeat_penalty: Option<f32>,

    /// Frequency penalty: subtracted from a token's logit for each occurrence; 0 disables it
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,

    /// Presence penalty: subtracted from the logit of each token that occurred; 0 disables it
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,

    /// Number of recent tokens that the penalties consider; 0 or -1 means all
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = last_tokens)]
    repeat_last_n: Option<usize>,

    /// Bias on the logit of a token: ID+X, ID-X, or ID-inf to forbid it; repeatable
    #[arg(long, value_name = "ID+X", value_parser = bias)]
    logit_bias: Vec<(u32, f32)>,

    /// Seed for sampling; without it, or with -1, each run differs
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    seed: Option<Seed>,
}

/// A seed, or a random one.
#[derive(Clone, Copy, Debug)]
struct Seed(Option<u64>);

fn seed(text: &str) -> Result<Seed, String> {
    match text {
        "-1" => Ok(Seed(None)),
        _ => text.parse().map(|seed| Seed(Some(seed))).map_err(|_| "expected a whole number from 0, or -1 for any".to_owned()),
    }
}

fn last_tokens(text: &str) -> Result<usize, String> {
    match text {
        "-1" => Ok(0),
        _ => text.parse().map_err(|_| "expected a whole number from 0, or -1 for all".to_owned()),
    }
}

/// A token ID and the bias of its logit.
fn bias(text: &str) -> Result<(u32, f32), String> {
    let wrong = || format!("expected ID+X, ID-X or ID-inf, such as 15043-1.5, found {text}");
    let at = text.find(['+', '-', '=']).ok_or_else(wrong)?;
    let number = text[at..].trim_start_matches('=');
    let bias: f32 = number.parse().map_err(|_| wrong())?;
    match text[..at].parse() {
        Ok(id) if !bias.is_nan() => Ok((id, bias)),
        _ => Err(wrong()),
    }
}

impl SamplingArgs {
    /// Refuses biases of tokens that the model does not have.
    pub(crate) fn check_tokens(&self, tokenizer: &Tokenizer) -> Result<()> {
        let size = tokenizer.vocab_size();
        match self.logit_bias.iter().find(|(id, _)| *id as usize >= size) {
            Some((id, _)) => Err(usage(format!("--logit-bias {id}: the model has no such token; its ids are below {size}"))),
            None => Ok(()),
        }
    }

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
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            repeat_last_n: self.repeat_last_n.unwrap_or(base.repeat_last_n),
            logit_bias: [base.logit_bias.as_slice(), &self.logit_bias].concat(),
            seed: self.seed.and_then(|seed| seed.0).unwrap_or_else(clock),
        };
        params.validate().map_err(|e| usage(e.to_string()))?;
        Ok(params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_are_read() {
        let parsed = ["7+1.5", "7-1", "7=-2", "7-inf"].map(|text| bias(text).unwrap());
        assert_eq!(parsed, [(7, 1.5), (7, -1.0), (7, -2.0), (7, f32::NEG_INFINITY)]);
        assert!(["7", "x+1", "7+x", "7+nan", "+1"].iter().all(|text| bias(text).is_err()));
        assert!(last_tokens("-1") == Ok(0) && last_tokens("64") == Ok(64) && last_tokens("-2").is_err());
    }

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
