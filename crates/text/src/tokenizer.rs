//! Text to token ids and back.

mod patterns;

use std::ops::Range;
use std::sync::Arc;

use crate::config::{SpecialTokens, TokenizerFiles};
use crate::decode_plan::DecodePlan;
use crate::detokenize::{self, DetokenizeStream};
use crate::ends;
use crate::error::{Error, GgufFault, Result};
use crate::gguf::GgufVocab;
use crate::model_file;
use crate::tokenizer_core::{TokenizerCore, guarded};

/// A tokenizer with the special tokens of its model. Cloning is cheap.
#[derive(Clone)]
pub struct Tokenizer {
    core: Arc<TokenizerCore>,
    special: SpecialTokens,
}

/// Tokens of a text and their places in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    pub ids: Vec<u32>,
    /// Range of characters of each token in the text.
    pub places: Vec<Range<usize>>,
    /// Whether the tokenizer added the token around the text.
    pub special: Vec<bool>,
}

impl Placed {
    /// Keeps `most` tokens: cuts before the special tokens at the end.
    pub fn truncate(&mut self, most: usize) {
        if self.ids.len() > most {
            let ends = self.special.iter().rev().take_while(|is_special| **is_special).count().min(most);
            let cut = most - ends..self.ids.len() - ends;
            self.ids.drain(cut.clone());
            self.places.drain(cut.clone());
            self.special.drain(cut);
        }
    }
}

/// Texts of end-of-text tokens, used if no file states the tokens that end generation.
const ENDS_OF_TEXTS: [&str; 2] = ["</s>", "<eos>"];

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.json`. The file does not state the roles of special tokens.
    /// So there is no BOS, and the tokens that end generation are guessed from well-known texts.
    /// Truncation, padding and dropout settings are ignored, because they serve training.
    ///
    /// # Errors
    /// The bytes are not a tokenizer.
    pub fn from_json(bytes: &[u8]) -> Result<Self> {
        Self::from_files(&TokenizerFiles { tokenizer: bytes, ..TokenizerFiles::default() })
    }

    /// Reads the files of a Hugging Face model folder.
    ///
    /// # Errors
    /// `tokenizer.json` is not a tokenizer, or another file is not a JSON object.
    pub fn from_files(files: &TokenizerFiles<'_>) -> Result<Self> {
        patterns::check(files.tokenizer).map_err(|e| Error::Tokenizer(e.into()))?;
        let inner = guarded(|| tokenizers::Tokenizer::from_bytes(files.tokenizer)).map_err(Error::Tokenizer)?;
        let core = TokenizerCore::new(inner)?;
        let mut special = SpecialTokens::from_files(files, |text| core.inner.token_to_id(text))?;
        if special.eos_ids.is_empty() {
            special.add_eos(ENDS_OF_TEXTS.iter().filter_map(|text| core.special_id(text)));
        }
        special.add_eos(ends::of_turns(|text| core.special_id(text)));
        Ok(Self { core: Arc::new(core), special })
    }

    /// Builds the tokenizer that the metadata of a GGUF file describes.
    ///
    /// # Errors
    /// The model or pre-tokenizer kind is not known, or the lists do not fit together.
    pub fn from_gguf(vocab: &GgufVocab) -> Result<Self> {
        let json = vocab.to_tokenizer_json()?;
        let inner = guarded(|| tokenizers::Tokenizer::from_bytes(&json)).map_err(|e| Error::Gguf(GgufFault::Library(e)))?;
        Ok(Self { core: Arc::new(TokenizerCore::new(inner)?), special: vocab.special_tokens() })
    }

    /// Builds the tokenizer of a `tokenizer.model`, SentencePiece's or Llama 3's, or of a
    /// `tekken.json`. The format is recognised from the bytes. Besides the end-of-text token, the
    /// tokens that end generation are guessed from well-known texts.
    ///
    /// # Errors
    /// [`Error::ModelFile`] with the format and the place.
    pub fn from_model_file(bytes: &[u8]) -> Result<Self> {
        let (json, vocab) = model_file::read(bytes)?;
        patterns::check(&json).map_err(|e| Error::Tokenizer(e.into()))?;
        let inner = guarded(|| tokenizers::Tokenizer::from_bytes(&json)).map_err(Error::Tokenizer)?;
        let core = TokenizerCore::new(inner)?;
        let mut special = vocab.special_tokens();
        special.add_eos(ENDS_OF_TEXTS.iter().filter_map(|text| core.special_id(text)));
        special.add_eos(ends::of_turns(|text| core.special_id(text)));
        Ok(Self { core: Arc::new(core), special })
    }

    /// The tokenizer as the bytes of a `tokenizer.json`: the same tokenizer always gives the same
    /// bytes. Roles of special tokens go into a `tokenizer_config.json`, see
    /// [`SpecialTokens::to_config_json`].
    ///
    /// # Errors
    /// The tokenizer library cannot write it.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        guarded(|| self.core.inner.to_string(false)).map(String::into_bytes).map_err(Error::Tokenizer)
    }

    /// Replaces the ids that end generation, if a program knows better than the files.
    #[must_use]
    pub fn with_eos_ids(mut self, ids: impl IntoIterator<Item = u32>) -> Self {
        self.special.eos_ids.clear();
        self.special.add_eos(ids);
        self
    }

    /// Token ids of `text`. Special tokens that are spelled out in the text are recognised. With
    /// `add_special` the ids that the model puts around a sequence (such as BOS) are added.
    ///
    /// # Errors
    /// The tokenizer cannot represent the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        Self::encode_by(&self.core.inner, text, add_special)
    }

    /// Token ids of a text to continue: as [`encode`](Self::encode) with `add_special`, without the
    /// tokens that some tokenizers append to end a text.
    ///
    /// # Errors
    /// The tokenizer cannot represent the text.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = self.encode(text, true)?;
        if ids.last().is_some_and(|id| self.is_eos(*id)) {
            let own = self.encode(text, false)?;
            while !ids.ends_with(&own) && ids.last().is_some_and(|id| self.is_eos(*id)) {
                ids.pop();
            }
        }
        Ok(ids)
    }

    /// Token ids of text that comes from outside: special tokens spelled out in it are encoded as
    /// ordinary text.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode).
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        let plain = self.core.plain.get_or_init(|| {
            let mut plain = self.core.inner.clone();
            plain.set_encode_special_tokens(true);
            plain
        });
        Self::encode_by(plain, text, false)
    }

    /// Token ids of a pair of texts with the special tokens around them, and the type of each
    /// token: 0 in the first text and 1 in the second, if the tokenizer tells them apart.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode).
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<(Vec<u32>, Vec<u32>)> {
        let encoding = guarded(|| self.core.inner.encode_fast((first, second), true)).map_err(Error::Encode)?;
        Ok((encoding.get_ids().to_vec(), encoding.get_type_ids().to_vec()))
    }

    /// Token ids of a text with the special tokens around it, and the place of each token.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode).
    pub fn encode_with_places(&self, text: &str) -> Result<Placed> {
        let encoding = guarded(|| self.core.inner.encode_char_offsets(text, true)).map_err(Error::Encode)?;
        Ok(Placed {
            ids: encoding.get_ids().to_vec(),
            places: encoding.get_offsets().iter().map(|&(start, end)| start..end).collect(),
            special: encoding.get_special_tokens_mask().iter().map(|&is_special| is_special != 0).collect(),
        })
    }

    fn encode_by(inner: &tokenizers::Tokenizer, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let encoding = guarded(|| inner.encode_fast(text, add_special)).map_err(Error::Encode)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Text of `ids`; unknown ids give no text. Bytes that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// The tokenizer's decoder fails.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        if let DecodePlan::Window = self.core.plan {
            return self.core.decode_whole(ids, skip_special);
        }
        let mut stream = self.stream(skip_special);
        let mut text = String::new();
        for &id in ids {
            text.push_str(&stream.push(id)?);
        }
        text.push_str(&stream.finish()?);
        Ok(text)
    }

    /// Begins to decode ids one by one.
    pub fn stream(&self, skip_special: bool) -> DetokenizeStream {
        DetokenizeStream::new(Arc::clone(&self.core), skip_special)
    }

    /// Id of the token with this text.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.core.inner.token_to_id(token)
    }

    /// The token's own text, in the alphabet of the tokenizer: not fit to be shown, see
    /// [`decode`](Self::decode).
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.core.inner.id_to_token(id)
    }

    /// The bytes that a token adds in the middle of a text, possibly part of a character. `None` if
    /// the tokenizer does not decode token by token.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        detokenize::token_bytes(&self.core, id)
    }

    /// True if the token is left out by `skip_special`.
    pub fn is_special(&self, id: u32) -> bool {
        self.core.is_special(id)
    }

    /// Ids and texts of all tokens that `skip_special` leaves out.
    pub fn control_tokens(&self) -> impl Iterator<Item = (u32, String)> {
        let ids = (0..self.vocab_size() as u32).filter(|&id| self.is_special(id));
        ids.filter_map(|id| Some((id, self.id_to_token(id)?))).filter(|(_, text)| !text.is_empty())
    }

    /// The special tokens by role.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// Id of the token that begins a sequence.
    pub fn bos_id(&self) -> Option<u32> {
        self.special.bos_id
    }

    /// Ids that end generation.
    pub fn eos_ids(&self) -> &[u32] {
        &self.special.eos_ids
    }

    /// True if `id` ends generation.
    pub fn is_eos(&self, id: u32) -> bool {
        self.special.eos_ids.contains(&id)
    }

    /// One more than the largest token id. The model's logits may be longer, as vocabularies get
    /// padded.
    pub fn vocab_size(&self) -> usize {
        self.core.vocab_size
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.core.vocab_size).field("special", &self.special).finish()
    }
}

#[cfg(test)]
mod tests;
