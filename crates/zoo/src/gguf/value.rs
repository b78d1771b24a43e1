//! Metadata values.

use flambeau_tensor::Bytes;

use super::reader::GgufReader;
use crate::{
    Result,
    limits::{MAX_GGUF_ARRAY, MAX_GGUF_TEXT_BYTES},
};

/// A metadata value. Integers of every width are one variant, as are floats.
#[derive(Clone, Debug, PartialEq)]
pub enum MetadataValue {
    /// Integers of all types. `u64` above `i64::MAX` saturates.
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Array(Array),
}

/// An array value.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Strings. Tokens of some files are parts of characters, so invalid UTF-8 becomes U+FFFD.
    Texts(Vec<String>),
    /// Numbers or booleans, as stored.
    Numbers(Numbers),
}

/// Packed numbers of one type.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbers {
    kind: u32,
    bytes: Bytes,
}

const TEXT: u32 = 8;
const ARRAY: u32 = 9;

/// Bytes of a number type. `None` for strings, arrays and unknown types.
fn width(kind: u32) -> Option<usize> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// The number in exactly `width(kind)` bytes.
fn number(kind: u32, bytes: &[u8]) -> MetadataValue {
    let mut wide = [0u8; 8];
    wide.iter_mut().zip(bytes).for_each(|(w, &b)| *w = b);
    let raw = u64::from_le_bytes(wide);
    match kind {
        1 => MetadataValue::Int(i64::from(raw as i8)),
        3 => MetadataValue::Int(i64::from(raw as i16)),
        5 => MetadataValue::Int(i64::from(raw as i32)),
        6 => MetadataValue::Float(f64::from(f32::from_bits(raw as u32))),
        7 => MetadataValue::Bool(raw != 0),
        11 => MetadataValue::Int(raw as i64),
        12 => MetadataValue::Float(f64::from_bits(raw)),
        _ => MetadataValue::Int(i64::try_from(raw).unwrap_or(i64::MAX)),
    }
}

impl Numbers {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / width(self.kind).unwrap_or(1)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The elements.
    pub fn iter(&self) -> impl Iterator<Item = MetadataValue> {
        self.bytes.chunks_exact(width(self.kind).unwrap_or(1)).map(|bytes| number(self.kind, bytes))
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::Texts(texts) => texts.len(),
            Array::Numbers(numbers) => numbers.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl MetadataValue {
    pub(super) fn read(r: &mut GgufReader) -> Result<MetadataValue> {
        let kind = r.u32("value type")?;
        match width(kind) {
            Some(width) => Ok(number(kind, &r.take(width, "value")?)),
            None if kind == TEXT => r.text("text value", MAX_GGUF_TEXT_BYTES).map(MetadataValue::Text),
            None if kind == ARRAY => read_array(r).map(MetadataValue::Array),
            None => Err(r.error(format!("expected a value type below 13, found {kind}"))),
        }
    }

    /// Name of the type, for messages.
    pub fn describe(&self) -> String {
        match self {
            MetadataValue::Int(v) => v.to_string(),
            MetadataValue::Float(v) => v.to_string(),
            MetadataValue::Bool(v) => v.to_string(),
            MetadataValue::Text(v) => format!("text `{}`", v.chars().take(80).collect::<String>()),
            MetadataValue::Array(v) => format!("an array of {}", v.len()),
        }
    }
}

fn read_array(r: &mut GgufReader) -> Result<Array> {
    let kind = r.u32("array element type")?;
    match width(kind) {
        Some(width) => {
            let n = r.count("array elements", MAX_GGUF_ARRAY, width)?;
            Ok(Array::Numbers(Numbers { kind, bytes: r.take(n.saturating_mul(width), "array elements")? }))
        }
        None if kind == TEXT => {
            let n = r.count("array elements", MAX_GGUF_ARRAY, 8)?;
            (0..n).map(|_| r.lossy_text("text value", MAX_GGUF_TEXT_BYTES)).collect::<Result<_>>().map(Array::Texts)
        }
        None => Err(r.error(format!("expected an array of numbers or texts, found element type {kind}"))),
    }
}
