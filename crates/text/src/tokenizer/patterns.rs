//! The regular expressions of a `tokenizer.json`, looked at before any is compiled: one may take
//! megabytes and a tenth of a second.

use std::{borrow::Cow, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Most regular expressions of a tokenizer, and bytes of each.
const MAX_PATTERNS: usize = 16;
const MAX_PATTERN_BYTES: usize = 4 << 10;

/// Refuses a file with too many regular expressions, or one that is too long.
///
/// # Errors
/// Which limit the file exceeds, or why it is no JSON.
pub(super) fn check(file: &[u8]) -> serde_json::Result<()> {
    let value = Patterns { found: &mut 0, is_pattern: false };
    value.deserialize(&mut serde_json::Deserializer::from_slice(file))
}

/// Walks a value and counts the texts under keys `Regex`, at any depth.
struct Patterns<'a> {
    found: &'a mut usize,
    is_pattern: bool,
}

/// A key, borrowed where it has no escapes.
#[derive(serde::Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> DeserializeSeed<'de> for Patterns<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Patterns<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Key(key)) = map.next_key()? {
            map.next_value_seed(Patterns { found: self.found, is_pattern: key == "Regex" })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Patterns { found: self.found, is_pattern: false })?.is_some() {}
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        *self.found += usize::from(self.is_pattern);
        if *self.found > MAX_PATTERNS || self.is_pattern && text.len() > MAX_PATTERN_BYTES {
            return Err(E::custom(format_args!(
                "expected at most {MAX_PATTERNS} regular expressions of {MAX_PATTERN_BYTES} bytes"
            )));
        }
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
}
