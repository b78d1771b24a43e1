//! Reads sentence-transformers' files: pooling of token vectors to a text vector.

use serde_json::{Map, Value};

use super::Files;
use crate::{
    Error, Result,
    encoder::{Pooling, Sentence},
    fields::Fields,
};

const MODULES: &str = "modules.json";
/// Settings of the module that holds the model.
const SETTINGS: &str = "sentence_bert_config.json";
const PROMPTS: &str = "config_sentence_transformers.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// The end of a path to the config of a module, such as `1_Pooling/config.json`. A module's folder
/// has a number in its name.
pub(crate) fn module_config(path: &str) -> Option<&str> {
    let start = path.strip_suffix("/config.json")?;
    let folder = start.rsplit(['/', '\\']).next()?;
    let (number, name) = folder.split_once('_')?;
    let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (number.parse::<u8>().is_ok() && !name.is_empty() && is_plain).then(|| &path[start.len() - folder.len()..])
}

/// The folder's settings for text vectors.
///
/// # Errors
/// [`Error::File`] and [`Error::Key`] for unsupported modules.
pub(super) fn read(files: &Files) -> Result<Sentence> {
    let mut sentence = Sentence::default();
    if let Some(list) = files.value(MODULES)? {
        let bad = |what: String| Error::file(MODULES, what);
        let list = list.as_array().ok_or_else(|| bad("expected a list of modules".into()))?;
        for module in list {
            let kind = module["type"].as_str().and_then(|kind| kind.rsplit('.').next()).unwrap_or_default();
            let path = module["path"].as_str().unwrap_or_default();
            match kind {
                "Transformer" if path.is_empty() => {}
                "Pooling" => sentence.pooling = pooling(files, path)?,
                "Normalize" => sentence.normalizes = true,
                other => {
                    return Err(bad(format!(
                        "the module `{other}` in `{path}` is not computed here: only Transformer, Pooling, Normalize"
                    )));
                }
            }
        }
    }
    if let Some(map) = files.json(SETTINGS)? {
        let f = Fields::new(&map);
        sentence.max_tokens = f.size_opt("max_seq_length")?;
        if f.bool_or("do_lower_case", false)? && !lowers_case(files)? {
            return Err(Error::file(SETTINGS, "`do_lower_case` is true, and the tokenizer keeps the case"));
        }
    }
    if sentence.max_tokens.is_none() {
        let stated = files.json(TOKENIZER_CONFIG)?.and_then(|config| config.get("model_max_length")?.as_u64());
        sentence.max_tokens = stated.filter(|&n| n > 0).and_then(|n| usize::try_from(n).ok());
    }
    if let Some(prompts) = files.json(PROMPTS)?
        && let Some(name) = Fields::new(&prompts).text("default_prompt_name")?
    {
        return Err(Error::file(PROMPTS, format!("the prompt `{name}` stands before every text, which is not done here")));
    }
    Ok(sentence)
}

fn pooling(files: &Files, path: &str) -> Result<Pooling> {
    let name = format!("{path}/config.json");
    let map: Map<String, Value> = files.json(&name)?.ok_or_else(|| Error::MissingFile(name.clone()))?;
    let f = Fields::new(&map);
    let known = [
        ("cls", "pooling_mode_cls_token", Pooling::Cls),
        ("mean", "pooling_mode_mean_tokens", Pooling::Mean),
        ("max", "pooling_mode_max_tokens", Pooling::Max),
    ];
    let mut chosen = Vec::new();
    if let Some(mode) = f.text("pooling_mode")? {
        chosen.push(mode);
    }
    chosen.extend(
        map.iter()
            .filter(|(key, value)| key.starts_with("pooling_mode_") && **value == Value::Bool(true))
            .map(|(key, _)| key.as_str()),
    );
    match chosen[..] {
        [one] => {
            let found = known.iter().find(|(mode, key, _)| *mode == one || *key == one);
            found
                .map(|(_, _, pooling)| *pooling)
                .ok_or_else(|| Error::file(&name, format!("pooling by `{one}` is not computed here: only cls, mean, max")))
        }
        _ => Err(Error::file(&name, format!("expected one way of pooling, found {}", chosen.len()))),
    }
}

fn lowers_case(files: &Files) -> Result<bool> {
    Ok(files.json(TOKENIZER)?.is_some_and(|tokenizer| tokenizer["normalizer"]["lowercase"] == Value::Bool(true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configs_of_modules_are_told_from_others() {
        for (path, expected) in [
            ("1_Pooling/config.json", Some("1_Pooling/config.json")),
            ("some/where/2_Dense/config.json", Some("2_Dense/config.json")),
            ("config.json", None),
            ("model/config.json", None),
            ("1_/config.json", None),
            ("1_Pooling/model.json", None),
            ("1_..%2f/config.json", None),
        ] {
            assert_eq!(module_config(path), expected, "{path}");
        }
    }
}
