//! SentencePiece's `tokenizer.model`: a protocol buffer with pieces, scores, and how text is
//! normalized. BPE is read, as language models have it.

use super::MAX_TOKENS;
use crate::error::ModelFileFault;
use crate::gguf::GgufVocab;

/// Tag of a piece: field 1, of a length.
pub(super) const PIECE: u8 = 0x0a;

const TRAINER: u64 = 2;
const NORMALIZER: u64 = 3;

/// The value of a field.
enum Field<'a> {
    Number(u64),
    Float(f32),
    Bytes(&'a [u8]),
    Other,
}

/// A cursor over the fields of a message.
struct Fields<'a> {
    bytes: &'a [u8],
    /// Offset of the unread rest in the file.
    at: usize,
}

impl<'a> Fields<'a> {
    fn fault(&self, what: &'static str) -> ModelFileFault {
        ModelFileFault::Bytes { at: self.at, what }
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], ModelFileFault> {
        let (taken, rest) = self.bytes.split_at_checked(n).ok_or_else(|| self.fault("the field passes the end"))?;
        self.bytes = rest;
        self.at += n;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, ModelFileFault> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.fault("a number of more than ten bytes"))
    }

    /// The next field: its number and its value.
    fn next(&mut self) -> Result<Option<(u64, Field<'a>, usize)>, ModelFileFault> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let mut start = self.at;
        let field = match tag & 7 {
            0 => Field::Number(self.varint()?),
            1 => {
                self.take(8)?;
                Field::Other
            }
            2 => {
                let n = self.varint()?;
                start = self.at;
                Field::Bytes(self.take(usize::try_from(n).unwrap_or(usize::MAX))?)
            }
            5 => {
                let b = self.take(4)?;
                Field::Float(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            }
            _ => return Err(self.fault("a field of unknown form")),
        };
        Ok(Some((tag >> 3, field, start)))
    }
}

/// The settings of the trainer and the normalizer.
struct Settings {
    model_type: u64,
    special: [Option<u32>; 4],
    dummy_prefix: bool,
    single_spaces: bool,
    has_map: bool,
}

pub(super) fn read(bytes: &[u8]) -> Result<(Vec<u8>, GgufVocab), ModelFileFault> {
    let (vocab, settings) = vocab(bytes)?;
    settings.check()?;
    Ok((vocab.to_tokenizer_json()?, vocab))
}

/// The pieces of a model of any kind.
pub(super) fn pieces(bytes: &[u8]) -> Result<GgufVocab, ModelFileFault> {
    Ok(vocab(bytes)?.0)
}

fn vocab(bytes: &[u8]) -> Result<(GgufVocab, Settings), ModelFileFault> {
    let mut vocab = GgufVocab { model: "llama".into(), ..GgufVocab::default() };
    // Defaults for omitted fields: unigrams; ids 0 to 2 and none for padding; a leading space,
    // single spaces.
    let mut settings = Settings {
        model_type: 1,
        special: [Some(0), Some(1), Some(2), None],
        dummy_prefix: true,
        single_spaces: true,
        has_map: false,
    };
    let mut fields = Fields { bytes, at: 0 };
    while let Some((number, field, at)) = fields.next()? {
        match (number, field) {
            (1, Field::Bytes(bytes)) => piece(&mut vocab, Fields { bytes, at })?,
            (TRAINER, Field::Bytes(bytes)) => settings.trainer(Fields { bytes, at })?,
            (NORMALIZER, Field::Bytes(bytes)) => settings.normalizer(Fields { bytes, at })?,
            _ => {}
        }
    }
    [vocab.unk, vocab.bos, vocab.eos, vocab.pad] = settings.special;
    vocab.add_space_prefix = Some(settings.dummy_prefix);
    vocab.add_bos = Some(vocab.bos.is_some());
    Ok((vocab, settings))
}

/// A piece: text, score and kind.
fn piece(vocab: &mut GgufVocab, mut fields: Fields<'_>) -> Result<(), ModelFileFault> {
    let start = fields.at;
    let (mut text, mut score, mut kind) = ("", 0.0, 1);
    while let Some((number, field, at)) = fields.next()? {
        match (number, field) {
            (1, Field::Bytes(bytes)) => {
                text = str::from_utf8(bytes).map_err(|_| ModelFileFault::Bytes { at, what: "the piece is not UTF-8" })?;
            }
            (2, Field::Float(value)) => score = value,
            (3, Field::Number(value)) => kind = i32::try_from(value).unwrap_or(0),
            _ => {}
        }
    }
    if vocab.tokens.len() >= MAX_TOKENS {
        return Err(ModelFileFault::Bytes { at: start, what: "more than 2^21 pieces" });
    }
    vocab.tokens.push(text.to_owned());
    vocab.scores.push(score);
    vocab.token_types.push(kind);
    Ok(())
}

impl Settings {
    fn trainer(&mut self, mut fields: Fields<'_>) -> Result<(), ModelFileFault> {
        const IDS: u64 = 40;
        while let Some((number, field, _)) = fields.next()? {
            match (number, field) {
                (3, Field::Number(value)) => self.model_type = value,
                // -1 means that there is no such token.
                (IDS..=43, Field::Number(value)) => self.special[(number - IDS) as usize] = u32::try_from(value).ok(),
                _ => {}
            }
        }
        Ok(())
    }

    fn normalizer(&mut self, mut fields: Fields<'_>) -> Result<(), ModelFileFault> {
        while let Some((number, field, _)) = fields.next()? {
            match (number, field) {
                (2, Field::Bytes(map)) => self.has_map = !map.is_empty(),
                (3, Field::Number(value)) => self.dummy_prefix = value != 0,
                (4, Field::Number(value)) => self.single_spaces = value != 0,
                _ => {}
            }
        }
        Ok(())
    }

    /// Refuses settings unknown in language models, and settings that would change the ids of a
    /// text.
    fn check(&self) -> Result<(), ModelFileFault> {
        const BPE: u64 = 2;
        let refuse = |expected, found: &str| Err(ModelFileFault::Form { expected, found: found.to_owned() });
        match self {
            Settings { model_type, .. } if *model_type != BPE => {
                refuse("BPE", "another model; pass the model's tokenizer.json instead")
            }
            Settings { has_map: true, .. } => {
                refuse("text as it is", "a map of characters; pass the model's tokenizer.json instead")
            }
            Settings { single_spaces: true, .. } => refuse("all spaces", "single ones; pass the model's tokenizer.json instead"),
            _ => Ok(()),
        }
    }
}
