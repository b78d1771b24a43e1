//! Reads the tokenizer in a GGUF file.

use flambeau_text::GgufVocab;

use super::{Gguf, MetadataValue};
use crate::{Error, Result};

/// The vocabulary in the file's metadata.
///
/// # Errors
/// [`Error::Key`] for a value of the wrong kind.
pub(crate) fn vocab(file: &Gguf) -> Result<GgufVocab> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| -> Result<Option<u32>> {
        let value = file.int(&key(name))?;
        // Some writers store minus one for "none".
        value.filter(|&v| v != -1).map(|v| u32::try_from(v).map_err(|_| Error::key(key(name), "a token id", v))).transpose()
    };
    let float = |v: MetadataValue| match v {
        MetadataValue::Float(v) => Some(v as f32),
        MetadataValue::Int(v) => Some(v as f32),
        _ => None,
    };
    let int = |v: MetadataValue| if let MetadataValue::Int(v) = v { i32::try_from(v).ok() } else { None };
    let byte = |v: MetadataValue| if let MetadataValue::Int(v) = v { Some(v as u8) } else { None };
    Ok(GgufVocab {
        model: file.text(&key("model"))?.unwrap_or_default().to_owned(),
        pre: file.text(&key("pre"))?.map(str::to_owned),
        tokens: file.texts(&key("tokens"))?.to_vec(),
        scores: file.numbers(&key("scores"), float)?,
        token_types: file.numbers(&key("token_type"), int)?,
        merges: file.texts(&key("merges"))?.to_vec(),
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        other_eos: [id("eot_token_id")?, id("eom_token_id")?].into_iter().flatten().collect(),
        unk: id("unknown_token_id")?,
        pad: id("padding_token_id")?,
        cls: id("cls_token_id")?,
        sep: id("seperator_token_id")?,
        charsmap: file.numbers(&key("precompiled_charsmap"), byte)?,
        add_bos: file.bool(&key("add_bos_token"))?,
        add_eos: file.bool(&key("add_eos_token"))?,
        add_space_prefix: file.bool(&key("add_space_prefix"))?,
        chat_template: file.text("tokenizer.chat_template")?.map(str::to_owned),
    })
}
