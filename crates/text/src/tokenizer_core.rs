//! The tokenizer library's object, with the facts that encoding and decoding read.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use tokenizers::models::ModelWrapper;

use crate::decode_plan::DecodePlan;
use crate::error::{Error, LibraryError, Result};

/// Data shared by all clones and streams of a tokenizer.
pub(crate) struct TokenizerCore {
    pub(crate) inner: tokenizers::Tokenizer,
    /// The tokenizer without special tokens in text, created on first use.
    pub(crate) plain: OnceLock<tokenizers::Tokenizer>,
    special_ids: HashSet<u32>,
    pub(crate) vocab_size: usize,
    pub(crate) plan: DecodePlan,
}

/// Runs third-party code that may panic on hostile tokenizer data, and turns a panic into an error.
pub(crate) fn guarded<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> std::result::Result<T, LibraryError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("its data is inconsistent".into()))
}

impl TokenizerCore {
    pub(crate) fn new(mut inner: tokenizers::Tokenizer) -> Result<Self> {
        inner.with_padding(None);
        guarded(|| inner.with_truncation(None).map(|_| ())).map_err(Error::Tokenizer)?;
        if let ModelWrapper::BPE(bpe) = inner.get_model()
            && bpe.dropout.is_some()
        {
            let mut steady = bpe.clone();
            steady.dropout = None;
            inner.with_model(steady);
        }
        let special = inner.get_added_tokens_decoder();
        let special_ids = special.into_iter().filter(|(_, token)| token.special).map(|(id, _)| id).collect();
        let vocab_size = inner.get_vocab(true).into_iter().fold(0, |size, (_, id)| size.max(id as usize + 1));
        let plan = DecodePlan::of(inner.get_decoder());
        Ok(Self { inner, plain: OnceLock::new(), special_ids, vocab_size, plan })
    }

    /// Id of the special token with this text.
    pub(crate) fn special_id(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text).filter(|id| self.special_ids.contains(id))
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.special_ids.contains(&id)
    }

    /// The token's text for decoding; `None` if the id is unknown or is to be skipped.
    pub(crate) fn piece(&self, id: u32, skip_special: bool) -> Option<String> {
        if skip_special && self.is_special(id) {
            return None;
        }
        self.inner.get_added_vocabulary().simple_id_to_token(id).or_else(|| self.inner.id_to_token(id))
    }

    /// Decodes a whole sequence by the tokenizer library.
    pub(crate) fn decode_whole(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        guarded(|| self.inner.decode(ids, skip_special)).map_err(Error::Decode)
    }
}
