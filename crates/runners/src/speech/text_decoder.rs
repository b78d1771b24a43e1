//! Language models with rows of floats as input in place of token embeddings.

use std::sync::Arc;

use flambeau_runtime::{DimSpec, Engine, LoadOptions, Method, Program, TensorSpec, Value, ValueSpec};
use flambeau_tensor::{DType, Tensor, cast};
use flambeau_text::Tokenizer;

use super::{
    Facts,
    inputs::{ids, positions},
};
use crate::{Error, Result, logits};

/// The methods `token_embedding` and `text_decoder`, and the number of rows in the caches.
#[derive(Debug)]
pub(crate) struct TextDecoder {
    family: &'static str,
    embedding: Method,
    decoder: Method,
    /// Type and width of the rows.
    dtype: DType,
    hidden: usize,
    /// Maximum rows of a step, and of the caches.
    chunk: usize,
    context: usize,
    position: usize,
}

/// Maximum rows of a step if the program sets no bound.
const LONGEST_STEP: usize = 512;

impl TextDecoder {
    /// # Errors
    /// The program cannot be loaded, or its methods have other inputs.
    pub(crate) fn load(
        program: &Program,
        engine: &Arc<dyn Engine>,
        options: &LoadOptions,
        family: &'static str,
    ) -> Result<TextDecoder> {
        let [embedding, decoder] = ["token_embedding", "text_decoder"].map(|name| program.method(name, engine, options));
        let (embedding, decoder) = (embedding?, decoder?);
        let bad = |what: &str| Error::NoSpeechModel { family, what: what.into() };
        let rows = |spec: &ValueSpec| spec.tensor().filter(|spec| spec.dims.len() == 3 && spec.dtype.is_float()).cloned();
        let spec: TensorSpec = decoder.inputs().first().and_then(rows).ok_or_else(|| bad("its text decoder takes no rows"))?;
        let DimSpec::Fixed(hidden) = spec.dims[2] else { return Err(bad("its text decoder takes rows of any width")) };
        let most = |method: &Method| method.inputs().first().and_then(ValueSpec::tensor).and_then(|spec| spec.dims.get(1)?.max());
        let bounds = [most(&embedding), most(&decoder), Some(LONGEST_STEP)];
        let chunk = bounds.into_iter().flatten().min().unwrap_or(1).max(1);
        let context = Facts::of(program, family).size("get_max_seq_len").ok();
        let context = context.or(decoder.cache_len()).unwrap_or(usize::MAX);
        Ok(TextDecoder { family, embedding, decoder, dtype: spec.dtype, hidden, chunk, context, position: 0 })
    }

    pub(crate) fn methods(&mut self) -> [&mut Method; 2] {
        [&mut self.embedding, &mut self.decoder]
    }

    /// Width of the rows.
    pub(crate) fn hidden(&self) -> usize {
        self.hidden
    }

    /// Maximum rows in the caches.
    pub(crate) fn context(&self) -> usize {
        self.context
    }

    /// Rows in the caches.
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// Forgets the rows in the caches.
    pub(crate) fn restart(&mut self) {
        self.position = 0;
    }

    /// The embeddings [s, hidden] of tokens.
    ///
    /// # Errors
    /// The method fails, or returns something else.
    pub(crate) fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let mut rows = Vec::with_capacity(tokens.len() * self.hidden);
        for tokens in tokens.chunks(self.chunk) {
            let outputs = self.embedding.run(&[ids(tokens)?])?;
            rows.extend(
                floats(outputs.first()).filter(|rows| rows.len() == tokens.len() * self.hidden).ok_or_else(|| self.unfit())?,
            );
        }
        Ok(rows)
    }

    /// Appends rows [s, hidden], and replaces `logits` with the logits `[V]` after the last row.
    ///
    /// # Errors
    /// The method fails, or the rows do not fit into the caches.
    pub(crate) fn step(&mut self, rows: &[f32], logits: &mut Vec<f32>) -> Result<()> {
        let count = rows.len() / self.hidden;
        if count > self.context - self.position {
            return Err(Error::PromptTooLong { prompt: self.position + count, context: self.context });
        }
        let mut outputs = Vec::new();
        for rows in rows.chunks(self.chunk * self.hidden) {
            let count = rows.len() / self.hidden;
            let rows = Tensor::from_slice(rows, &[1, count, self.hidden]).and_then(|rows| cast(&rows, self.dtype));
            let rows = rows.map_err(|_| self.unfit())?;
            outputs = self.decoder.run_last(&[Value::Tensor(rows), positions(self.position, count)?])?;
            self.position += count;
        }
        logits::last(self.decoder.name(), outputs.first(), logits)
    }

    fn unfit(&self) -> Error {
        Error::NoSpeechModel { family: self.family, what: "its embeddings are no rows of its text decoder's width".into() }
    }
}

/// Id of a special token in the family's prompts.
///
/// # Errors
/// [`Error::NoSpeechModel`] if the tokenizer does not have it.
pub(crate) fn special_token(tokenizer: &Tokenizer, family: &'static str, name: &str) -> Result<u32> {
    let unfit = || Error::NoSpeechModel { family, what: format!("its tokenizer has no token `{name}`") };
    tokenizer.token_to_id(name).ok_or_else(unfit)
}

/// Id of the token that begins a text.
///
/// # Errors
/// As [`special_token`].
pub(crate) fn first_token(tokenizer: &Tokenizer, family: &'static str) -> Result<u32> {
    tokenizer.bos_id().map_or_else(|| special_token(tokenizer, family, "<s>"), Ok)
}

/// All elements of a tensor.
pub(crate) fn floats(value: Option<&Value>) -> Option<Vec<f32>> {
    let tensor = value.and_then(Value::as_tensor).and_then(|tensor| cast(tensor, DType::F32).ok())?;
    Some(tensor.as_slice::<f32>().ok()?.to_vec())
}
