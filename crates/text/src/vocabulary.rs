//! Vocabulary files of early releases: `vocab.json` with `merges.txt`, and `vocab.txt`. They become
//! a `tokenizer.json`, as transformers makes one.

mod added;
mod kind;

use serde_json::{Map, Value, json};

use self::{added::Added, kind::Kind};
use crate::{
    config::{parse_object, token_text},
    error::{Error, Result},
    word_piece::WordPiece,
};

/// Names of the files that [`tokenizer_files`] reads.
pub const VOCABULARY_FILES: [&str; 7] = [
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
];

/// Maximum number of pieces in a `vocab.txt`.
const MAX_PIECES: usize = 1 << 21;

/// A tokenizer in the form of later releases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertedTokenizer {
    /// `tokenizer.json`.
    pub tokenizer: Vec<u8>,
    /// `tokenizer_config.json`: the folder's own, with the special tokens that its class implies.
    pub tokenizer_config: Vec<u8>,
}

/// The files of a folder by name.
struct Files<'f, 'a>(&'f dyn Fn(&str) -> Option<&'a [u8]>);

impl Files<'_, '_> {
    /// A JSON object; empty if the file is missing.
    fn object(&self, name: &'static str) -> Result<Map<String, Value>> {
        (self.0)(name).map_or_else(|| Ok(Map::new()), |bytes| parse_object(name, bytes))
    }

    fn text(&self, name: &str) -> Result<Option<String>> {
        let decode = |bytes: &[u8]| std::str::from_utf8(bytes).map(str::to_owned);
        (self.0)(name).map(decode).transpose().map_err(|error| refused(format!("{name}: {error}")))
    }
}

fn refused(what: String) -> Error {
    Error::Tokenizer(what.into())
}

/// Converts the vocabulary of a folder without `tokenizer.json`. `file` gives the contents of
/// [`VOCABULARY_FILES`] by name. Returns `None` for a folder without a vocabulary.
///
/// # Errors
/// Damaged files give [`Error::Config`] or [`Error::Tokenizer`]. So do tokenizer classes besides
/// the classes of GPT-2, RoBERTa, BERT and MPNet.
pub fn tokenizer_files<'a>(file: &dyn Fn(&str) -> Option<&'a [u8]>) -> Result<Option<ConvertedTokenizer>> {
    let files = Files(file);
    let (merges, pieces) = (files.text("merges.txt")?, files.text("vocab.txt")?);
    let (vocab, merges) = match (file("vocab.json"), merges, pieces) {
        (Some(_), Some(merges), _) => (files.object("vocab.json")?, Some(merges)),
        (_, _, Some(pieces)) => (numbered(&pieces)?, None),
        _ => return Ok(None),
    };
    let mut config = files.object("tokenizer_config.json")?;
    let kind = Kind::of(&config, &files.object("config.json")?, merges.is_some())?;
    let map = files.object("special_tokens_map.json")?;
    for (role, default) in kind.roles() {
        let stated = config.get(role).or_else(|| map.get(role)).cloned();
        config.insert(role.to_owned(), stated.unwrap_or_else(|| default.map_or(Value::Null, |text| json!(text))));
    }
    let added = Added::new(&vocab, &config, &map, &files.object("added_tokens.json")?);
    let mut root = match &merges {
        Some(merges) => byte_level(vocab, merges, &config),
        None => word_piece(vocab, &config),
    };
    root.insert("version".into(), json!("1.0"));
    root.insert("post_processor".into(), kind.around(&added, &config)?);
    root.insert("added_tokens".into(), added.list());
    Ok(Some(ConvertedTokenizer {
        tokenizer: Value::Object(root).to_string().into_bytes(),
        tokenizer_config: Value::Object(config).to_string().into_bytes(),
    }))
}

/// The pieces of a `vocab.txt`, one a line, with their numbers. The last of equal pieces counts.
fn numbered(pieces: &str) -> Result<Map<String, Value>> {
    if pieces.lines().count() > MAX_PIECES {
        return Err(refused(format!("vocab.txt: more than {MAX_PIECES} lines")));
    }
    Ok(pieces.lines().enumerate().map(|(id, piece)| (piece.to_owned(), json!(id))).collect())
}

/// GPT-2's byte-level BPE.
fn byte_level(vocab: Map<String, Value>, merges: &str, config: &Map<String, Value>) -> Map<String, Value> {
    let prefix = flag(config, "add_prefix_space", false);
    let bytes = |prefix: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": true});
    let is_merge = |line: &&str| !line.starts_with("#version") && !line.trim().is_empty();
    let merges: Vec<&str> = merges.lines().filter(is_merge).collect();
    let mut root = Map::new();
    root.insert("pre_tokenizer".into(), bytes(prefix));
    root.insert("decoder".into(), bytes(true));
    root.insert("model".into(), json!({"type": "BPE", "vocab": vocab, "merges": merges}));
    root
}

/// BERT's WordPiece.
fn word_piece(vocab: Map<String, Value>, config: &Map<String, Value>) -> Map<String, Value> {
    let word_piece = WordPiece {
        vocab,
        unknown: token_text(config.get("unk_token")).unwrap_or("[UNK]"),
        divides_chinese: flag(config, "tokenize_chinese_chars", true),
        strips_accents: config.get("strip_accents").and_then(Value::as_bool),
        lowercases: flag(config, "do_lower_case", true),
    };
    word_piece.into_parts()
}

fn flag(config: &Map<String, Value>, key: &str, default: bool) -> bool {
    config.get(key).and_then(Value::as_bool).unwrap_or(default)
}
