//! The tokenizer of a GGUF checkpoint.

use flambeau::{text, zoo};

/// The vocabulary as the text crate takes it.
pub(crate) fn vocab(from: &zoo::gguf::GgufVocab) -> text::GgufVocab {
    text::GgufVocab {
        model: from.model.clone(),
        pre: from.pre.clone(),
        tokens: from.tokens.clone(),
        scores: from.scores.clone(),
        token_types: from.token_types.clone(),
        merges: from.merges.clone(),
        bos: from.bos,
        eos: from.eos,
        other_eos: from.other_eos.clone(),
        unk: from.unk,
        pad: from.pad,
        add_bos: from.add_bos,
        add_eos: from.add_eos,
        add_space_prefix: from.add_space_prefix,
    }
}
