//! Settings of answers, changed by `/set`.

use std::str::FromStr;

use anyhow::{Result, bail};
use flambeau::text::SamplingParams;

use crate::prompt::unescape;

/// Generation settings.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) sampling: SamplingParams,
    /// Maximum number of tokens per answer; `None` for as many as the context holds.
    pub(super) max_new_tokens: Option<usize>,
    pub(super) think: bool,
    /// Whether to print tokens per second after each answer.
    pub(super) stats: bool,
    pub(super) stop: Vec<String>,
}

/// Names of all settings.
const NAMES: [&str; 13] = [
    "temperature",
    "top-k",
    "top-p",
    "min-p",
    "repeat-penalty",
    "frequency-penalty",
    "presence-penalty",
    "repeat-last-n",
    "seed",
    "max-new-tokens",
    "think",
    "stats",
    "stop",
];

impl Settings {
    /// Changes a setting by its flag name.
    ///
    /// # Errors
    /// Fails if the name is unknown or the value is out of range; then nothing changes.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let mut new = self.clone();
        let sampling = &mut new.sampling;
        match name.replace('_', "-").as_str() {
            "temperature" => sampling.temperature = number(name, value)?,
            "top-k" => sampling.top_k = number(name, value)?,
            "top-p" => sampling.top_p = number(name, value)?,
            "min-p" => sampling.min_p = number(name, value)?,
            "repeat-penalty" => sampling.repetition_penalty = number(name, value)?,
            "frequency-penalty" => sampling.frequency_penalty = number(name, value)?,
            "presence-penalty" => sampling.presence_penalty = number(name, value)?,
            "repeat-last-n" => sampling.repeat_last_n = number(name, value)?,
            "seed" => sampling.seed = number(name, value)?,
            "max-new-tokens" | "num-predict" => {
                new.max_new_tokens = Some(value).filter(|value| *value != "-1").map(|value| number(name, value)).transpose()?
            }
            "think" => new.think = switch(name, value)?,
            "stats" => new.stats = switch(name, value)?,
            "stop" if value.is_empty() => new.stop.clear(),
            "stop" => new.stop.push(unescape(value).map_err(anyhow::Error::msg)?),
            _ => bail!("there is no setting {name}; there are {}", NAMES.join(", ")),
        }
        new.sampling.validate()?;
        *self = new;
        Ok(())
    }

    /// All settings, one per line.
    pub(super) fn lines(&self) -> Vec<String> {
        let s = &self.sampling;
        let switch = |on| if on { "on" } else { "off" }.to_owned();
        let values = [
            s.temperature.to_string(),
            s.top_k.to_string(),
            s.top_p.to_string(),
            s.min_p.to_string(),
            s.repetition_penalty.to_string(),
            s.frequency_penalty.to_string(),
            s.presence_penalty.to_string(),
            s.repeat_last_n.to_string(),
            s.seed.to_string(),
            self.max_new_tokens.map_or_else(|| "as many as the context holds".to_owned(), |count| count.to_string()),
            switch(self.think),
            switch(self.stats),
            self.stop.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(", "),
        ];
        NAMES.iter().zip(values).map(|(name, value)| format!("{name:18}{value}").trim_end().to_owned()).collect()
    }
}

fn number<T: FromStr>(name: &str, value: &str) -> Result<T> {
    value.parse().or_else(|_| bail!("{name} takes a number, not {value:?}"))
}

fn switch(name: &str, value: &str) -> Result<bool> {
    match value {
        "on" | "true" | "yes" | "1" | "" => Ok(true),
        "off" | "false" | "no" | "0" => Ok(false),
        _ => bail!("{name} is on or off, not {value:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings { sampling: SamplingParams::default(), max_new_tokens: None, think: false, stats: false, stop: Vec::new() }
    }

    #[test]
    fn settings_change_by_the_names_of_flags() {
        let mut own = settings();
        for (name, value) in
            [("temperature", "0.5"), ("top_k", "7"), ("think", "on"), ("stop", "a\\n"), ("max-new-tokens", "9"), ("seed", "3")]
        {
            own.set(name, value).unwrap();
        }
        assert_eq!((own.sampling.temperature, own.sampling.top_k, own.sampling.seed), (0.5, 7, 3));
        assert_eq!((own.think, own.max_new_tokens, own.stop.clone()), (true, Some(9), vec!["a\n".to_owned()]));
        own.set("stop", "").unwrap();
        own.set("max-new-tokens", "-1").unwrap();
        assert!(own.stop.is_empty() && own.max_new_tokens.is_none());
    }

    #[test]
    fn wrong_settings_change_nothing() {
        let mut own = settings();
        for (name, value) in [("temperature", "hot"), ("temperature", "-1"), ("top-p", "0"), ("think", "maybe"), ("heat", "1")] {
            assert!(own.set(name, value).is_err(), "{name} {value}");
        }
        assert_eq!(own.sampling, SamplingParams::default());
        assert!(own.set("heat", "1").unwrap_err().to_string().contains("temperature, top-k"));
        assert_eq!(own.lines().len(), NAMES.len());
    }
}
