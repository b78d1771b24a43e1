//! Token ids to text, one id at a time.

use std::sync::Arc;

use crate::decode_plan::DecodePlan;
use crate::error::Result;
use crate::tokenizer_core::TokenizerCore;

/// Decodes a sequence of token ids that arrives one by one.
///
/// The returned texts, joined, equal [`Tokenizer::decode`](crate::Tokenizer::decode) of the whole
/// sequence. This holds for every tokenizer with a token-by-token decoder (byte-level BPE and
/// SentencePiece-like ones). A character whose bytes are spread over several tokens is held back
/// until it is complete.
pub struct DetokenizeStream {
    core: Arc<TokenizerCore>,
    skip_special: bool,
    /// Special tokens that are text all the same.
    included: Vec<u32>,
    /// Bytes of a character that is not yet complete.
    pending: Vec<u8>,
    /// Number of times the decoder's `strip` may still apply.
    strip_left: usize,
    window: Window,
}

impl DetokenizeStream {
    pub(crate) fn new(core: Arc<TokenizerCore>, skip_special: bool) -> Self {
        let strip_left = match core.plan {
            DecodePlan::Pieces { strip: Some((_, times)), .. } => times,
            _ => 0,
        };
        Self { core, skip_special, included: Vec::new(), pending: Vec::new(), strip_left, window: Window::default() }
    }

    /// Makes text of these special tokens, though others are left out.
    #[must_use]
    pub fn including(mut self, ids: &[u32]) -> Self {
        self.included = ids.to_vec();
        self
    }

    /// Appends the next ID and returns the text that is now final, often none or more than one
    /// token's.
    ///
    /// # Errors
    /// The tokenizer's decoder fails.
    pub fn push(&mut self, id: u32) -> Result<String> {
        let core = Arc::clone(&self.core);
        let skips = self.skip_special && !self.included.contains(&id);
        if let DecodePlan::Window = core.plan {
            if skips && core.is_special(id) {
                return Ok(String::new());
            }
            return self.window.push(&core, id);
        }
        let Some(piece) = core.piece(id, skips) else { return Ok(String::new()) };
        let mut out = String::new();
        match &core.plan {
            DecodePlan::Pieces { replace, byte_tokens, strip } => self.push_piece(piece, replace, *byte_tokens, *strip, &mut out),
            _ => {
                push_byte_level(&piece, &mut self.pending);
                take_complete(&mut self.pending, Damage::Sequence, &mut out);
            }
        }
        Ok(out)
    }

    /// Ends the sequence and returns the held-back text, with incomplete characters as U+FFFD.
    ///
    /// # Errors
    /// The tokenizer's decoder fails.
    pub fn finish(&mut self) -> Result<String> {
        let mut out = String::new();
        match self.core.plan {
            DecodePlan::Window => return self.window.finish(&self.core),
            DecodePlan::Pieces { .. } => take_all(&mut self.pending, Damage::Byte, &mut out),
            DecodePlan::ByteLevel => take_all(&mut self.pending, Damage::Sequence, &mut out),
        }
        Ok(out)
    }

    fn push_piece(
        &mut self,
        piece: String,
        replace: &[(String, String)],
        byte_tokens: bool,
        strip: Option<(char, usize)>,
        out: &mut String,
    ) {
        let piece = replaced(piece, replace);
        if let Some(byte) = byte_token(&piece).filter(|_| byte_tokens) {
            self.pending.push(byte);
            take_complete(&mut self.pending, Damage::Byte, out);
        } else {
            take_all(&mut self.pending, Damage::Byte, out);
            out.push_str(&piece);
        }
        if let Some((unwanted, _)) = strip.filter(|_| self.strip_left > 0) {
            while self.strip_left > 0 && out.starts_with(unwanted) {
                out.remove(0);
                self.strip_left -= 1;
            }
            if !out.is_empty() {
                self.strip_left = 0;
            }
        }
    }
}

impl std::fmt::Debug for DetokenizeStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DetokenizeStream").field("plan", &self.core.plan).field("pending", &self.pending).finish_non_exhaustive()
    }
}

/// The bytes that a token adds in the middle of a text; `None` if they depend on the surrounding
/// tokens.
pub(crate) fn token_bytes(core: &TokenizerCore, id: u32) -> Option<Vec<u8>> {
    let piece = core.piece(id, false).unwrap_or_default();
    match &core.plan {
        DecodePlan::Window => None,
        DecodePlan::ByteLevel => {
            let mut bytes = Vec::new();
            push_byte_level(&piece, &mut bytes);
            Some(bytes)
        }
        DecodePlan::Pieces { replace, byte_tokens, .. } => {
            let piece = replaced(piece, replace);
            let byte = byte_token(&piece).filter(|_| *byte_tokens);
            Some(byte.map_or_else(|| piece.into_bytes(), |byte| vec![byte]))
        }
    }
}

/// A piece after the decoder's replacements.
fn replaced(mut piece: String, replace: &[(String, String)]) -> String {
    for (from, to) in replace {
        if !from.is_empty() {
            piece = piece.replace(from.as_str(), to);
        }
    }
    piece
}

/// The byte of a token such as `<0x0A>`.
fn byte_token(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// The byte of a character of the GPT-2 alphabet. Printable Latin-1 characters are their own bytes.
/// The other bytes, in ascending order, are the characters from U+0100 on.
fn alphabet_byte(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// Appends the token's bytes; a token with a character that is not in the alphabet is its own UTF-8
/// bytes.
fn push_byte_level(piece: &str, bytes: &mut Vec<u8>) {
    let before = bytes.len();
    for c in piece.chars() {
        let Some(byte) = alphabet_byte(c) else {
            bytes.truncate(before);
            bytes.extend_from_slice(piece.as_bytes());
            return;
        };
        bytes.push(byte);
    }
}

/// Number of U+FFFD for bytes that are not UTF-8.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Damage {
    /// One for each maximal beginning of a character, as `String::from_utf8_lossy` does.
    Sequence,
    /// One for each byte.
    Byte,
}

/// Moves everything but an unfinished character at the end from `bytes` to `out`.
fn take_complete(bytes: &mut Vec<u8>, damage: Damage, out: &mut String) {
    let unfinished = match bytes.utf8_chunks().last() {
        Some(chunk) if std::str::from_utf8(chunk.invalid()).is_err_and(|e| e.error_len().is_none()) => chunk.invalid().len(),
        _ => 0,
    };
    let rest = bytes.split_off(bytes.len() - unfinished);
    take_all(bytes, damage, out);
    *bytes = rest;
}

/// Moves everything from `bytes` to `out`.
fn take_all(bytes: &mut Vec<u8>, damage: Damage, out: &mut String) {
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        let marks = match damage {
            Damage::Sequence => usize::from(!chunk.invalid().is_empty()),
            Damage::Byte => chunk.invalid().len(),
        };
        out.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, marks));
    }
    bytes.clear();
}

/// Decoding by repetition: the new token's text is the difference between decoding the last tokens
/// with and without it.
#[derive(Default)]
struct Window {
    ids: Vec<u32>,
    /// Text of the first `shown_ids` of `ids`, already returned.
    shown: String,
    shown_ids: usize,
}

/// Tokens that may wait for a character to become complete.
const MAX_WAITING: usize = 32;

impl Window {
    fn push(&mut self, core: &TokenizerCore, id: u32) -> Result<String> {
        self.ids.push(id);
        let text = core.decode_whole(&self.ids, false)?;
        let waiting = self.ids.len() - self.shown_ids;
        let unclear = text.ends_with(char::REPLACEMENT_CHARACTER) || text.len() <= self.shown.len();
        if unclear && waiting < MAX_WAITING {
            return Ok(String::new());
        }
        let delta = self.beyond_shown(&text);
        if !delta.is_empty() {
            self.ids.drain(..self.shown_ids);
            self.shown = core.decode_whole(&self.ids, false)?;
        } else {
            self.shown = text;
        }
        self.shown_ids = self.ids.len();
        Ok(delta)
    }

    fn finish(&mut self, core: &TokenizerCore) -> Result<String> {
        let text = core.decode_whole(&self.ids, false)?;
        let delta = self.beyond_shown(&text);
        *self = Self::default();
        Ok(delta)
    }

    /// The rest of `text` after the common prefix with the text already shown, in whole characters.
    fn beyond_shown(&self, text: &str) -> String {
        let mut common = text.bytes().zip(self.shown.bytes()).take_while(|(a, b)| a == b).count();
        while !text.is_char_boundary(common) {
            common -= 1;
        }
        text[common..].to_owned()
    }
}

#[cfg(test)]
mod tests;
