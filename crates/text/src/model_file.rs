//! Reads tokenizers in other formats than `tokenizer.json`: SentencePiece's `tokenizer.model`, and
//! ranks of byte sequences (tiktoken's form of Llama 3's `tokenizer.model`, Mistral's
//! `tekken.json`).

mod ranks;
mod sentence_piece;
mod tekken;
mod tiktoken;

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::error::{Error, ModelFileFault, Result};
use crate::gguf::{CONTROL, GgufVocab, NORMAL};

/// Maximum number of tokens in a vocabulary.
const MAX_TOKENS: usize = 1 << 21;
/// Maximum number of bytes in a token.
const MAX_TOKEN_BYTES: usize = 1 << 10;

/// The bytes of the same tokenizer's `tokenizer.json`, and its vocabulary.
///
/// # Errors
/// [`Error::ModelFile`].
pub(crate) fn read(bytes: &[u8]) -> Result<(Vec<u8>, GgufVocab)> {
    let first = bytes.iter().find(|b| !b.is_ascii_whitespace());
    let (format, read) = match first {
        Some(b'{') => ("tekken", tekken::read(bytes)),
        // The tag of the first piece, a nested message.
        Some(_) if bytes.first() == Some(&sentence_piece::PIECE) => ("SentencePiece", sentence_piece::read(bytes)),
        _ => ("tiktoken", tiktoken::read(bytes)),
    };
    read.map_err(|fault| Error::ModelFile { format, fault })
}

impl GgufVocab {
    /// The pieces of a SentencePiece model of any kind, to turn tokens into text: how text becomes
    /// tokens is left out.
    ///
    /// # Errors
    /// [`Error::ModelFile`].
    pub fn from_sentence_piece(bytes: &[u8]) -> Result<GgufVocab> {
        sentence_piece::pieces(bytes).map_err(|fault| Error::ModelFile { format: "SentencePiece", fault })
    }

    /// Byte-level BPE with GPT-2's splitting expression. `tokens` are in order of rank; special
    /// tokens follow them.
    ///
    /// # Errors
    /// [`Error::ModelFile`].
    pub fn from_ranks(tokens: &[Vec<u8>], special: &[String]) -> Result<GgufVocab> {
        let ranked = ranks::ranked(tokens).map_err(|fault| Error::ModelFile { format: "byte-level BPE", fault })?;
        Ok(GgufVocab {
            model: "gpt2".into(),
            pre: Some("gpt-2".into()),
            token_types: [vec![NORMAL; tokens.len()], vec![CONTROL; special.len()]].concat(),
            tokens: ranked.tokens.into_iter().chain(special.iter().cloned()).collect(),
            merges: ranked.merges,
            ..GgufVocab::default()
        })
    }
}

/// Decodes base64 with padding; `None` if it is invalid.
fn from_base64(text: &[u8]) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

impl From<Error> for ModelFileFault {
    fn from(error: Error) -> ModelFileFault {
        ModelFileFault::Vocabulary(Box::new(error))
    }
}
