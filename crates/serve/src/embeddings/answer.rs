//! Vectors in OpenAI's format.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Serialize, Serializer};

/// Encoding of a vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum VectorFormat {
    /// A list of numbers with the fewest digits that identify each f32.
    #[default]
    Float,
    /// Little-endian f32 bytes in base64.
    Base64,
}

/// OpenAI's list of embeddings, serialized as JSON.
#[derive(Debug, Serialize)]
pub struct EmbeddingList<'a> {
    object: &'static str,
    data: Vec<Entry<'a>>,
    model: &'a str,
    usage: Usage,
}

#[derive(Debug, Serialize)]
struct Entry<'a> {
    object: &'static str,
    index: usize,
    embedding: Vector<'a>,
}

#[derive(Debug)]
struct Vector<'a>(&'a [f32], VectorFormat);

#[derive(Debug, Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl<'a> EmbeddingList<'a> {
    /// Creates a list of float vectors with the model's name and the total number of tokens.
    pub fn of_floats(model: &'a str, vectors: &'a [Vec<f32>], tokens: usize) -> EmbeddingList<'a> {
        EmbeddingList::new(model, vectors, VectorFormat::Float, tokens)
    }

    pub(crate) fn new(model: &'a str, vectors: &'a [Vec<f32>], form: VectorFormat, tokens: usize) -> EmbeddingList<'a> {
        let entry = |(index, vector): (usize, &'a Vec<f32>)| Entry { object: "embedding", index, embedding: Vector(vector, form) };
        EmbeddingList {
            object: "list",
            data: vectors.iter().enumerate().map(entry).collect(),
            model,
            usage: Usage { prompt_tokens: tokens, total_tokens: tokens },
        }
    }
}

impl Serialize for Vector<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.1 {
            VectorFormat::Float => self.0.serialize(serializer),
            VectorFormat::Base64 => {
                let bytes: Vec<u8> = self.0.iter().flat_map(|value| value.to_le_bytes()).collect();
                serializer.serialize_str(&BASE64_STANDARD.encode(bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_numbers_or_bytes() {
        let vectors = [vec![0.1f32, -2.0], vec![1e-8, 3.0]];
        let written = |form| serde_json::to_string(&EmbeddingList::new("m", &vectors, form, 7)).unwrap();
        let expected = r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1,-2.0]},{"object":"embedding","index":1,"embedding":[1e-8,3.0]}],"model":"m","usage":{"prompt_tokens":7,"total_tokens":7}}"#;
        assert_eq!(written(VectorFormat::Float), expected);
        // struct.pack("<2f", 0.1, -2.0)
        assert!(written(VectorFormat::Base64).contains(r#""embedding":"zczMPQAAAMA=""#), "{}", written(VectorFormat::Base64));
    }
}
