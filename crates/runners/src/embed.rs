//! Text embeddings.
//!
//! [`Embedder`] loads the program of a text encoder, such as a BERT model trained with
//! sentence-transformers, and computes one vector per text.

mod batch;
mod classifier;
mod prompts;
mod tagger;
mod texts;

use std::{collections::BTreeMap, sync::Arc};

use flambeau_runtime::{Engine, Program, Value};
use flambeau_text::Tokenizer;

use self::texts::{Rows, Texts, size, text};
use crate::{Error, Result};

pub use batch::batches;
pub use classifier::{Classifier, INSTRUCTION, Scoring, probabilities};
pub use prompts::{Prompt, Prompts};
pub use tagger::{Entity, Tagger, Tagging};
pub use texts::Tokens;

/// A loaded text encoder. Its program takes token ids [b, s] and an attention mask [b, s], and
/// returns one vector per text, [b, n]. A program with adapters takes their scales too.
#[derive(Debug)]
pub struct Embedder {
    texts: Texts,
    pooling: String,
    is_normalized: bool,
    prompts: Prompts,
}

impl Embedder {
    /// Whether a program is a text encoder: it states an embedding size.
    pub fn is_in(program: &Program) -> bool {
        program.constant_int(DIMENSION).is_some()
    }

    /// Loads a text encoder exported by this project.
    ///
    /// # Errors
    /// Returns [`Error::NoEncoder`] for any other program, or an error of the engine if the method
    /// cannot be loaded.
    pub fn load(program: &Program, engine: &Arc<dyn Engine>) -> Result<Embedder> {
        let is_normalized = program.constant("is_normalized").and_then(|mut values| values.pop());
        Ok(Embedder {
            texts: Texts::load(program, engine, size(program, DIMENSION)?, Rows::OfTexts)?,
            pooling: text(program, "get_pooling").unwrap_or_default(),
            is_normalized: matches!(is_normalized, Some(Value::Bool(true))),
            prompts: Prompts::read(program)?,
        })
    }

    /// Size of an embedding vector.
    pub fn dimension(&self) -> usize {
        self.texts.width
    }

    /// Maximum number of tokens per text, special tokens included.
    pub fn max_tokens(&self) -> usize {
        self.texts.max_tokens
    }

    /// Size of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.texts.vocabulary
    }

    /// Pooling of token vectors into one vector, by sentence-transformers' names with plus signs
    /// between them; empty if the program does not state it.
    pub fn pooling(&self) -> &str {
        &self.pooling
    }

    /// Whether vectors have length 1, so that their dot product is their cosine.
    pub fn is_normalized(&self) -> bool {
        self.is_normalized
    }

    /// Texts to put before a text, and their adapters.
    pub fn prompts(&self) -> &Prompts {
        &self.prompts
    }

    /// Computes the vectors of tokenized texts by the model without adapters, in order. Texts of
    /// similar length run in one batch.
    ///
    /// # Errors
    /// Fails if [`check`](Self::check) rejects a text, or if the method fails.
    pub fn embed(&mut self, texts: &[&[u32]]) -> Result<Vec<Vec<f32>>> {
        self.texts.compute(&texts.iter().map(|text| (*text, &[][..])).collect::<Vec<_>>(), None)
    }

    /// Computes the vectors of tokenized texts in order, each by the adapter of its task. The types
    /// of tokens have no effect.
    ///
    /// # Errors
    /// As [`embed`](Self::embed), and [`Error::Adapters`] for an adapter that the model lacks.
    pub fn embed_tasks(&mut self, texts: &[&Tokens]) -> Result<Vec<Vec<f32>>> {
        let expected = self.prompts.adapters();
        if let Some(found) = texts.iter().filter_map(|text| text.task).find(|&task| task >= expected) {
            return Err(Error::Adapters { found: found + 1, expected });
        }
        let mut tasks: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
        for (at, text) in texts.iter().enumerate() {
            tasks.entry(text.task).or_default().push(at);
        }
        let mut vectors = vec![Vec::new(); texts.len()];
        for (task, places) in tasks {
            let chosen: Vec<_> = places.iter().map(|&at| (&texts[at].ids[..], &[][..])).collect();
            for (at, vector) in places.into_iter().zip(self.texts.compute(&chosen, task)?) {
                vectors[at] = vector;
            }
        }
        Ok(vectors)
    }

    /// Checks whether a text can be embedded.
    ///
    /// # Errors
    /// Fails if the text is empty or too long, or has a token outside the vocabulary.
    pub fn check(&self, text: &[u32]) -> Result<()> {
        self.texts.check(text)
    }
}

/// Shortens a vector to its first `size` elements and scales the rest to length 1, for models
/// whose first elements hold most of the meaning (Matryoshka). Equal or longer sizes keep it.
pub fn shorten(vector: &mut Vec<f32>, size: usize) {
    if size >= vector.len() {
        return;
    }
    vector.truncate(size);
    let length = vector.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
}

/// Truncates a text to `most` tokens: cuts before the special tokens at its end.
pub fn truncate(ids: &mut Vec<u32>, most: usize, tokenizer: &Tokenizer) {
    if ids.len() > most {
        let special = ids.iter().rev().take_while(|&&id| tokenizer.is_special(id)).count().min(most);
        ids.drain(most - special..ids.len() - special);
    }
}

const DIMENSION: &str = "get_embedding_dim";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortened_vectors_have_length_1() {
        let mut vector = vec![3.0, 4.0, 12.0];
        shorten(&mut vector, 3);
        assert_eq!(vector, [3.0, 4.0, 12.0]);
        shorten(&mut vector, 2);
        assert_eq!(vector, [0.6, 0.8]);
        let mut zeros = vec![0.0, 0.0, 1.0];
        shorten(&mut zeros, 2);
        assert_eq!(zeros, [0.0, 0.0]);
    }
}
