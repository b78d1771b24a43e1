//! Text embeddings.
//!
//! [`Embedder`] loads the program of a text encoder, such as a BERT model trained with
//! sentence-transformers, and computes one vector per text.

mod batch;

use std::sync::Arc;

use flambeau_runtime::{Engine, LoadOptions, Method, Program, Value};
use flambeau_tensor::{DType, Tensor, cast};
use flambeau_text::Tokenizer;

use crate::{Error, Result};

pub use batch::batches;

/// Name of the program's method.
const METHOD: &str = "forward";

/// A loaded text encoder. Its program takes token ids [b, s] and an attention mask [b, s], and
/// returns one vector per text, [b, n].
#[derive(Debug)]
pub struct Embedder {
    method: Method,
    dimension: usize,
    max_tokens: usize,
    max_batch: usize,
    vocabulary: usize,
    pooling: String,
    is_normalized: bool,
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
        let size = |name: &str| {
            let size = program.constant_int(name).and_then(|size| usize::try_from(size).ok()).filter(|&size| size > 0);
            size.ok_or_else(|| Error::NoEncoder(format!("it does not state `{name}`")))
        };
        let stated = |name: &str| program.constant(name).and_then(|mut values| values.pop());
        let embedder = Embedder {
            dimension: size(DIMENSION)?,
            max_tokens: size("get_max_seq_len")?,
            max_batch: size("get_max_batch_size")?,
            vocabulary: size("get_vocab_size")?,
            pooling: match stated("get_pooling") {
                Some(Value::String(name)) => name,
                _ => String::new(),
            },
            is_normalized: matches!(stated("is_normalized"), Some(Value::Bool(true))),
            method: program.method(METHOD, engine, &LoadOptions::default())?,
        };
        match embedder.method.inputs().len() {
            2 => Ok(embedder),
            n => Err(Error::NoEncoder(format!("its method `{METHOD}` has {n} inputs, expected tokens and which of them are text"))),
        }
    }

    /// Size of an embedding vector.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// Maximum number of tokens per text, special tokens included.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Size of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Pooling of token vectors into one vector: `mean`, `cls` or `max`; empty if the program does
    /// not state it.
    pub fn pooling(&self) -> &str {
        &self.pooling
    }

    /// Whether vectors have length 1, so that their dot product is their cosine.
    pub fn is_normalized(&self) -> bool {
        self.is_normalized
    }

    /// Computes the vectors of tokenized texts, in order. Texts of similar length run in one batch.
    ///
    /// # Errors
    /// Fails if [`check`](Self::check) rejects a text, or if the method fails.
    pub fn embed(&mut self, texts: &[&[u32]]) -> Result<Vec<Vec<f32>>> {
        texts.iter().try_for_each(|text| self.check(text))?;
        let lengths: Vec<usize> = texts.iter().map(|text| text.len()).collect();
        let mut vectors = vec![Vec::new(); texts.len()];
        for batch in batches(&lengths, self.max_batch) {
            let chosen: Vec<&[u32]> = batch.iter().map(|&at| texts[at]).collect();
            for (at, vector) in batch.into_iter().zip(self.embed_together(&chosen)?) {
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
        if text.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if text.len() > self.max_tokens {
            return Err(Error::PromptTooLong { prompt: text.len(), context: self.max_tokens });
        }
        match text.iter().find(|&&token| token as usize >= self.vocabulary) {
            Some(&token) => Err(Error::OutsideVocabulary { token, vocabulary: self.vocabulary }),
            None => Ok(()),
        }
    }

    /// Computes one batch in one run.
    fn embed_together(&mut self, texts: &[&[u32]]) -> Result<Vec<Vec<f32>>> {
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        let (mut ids, mut mask) = (Vec::with_capacity(texts.len() * longest), Vec::with_capacity(texts.len() * longest));
        for text in texts {
            ids.extend(text.iter().map(|&id| i64::from(id)));
            mask.extend(text.iter().map(|_| 1));
            // Padding is masked, so its token does not matter.
            ids.resize(mask.len().next_multiple_of(longest), 0);
            mask.resize(ids.len(), 0i64);
        }
        let shape = [texts.len(), longest];
        let unfit = |e: flambeau_tensor::Error| Error::NoEncoder(e.to_string());
        let inputs = [ids, mask].map(|values| Tensor::from_slice(&values, &shape).map(Value::Tensor).map_err(unfit));
        let [ids, mask] = inputs;
        let outputs = self.method.run(&[ids?, mask?])?;
        let found = || {
            Error::NoEncoder(format!("its method `{METHOD}` gave {}", outputs.first().map_or("nothing".into(), Value::describe)))
        };
        let rows = outputs.first().and_then(Value::as_tensor).filter(|rows| rows.shape() == [texts.len(), self.dimension]);
        let rows = cast(rows.ok_or_else(found)?, DType::F32).map_err(unfit)?.aligned();
        let values = rows.as_slice::<f32>().map_err(unfit)?;
        Ok(values.chunks_exact(self.dimension).map(<[f32]>::to_vec).collect())
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
