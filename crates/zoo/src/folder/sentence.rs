//! Reads sentence-transformers' files: how token vectors become a text vector, and the prompts.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::Files;
use crate::{
    Error, Result,
    encoder::{Dense, DenseActivation, Pooling, Prompts, Sentence, SparsePooling, Step},
    fields::Fields,
};

const MODULES: &str = "modules.json";
/// Settings of the module that holds the model.
const SETTINGS: &str = "sentence_bert_config.json";
const PROMPTS: &str = "config_sentence_transformers.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// The end of a path to a file of a module, such as `1_Pooling/config.json`. A module's folder has
/// a number in its name.
pub(crate) fn module_file(path: &str) -> Option<&str> {
    let start = ["/config.json", "/model.safetensors"].iter().find_map(|name| path.strip_suffix(name))?;
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
                "Transformer" | "MLMTransformer" if path.is_empty() => {}
                "Pooling" => {
                    sentence.is_stated = true;
                    sentence.pooling = pooling(files, path)?;
                }
                "Normalize" => sentence.steps.push(Step::Normalize),
                "SpladePooling" => {
                    sentence.is_stated = true;
                    sentence.sparse = Some(sparse(files, path)?);
                }
                "LogitScore" => sentence.answers = Some(answers(files, path)?),
                "Dense" if sentence.is_stated => sentence.steps.push(Step::Dense(dense(files, path)?)),
                other => {
                    return Err(bad(format!(
                        "the module `{other}` in `{path}` is not supported: expected Transformer, Pooling, Dense, Normalize, LogitScore or SpladePooling"
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
    if let Some(map) = files.json(PROMPTS)? {
        sentence.prompts = prompts(&map)?;
    }
    Ok(sentence)
}

/// Pooling of logits to a sparse vector.
fn sparse(files: &Files, path: &str) -> Result<SparsePooling> {
    let name = format!("{path}/config.json");
    let map = files.json(&name)?.ok_or_else(|| Error::MissingFile(name.clone()))?;
    let f = Fields::new(&map);
    let sums = match f.text("pooling_strategy")? {
        None | Some("max") => false,
        Some("sum") => true,
        Some(_) => return Err(f.error("pooling_strategy", "max or sum")),
    };
    let twice = match f.text("activation_function")? {
        None | Some("relu") => false,
        Some("log1p_relu") => true,
        Some(_) => return Err(f.error("activation_function", "relu or log1p_relu")),
    };
    Ok(SparsePooling { sums, twice })
}

/// Prompts by name, and the default one.
fn prompts(map: &Map<String, Value>) -> Result<Prompts> {
    let bad = |what: String| Error::file(PROMPTS, what);
    let texts = match map.get("prompts") {
        None | Some(Value::Null) => BTreeMap::new(),
        Some(Value::Object(prompts)) => {
            let text = |(name, text): (&String, &Value)| Some((name.clone(), text.as_str()?.to_owned()));
            let texts: Option<BTreeMap<_, _>> = prompts.iter().filter(|(_, text)| !text.is_null()).map(text).collect();
            texts.ok_or_else(|| bad("expected texts in `prompts`".into()))?
        }
        Some(_) => return Err(bad("expected an object `prompts`".into())),
    };
    let default = Fields::new(map).text("default_prompt_name")?.map(str::to_owned);
    match default.as_ref().filter(|name| !texts.contains_key(*name)) {
        Some(name) => Err(bad(format!("the default prompt `{name}` is not among `prompts`"))),
        None => Ok(Prompts { texts, default }),
    }
}

fn pooling(files: &Files, path: &str) -> Result<Vec<Pooling>> {
    let name = format!("{path}/config.json");
    let map: Map<String, Value> = files.json(&name)?.ok_or_else(|| Error::MissingFile(name.clone()))?;
    let f = Fields::new(&map);
    if !f.bool_or("include_prompt", true)? {
        return Err(Error::file(&name, "`include_prompt` is false: pooling without the tokens of a prompt is not supported"));
    }
    let known = |found: &str, of: fn(Pooling) -> &'static str| {
        let pooling = Pooling::ALL.into_iter().find(|pooling| of(*pooling) == found);
        let names = || Pooling::ALL.map(Pooling::name).join(", ");
        pooling.ok_or_else(|| Error::file(&name, format!("pooling by `{found}` is not supported: expected {}", names())))
    };
    let modes = match map.get("pooling_mode") {
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        Some(Value::String(mode)) => vec![mode.as_str()],
        _ => Vec::new(),
    };
    if !modes.is_empty() {
        return modes.into_iter().map(|mode| known(mode, Pooling::name)).collect();
    }
    let flags = map.iter().filter(|(key, value)| key.starts_with("pooling_mode_") && **value == Value::Bool(true));
    let chosen = flags.map(|(key, _)| known(key, Pooling::flag)).collect::<Result<Vec<_>>>()?;
    match chosen.is_empty() {
        true => Err(Error::file(&name, "expected a way of pooling, found none")),
        false => Ok(Pooling::ALL.into_iter().filter(|pooling| chosen.contains(pooling)).collect()),
    }
}

/// Answers of a language model for relevant and for other documents.
fn answers(files: &Files, path: &str) -> Result<[u32; 2]> {
    let name = format!("{path}/config.json");
    let map = files.json(&name)?.ok_or_else(|| Error::MissingFile(name.clone()))?;
    let token = |key: &str| map.get(key).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
    let both = token("true_token_id").zip(token("false_token_id"));
    let missing = || Error::file(&name, "expected token ids under `true_token_id` and `false_token_id`");
    both.map(|(yes, no)| [yes, no]).ok_or_else(missing)
}

fn dense(files: &Files, path: &str) -> Result<Dense> {
    let name = format!("{path}/config.json");
    let map: Map<String, Value> = files.json(&name)?.ok_or_else(|| Error::MissingFile(name.clone()))?;
    let f = Fields::new(&map);
    f.expect_text("module_input_name", "sentence_embedding")?;
    f.expect_text("module_output_name", "sentence_embedding")?;
    f.expect_bool("use_residual", false)?;
    let class = f.text("activation_function")?.unwrap_or("torch.nn.modules.activation.Tanh");
    let activation = DenseActivation::from_name(class.rsplit('.').next().unwrap_or_default());
    let refused = || {
        Error::file(
            &name,
            format!("the activation `{class}` is not supported: expected Identity, Tanh, Sigmoid, ReLU, GELU or SiLU"),
        )
    };
    Ok(Dense {
        module: path.to_owned(),
        inputs: f.size("in_features")?,
        outputs: f.size("out_features")?,
        bias: f.bool_or("bias", true)?,
        activation: activation.ok_or_else(refused)?,
    })
}

fn lowers_case(files: &Files) -> Result<bool> {
    if let Some(tokenizer) = files.json(TOKENIZER)? {
        return Ok(tokenizer["normalizer"]["lowercase"] == Value::Bool(true));
    }
    // The vocabulary of BERT is in lower case unless the config says otherwise.
    let config = files.json(TOKENIZER_CONFIG)?.unwrap_or_default();
    Ok(files.0.contains_key("vocab.txt") && config.get("do_lower_case") != Some(&Value::Bool(false)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_modules_are_told_from_others() {
        for (path, expected) in [
            ("1_Pooling/config.json", Some("1_Pooling/config.json")),
            ("some/where/2_Dense/config.json", Some("2_Dense/config.json")),
            ("2_Dense/model.safetensors", Some("2_Dense/model.safetensors")),
            ("model.safetensors", None),
            ("config.json", None),
            ("model/config.json", None),
            ("1_/config.json", None),
            ("1_Pooling/model.json", None),
            ("1_..%2f/config.json", None),
        ] {
            assert_eq!(module_file(path), expected, "{path}");
        }
    }
}
