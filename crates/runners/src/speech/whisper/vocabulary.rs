//! The ids that steer a Whisper, as its program states them.

use flambeau_text::{Tokenizer, log_probabilities};
use serde_json::Value as Json;

use super::{FAMILY, unfit};
use crate::{
    Result,
    speech::{Facts, text_decoder::special_token},
};

/// A language that a model knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Language {
    /// Its code, such as `en`.
    pub code: String,
    pub id: u32,
}

/// A second, in steps of 20 ms.
const LAST_INITIAL_TIMESTAMP: u32 = 50;

/// Special tokens and lists of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    /// Ends a window's text.
    pub end: u32,
    /// Begins a window's text.
    pub start: u32,
    /// Begins the text before the window.
    pub previous: u32,
    /// Marks a window without speech.
    pub no_speech: u32,
    /// Marks a text without timestamps.
    pub no_timestamps: u32,
    /// Tasks, in models of several languages.
    pub translate: Option<u32>,
    pub transcribe: Option<u32>,
    /// Empty for English-only models.
    pub languages: Vec<Language>,
    /// Never chosen.
    pub suppressed: Vec<u32>,
    /// Not chosen as the first token.
    pub suppressed_at_begin: Vec<u32>,
    /// The last timestamp that a window may begin with, in steps of 20 ms.
    pub last_initial_timestamp: u32,
    /// Tokens of the model.
    pub size: usize,
}

impl Vocabulary {
    pub(super) fn of(facts: &Facts<'_>) -> Result<Vocabulary> {
        let codes = facts.text("get_languages").unwrap_or_default();
        let ids = facts.ids("get_language_ids");
        let languages = codes.split(' ').zip(ids).map(|(code, id)| Language { code: code.to_owned(), id }).collect();
        Ok(Vocabulary {
            end: facts.id("get_eos_ids")?,
            start: facts.id("get_start_of_transcript_id")?,
            previous: facts.id("get_start_of_previous_id")?,
            no_speech: facts.id("get_no_speech_id")?,
            no_timestamps: facts.id("get_no_timestamps_id")?,
            translate: facts.ids("get_translate_id").first().copied(),
            transcribe: facts.ids("get_transcribe_id").first().copied(),
            languages,
            suppressed: facts.ids("get_suppress_ids"),
            suppressed_at_begin: facts.ids("get_begin_suppress_ids"),
            last_initial_timestamp: facts.ids("get_max_initial_timestamp_index").first().copied().unwrap_or(LAST_INITIAL_TIMESTAMP),
            size: facts.size("get_vocab_size")?,
        })
    }

    /// The special tokens of a tokenizer, for a model of `size` tokens.
    pub(super) fn of_tokenizer(tokenizer: &Tokenizer, size: usize) -> Result<Vocabulary> {
        let id = |name: &str| special_token(tokenizer, FAMILY, name);
        let (end, start, no_timestamps) = (id("<|endoftext|>")?, id("<|startoftranscript|>")?, id("<|notimestamps|>")?);
        let (translate, transcribe) = (id("<|translate|>")?, id("<|transcribe|>")?);
        let name = |id: u32| tokenizer.id_to_token(id)?.strip_prefix("<|")?.strip_suffix("|>").map(str::to_owned);
        let tasks = translate.min(transcribe);
        let languages: Vec<Language> = (start + 1..tasks).filter_map(|id| Some(Language { code: name(id)?, id })).collect();
        // English-only models have the token of English, but were trained without it.
        let knows_several = languages.len() > 1;
        Ok(Vocabulary {
            end,
            start,
            previous: id("<|startofprev|>")?,
            no_speech: id("<|nospeech|>").or_else(|_| id("<|nocaptions|>"))?,
            no_timestamps,
            translate: knows_several.then_some(translate),
            transcribe: knows_several.then_some(transcribe),
            languages: if knows_several { languages } else { Vec::new() },
            suppressed: (end + 1..no_timestamps).collect(),
            suppressed_at_begin: tokenizer.encode_plain(" ")?.into_iter().chain([end]).collect(),
            last_initial_timestamp: LAST_INITIAL_TIMESTAMP,
            size,
        })
    }

    /// Adds the lists of a `generation_config.json`.
    pub(super) fn suppress(&mut self, generation_config: &[u8]) -> Result<()> {
        let bad = |what: &str| unfit(format!("its generation_config.json {what}"));
        let config: Json = serde_json::from_slice(generation_config).map_err(|error| bad(&format!("is no JSON: {error}")))?;
        for (key, list) in [("suppress_tokens", &mut self.suppressed), ("begin_suppress_tokens", &mut self.suppressed_at_begin)] {
            let ids = match config.get(key) {
                None | Some(Json::Null) => continue,
                Some(ids) => ids.as_array().ok_or_else(|| bad(&format!("has no list as `{key}`")))?,
            };
            for id in ids {
                match id.as_i64() {
                    // Some files have -1 in the place of a list.
                    Some(-1) => {}
                    Some(id) if (0..self.size as i64).contains(&id) => list.push(id as u32),
                    _ => return Err(bad(&format!("has {id} in `{key}`, expected tokens below {}", self.size))),
                }
            }
        }
        Ok(())
    }

    /// The timestamp of 0 seconds. Later timestamps follow in steps of 20 ms to the end of the
    /// vocabulary.
    pub fn first_timestamp(&self) -> u32 {
        self.no_timestamps + 1
    }

    /// Whether an id is a timestamp.
    pub fn is_timestamp(&self, id: u32) -> bool {
        id >= self.first_timestamp()
    }

    /// The text tokens among `tokens`. Timestamps and other special tokens have higher ids.
    pub(crate) fn text_of<'t>(&self, tokens: &'t [u32]) -> impl Iterator<Item = u32> + use<'t> {
        let end = self.end;
        tokens.iter().copied().filter(move |&id| id < end)
    }

    /// Probability of the no-speech token, from the logits of the first token of a window's text.
    pub(super) fn no_speech_probability(&self, logits: &[f32]) -> f32 {
        log_probabilities(logits, &[self.no_speech])[0].exp()
    }

    /// The language with that code.
    pub fn language(&self, code: &str) -> Option<&Language> {
        self.languages.iter().find(|language| language.code == code)
    }
}

#[cfg(test)]
impl Vocabulary {
    /// Tokens 0 to 3 are text, 4 ends it, 5 to 8 are special, 9 marks a text without timestamps, 10
    /// to 19 are timestamps.
    pub(super) fn small() -> Vocabulary {
        Vocabulary {
            end: 4,
            start: 5,
            previous: 7,
            no_speech: 8,
            no_timestamps: 9,
            translate: None,
            transcribe: None,
            languages: Vec::new(),
            suppressed: vec![2, 5, 6, 7, 8],
            suppressed_at_begin: vec![3, 4],
            last_initial_timestamp: 4,
            size: 20,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_a_generation_config_are_added() {
        let mut vocabulary = Vocabulary::small();
        vocabulary.suppress(br#"{"suppress_tokens": [1, -1], "begin_suppress_tokens": [0], "max_length": 448}"#).unwrap();
        assert_eq!((&vocabulary.suppressed[..], &vocabulary.suppressed_at_begin[..]), (&[2, 5, 6, 7, 8, 1][..], &[3, 4, 0][..]));
        vocabulary.suppress(br#"{"suppress_tokens": null}"#).unwrap();
        for (config, complaint) in [
            (&b"{"[..], "no JSON"),
            (br#"{"suppress_tokens": 3}"#, "no list"),
            (br#"{"suppress_tokens": [20]}"#, "below 20"),
            (br#"{"begin_suppress_tokens": ["a"]}"#, "below 20"),
        ] {
            let error = vocabulary.suppress(config).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
        }
    }
}
