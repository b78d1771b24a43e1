//! Classes of tokenizers: their special tokens, and the tokens around texts.

use serde_json::{Map, Value, json};

use super::{added::Added, flag, refused};
use crate::{config::token_text, error::Result};

/// A class of transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Byte-level BPE, with a first token where the config asks for it.
    Gpt2,
    /// Byte-level BPE with tokens around each text.
    Roberta,
    /// WordPiece.
    Bert,
    /// WordPiece with the special tokens of RoBERTa.
    MpNet,
}

/// Special tokens by role; `None` if the class implies none.
type Roles = [(&'static str, Option<&'static str>); 7];

/// Names of classes without `Tokenizer` and `TokenizerFast`, and families without a stated class.
const KINDS: [(&[&str], &[&str], Kind); 4] = [
    (&["GPT2", "CodeGen"], &["codegen", "gpt2", "gpt_bigcode", "gpt_neo", "gptj", "opt"], Kind::Gpt2),
    (&["Bart", "Longformer", "Roberta"], &["bart", "longformer", "roberta"], Kind::Roberta),
    (
        &["Bert", "DistilBert", "Electra", "LayoutLM", "MobileBert", "SqueezeBert"],
        &["bert", "distilbert", "electra", "new", "nomic_bert"],
        Kind::Bert,
    ),
    (&["MPNet"], &["mpnet"], Kind::MpNet),
];

impl Kind {
    /// The class that the configs name, or the class of the family.
    ///
    /// # Errors
    /// The class is of another kind, or the vocabulary does not fit the class.
    pub(super) fn of(config: &Map<String, Value>, model: &Map<String, Value>, has_merges: bool) -> Result<Kind> {
        let stated = token_text(config.get("tokenizer_class")).or_else(|| token_text(model.get("tokenizer_class")));
        let found = match stated {
            Some(class) => {
                let name = class.strip_suffix("Fast").unwrap_or(class);
                let name = name.strip_suffix("Tokenizer").unwrap_or(name);
                KINDS.iter().find(|(classes, ..)| classes.contains(&name))
            }
            None => {
                let family = token_text(model.get("model_type")).unwrap_or_default();
                KINDS.iter().find(|(_, families, _)| families.contains(&family))
            }
        };
        let kind = found.map(|(.., kind)| *kind).filter(|kind| matches!(kind, Kind::Gpt2 | Kind::Roberta) == has_merges);
        kind.ok_or_else(|| {
            let found = stated.or_else(|| token_text(model.get("model_type"))).unwrap_or("no class");
            let files = if has_merges { "vocab.json and merges.txt" } else { "vocab.txt" };
            let known: Vec<&str> = KINDS.iter().flat_map(|(classes, ..)| classes.iter().copied()).collect();
            refused(format!("{files} of {found} are not supported without tokenizer.json: expected {}", known.join(", ")))
        })
    }

    pub(super) fn roles(self) -> Roles {
        const END: Option<&str> = Some("<|endoftext|>");
        match self {
            Kind::Gpt2 => named([END, END, END, None, None, None, None]),
            Kind::Roberta => named(["<s>", "</s>", "<unk>", "<pad>", "<s>", "</s>", "<mask>"].map(Some)),
            Kind::Bert => named([None, None, Some("[UNK]"), Some("[PAD]"), Some("[CLS]"), Some("[SEP]"), Some("[MASK]")]),
            Kind::MpNet => named(["<s>", "</s>", "[UNK]", "<pad>", "<s>", "</s>", "<mask>"].map(Some)),
        }
    }

    /// The post-processor, which puts special tokens around texts.
    ///
    /// # Errors
    /// The vocabulary lacks these tokens.
    pub(super) fn around(self, added: &Added, config: &Map<String, Value>) -> Result<Value> {
        let token = |role: &str| {
            let token = token_text(config.get(role)).and_then(|text| Some((text.to_owned(), added.id(text)?)));
            token.ok_or_else(|| refused(format!("the vocabulary has no token for `{role}`")))
        };
        match self {
            Kind::Gpt2 if flag(config, "add_bos_token", false) => Ok(led(&token("bos_token")?)),
            Kind::Gpt2 => Ok(json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true})),
            Kind::Roberta | Kind::MpNet => {
                let prefix = self == Kind::Roberta && flag(config, "add_prefix_space", false);
                let (sep, cls) = (token("sep_token")?, token("cls_token")?);
                Ok(json!({"type": "RobertaProcessing", "sep": sep, "cls": cls, "trim_offsets": true, "add_prefix_space": prefix}))
            }
            Kind::Bert => Ok(json!({"type": "BertProcessing", "sep": token("sep_token")?, "cls": token("cls_token")?})),
        }
    }
}

/// Special tokens by role, in the order of the roles.
fn named(texts: [Option<&'static str>; 7]) -> Roles {
    const NAMES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token"];
    std::array::from_fn(|i| (NAMES[i], texts[i]))
}

/// Puts a token before each text.
fn led((first, id): &(String, u64)) -> Value {
    let special = |kind: u32| json!({"SpecialToken": {"id": first, "type_id": kind}});
    let text = |id: &str, kind: u32| json!({"Sequence": {"id": id, "type_id": kind}});
    json!({
        "type": "TemplateProcessing",
        "single": [special(0), text("A", 0)],
        "pair": [special(0), text("A", 0), special(1), text("B", 1)],
        "special_tokens": {first.as_str(): {"id": first, "ids": [id], "tokens": [first]}},
    })
}
