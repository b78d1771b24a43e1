//! Shared request parameters: sampling and stop conditions.

use flambeau::{
    runners::llm::{Adapters, Job, Request},
    text::{Constraint, SamplingParams, StopMatcher},
};
use serde_json::Value as Json;

use crate::{
    error::{ApiError, Result},
    json::{Fields, wrong},
    model::{Handle, Served},
};

/// Maximum number of biased tokens.
const MAX_BIASES: usize = 4096;
/// Maximum number of tokens per answer.
const MAX_TOKENS: u64 = i32::MAX as u64;
/// Maximum number of listed alternatives per token.
pub(crate) const MAX_TOP: u64 = 20;

/// Parameters of a request.
#[derive(Clone, Debug)]
pub(crate) struct Params {
    sampling: SamplingParams,
    max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    ignore_eos: bool,
    reuses: bool,
    adapters: Adapters,
    pub(crate) choices: usize,
    /// Number of listed alternatives per token, if log probabilities are requested.
    pub(crate) logprobs: Option<usize>,
    /// Control tokens that stay in the text.
    pub(crate) shown_ids: Vec<u32>,
    /// Additional end tokens.
    pub(crate) end_ids: Vec<u32>,
    /// Constraint on the answers.
    pub(crate) constraint: Option<Constraint>,
}

impl Params {
    /// Takes the fields shared by all endpoints.
    ///
    /// # Errors
    /// The error names the field with an invalid value.
    pub(crate) fn read(fields: &mut Fields, model: &Handle, most_choices: usize) -> Result<Params> {
        let max_tokens = fields.count("max_completion_tokens", 1..=MAX_TOKENS)?;
        let legacy = fields.count("max_tokens", 0..=MAX_TOKENS)?;
        let other = fields.count("n_predict", 0..=MAX_TOKENS)?;
        let choices = fields.count("n", 1..=most_choices as u64)?.unwrap_or(1);
        if let Some(best_of) = fields.count("best_of", 1..=MAX_TOKENS)?.filter(|&best_of| best_of != choices) {
            return Err(ApiError::unsupported("best_of", format!("`best_of` {best_of} must be `n`: answers are not compared")));
        }
        let adapters = match fields.list("lora")? {
            Some(list) => model.lora.read(&list)?,
            None => model.adapters(),
        };
        Ok(Params {
            sampling: sampling(fields, model)?,
            max_tokens: max_tokens.or(legacy).or(other),
            stop: stop(fields)?,
            ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
            reuses: fields.flag("cache_prompt")?.unwrap_or(true),
            adapters,
            choices,
            logprobs: None,
            shown_ids: Vec::new(),
            end_ids: Vec::new(),
            constraint: None,
        })
    }

    /// Sets a default length limit.
    pub(crate) fn limit_tokens(&mut self, most: usize) {
        self.max_tokens.get_or_insert(most);
    }

    /// One job per choice, each with its own seed.
    pub(crate) fn jobs(&self, prompt: &[u32], model: &Served) -> Vec<Job> {
        // An answer without a limit may fill the context. Its default limit is not refused.
        let most = model.limits.tokens.saturating_sub(prompt.len()).max(1);
        let job = |number: usize| Job {
            request: Request {
                prompt: prompt.to_vec(),
                adapters: self.adapters.clone(),
                max_new_tokens: self.max_tokens.unwrap_or(most),
                sampling: SamplingParams { seed: self.sampling.seed.wrapping_add(number as u64), ..self.sampling.clone() },
                stop: self.stop.clone(),
                stop_ids: model.stop_ids.iter().chain(&self.end_ids).copied().collect(),
                shown_ids: self.shown_ids.clone(),
                ignore_eos: self.ignore_eos,
                logprobs: self.logprobs,
                constraint: self.constraint.clone(),
                prompt_lookup: model.prompt_lookup,
                shift: model.shift,
                ..Request::default()
            },
            reuses: self.reuses,
        };
        (0..self.choices).map(job).collect()
    }
}

fn sampling(fields: &mut Fields, model: &Served) -> Result<SamplingParams> {
    let base = &model.sampling;
    let largest = f64::from(f32::MAX);
    let number = |value: Option<f64>, base: f32| value.map_or(base, |value| value as f32);
    let penalty = fields.number("repetition_penalty", f64::from(f32::MIN_POSITIVE)..=largest)?;
    let repeat = fields.number("repeat_penalty", f64::from(f32::MIN_POSITIVE)..=largest)?;
    let params = SamplingParams {
        temperature: number(fields.number("temperature", 0.0..=2.0)?, base.temperature),
        top_p: number(fields.number("top_p", 0.0..=1.0)?, base.top_p),
        top_k: fields.count("top_k", 0..=MAX_TOKENS)?.unwrap_or(base.top_k),
        min_p: number(fields.number("min_p", 0.0..=1.0)?, base.min_p),
        repetition_penalty: number(penalty.or(repeat), base.repetition_penalty),
        frequency_penalty: number(fields.number("frequency_penalty", -2.0..=2.0)?, base.frequency_penalty),
        presence_penalty: number(fields.number("presence_penalty", -2.0..=2.0)?, base.presence_penalty),
        repeat_last_n: fields.count("repeat_last_n", 0..=MAX_TOKENS)?.unwrap_or(base.repeat_last_n),
        logit_bias: base.logit_bias.iter().copied().chain(biases(fields, model)?).collect(),
        seed: seed(fields)?,
    };
    // The fields above are checked, except for probabilities of 0.
    params.validate().map_err(|error| ApiError::value("top_p", error.to_string()))?;
    Ok(params)
}

fn seed(fields: &mut Fields) -> Result<u64> {
    match fields.take("seed") {
        None => Ok(fastrand::u64(..)),
        Some(value) => {
            let seed = value.as_u64().or_else(|| value.as_i64().map(|seed| seed as u64));
            seed.ok_or_else(|| wrong("seed", "a whole number of at most 64 bits", &value))
        }
    }
}

/// Parses OpenAI's bias object: token IDs as strings, mapped to numbers from −100 to 100.
fn biases(fields: &mut Fields, model: &Served) -> Result<Vec<(u32, f32)>> {
    const NAME: &str = "logit_bias";
    let Some(map) = fields.object(NAME)? else { return Ok(Vec::new()) };
    if map.len() > MAX_BIASES {
        return Err(ApiError::value(NAME, format!("`{NAME}` has {} tokens, and takes at most {MAX_BIASES}", map.len())));
    }
    let vocabulary = model.tokenizer.vocab_size();
    let bias = |(id, value): (&String, &Json)| {
        let id = id.parse::<u32>().ok().filter(|&id| (id as usize) < vocabulary);
        let bias = value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        id.zip(bias.map(|bias| bias as f32)).ok_or_else(|| {
            ApiError::value(NAME, format!("`{NAME}` must map token ids below {vocabulary} to numbers from -100 to 100"))
        })
    };
    map.iter().map(bias).collect()
}

/// A string or a list of strings.
fn stop(fields: &mut Fields) -> Result<Vec<String>> {
    const NAME: &str = "stop";
    let list = match fields.take(NAME) {
        None => Vec::new(),
        Some(Json::Array(list)) => list,
        Some(value) => vec![value],
    };
    let text = |value: Json| match value {
        Json::String(text) => Ok(text),
        other => Err(wrong(NAME, "a text or a list of texts", &other)),
    };
    let stops = list.into_iter().map(text).collect::<Result<Vec<_>>>()?;
    StopMatcher::new(&stops).map_err(|error| ApiError::value(NAME, error.to_string()))?;
    Ok(stops)
}
