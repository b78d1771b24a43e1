//! The program of a text encoder: batches of token ids to rows of numbers.

use std::sync::Arc;

use flambeau_runtime::{Engine, LoadOptions, Method, Program, Value};
use flambeau_tensor::{DType, Tensor, cast};

use super::batches;
use crate::{Error, Result, llm::AdapterFacts};

/// Name of the program's method.
const METHOD: &str = "forward";

/// A tokenized text, or a pair of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    pub ids: Vec<u32>,
    /// Type of each token: 1 in the second text of a pair. Empty if all are 0.
    pub types: Vec<u32>,
    /// Index of the text encoder's adapter. `None` is the model without adapters.
    pub task: Option<usize>,
}

impl From<Vec<u32>> for Tokens {
    fn from(ids: Vec<u32>) -> Tokens {
        Tokens { ids, ..Tokens::default() }
    }
}

/// A method that takes token ids [b, s], an attention mask [b, s] and possibly the types of tokens
/// [b, s]. With adapters it takes their scales too. It returns a row per text, [b, n], or a row per
/// token, [b, s, n].
#[derive(Debug)]
pub(super) struct Texts {
    method: Method,
    pub(super) width: usize,
    rows: Rows,
    pub(super) max_tokens: usize,
    max_batch: usize,
    pub(super) vocabulary: usize,
    /// Number of adapters.
    adapters: usize,
}

/// The owner of a row of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    OfTexts,
    OfTokens,
}

impl Texts {
    /// Loads the method, whose rows have `width` numbers.
    pub(super) fn load(program: &Program, engine: &Arc<dyn Engine>, width: usize, rows: Rows) -> Result<Texts> {
        let texts = Texts {
            width,
            rows,
            max_tokens: size(program, "get_max_seq_len")?,
            max_batch: size(program, "get_max_batch_size")?,
            vocabulary: size(program, "get_vocab_size")?,
            adapters: AdapterFacts::of(program).len(),
            method: program.method(METHOD, engine, &LoadOptions::default())?,
        };
        match texts.method.inputs().len() {
            _ if (2..=3).contains(&texts.token_inputs()) => Ok(texts),
            n => Err(Error::NoEncoder(format!("its method `{METHOD}` has {n} inputs, expected tokens and which of them are text"))),
        }
    }

    /// Whether the method takes the types of tokens.
    pub(super) fn takes_types(&self) -> bool {
        self.token_inputs() == 3
    }

    /// Number of inputs with a number per token.
    fn token_inputs(&self) -> usize {
        self.method.inputs().len().saturating_sub(usize::from(self.adapters > 0))
    }

    /// Checks whether a text can be computed.
    pub(super) fn check(&self, ids: &[u32]) -> Result<()> {
        if ids.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if ids.len() > self.max_tokens {
            return Err(Error::PromptTooLong { prompt: ids.len(), context: self.max_tokens });
        }
        match ids.iter().find(|&&token| token as usize >= self.vocabulary) {
            Some(&token) => Err(Error::OutsideVocabulary { token, vocabulary: self.vocabulary }),
            None => Ok(()),
        }
    }

    /// The numbers of texts with their types, in order: one row for each text, or the rows of all
    /// its tokens. The adapter with index `task` reads them, if there is one. Texts of similar
    /// length run in one batch.
    pub(super) fn compute(&mut self, texts: &[(&[u32], &[u32])], task: Option<usize>) -> Result<Vec<Vec<f32>>> {
        texts.iter().try_for_each(|(ids, _)| self.check(ids))?;
        let lengths: Vec<usize> = texts.iter().map(|(ids, _)| ids.len()).collect();
        let mut rows = vec![Vec::new(); texts.len()];
        for batch in batches(&lengths, self.max_batch) {
            let chosen: Vec<_> = batch.iter().map(|&at| texts[at]).collect();
            for (at, row) in batch.into_iter().zip(self.compute_batch(&chosen, task)?) {
                rows[at] = row;
            }
        }
        Ok(rows)
    }

    /// Computes one batch in one run.
    fn compute_batch(&mut self, texts: &[(&[u32], &[u32])], task: Option<usize>) -> Result<Vec<Vec<f32>>> {
        let longest = texts.iter().map(|(ids, _)| ids.len()).max().unwrap_or(0);
        let size = texts.len() * longest;
        let [mut ids, mut mask, mut types] = [(); 3].map(|()| Vec::with_capacity(size));
        for (text, their_types) in texts {
            ids.extend(text.iter().map(|&id| i64::from(id)));
            mask.extend(text.iter().map(|_| 1));
            types.extend(their_types.iter().map(|&kind| i64::from(kind)));
            // Padding is masked, so its token does not matter.
            ids.resize(mask.len().next_multiple_of(longest), 0);
            mask.resize(ids.len(), 0i64);
            types.resize(ids.len(), 0);
        }
        let shape = [texts.len(), longest];
        let unfit = |e: flambeau_tensor::Error| Error::NoEncoder(e.to_string());
        let inputs = [ids, mask, types].into_iter().take(self.token_inputs());
        let inputs = inputs.map(|values| Tensor::from_slice(&values, &shape).map(Value::Tensor).map_err(unfit));
        let mut inputs = inputs.collect::<Result<Vec<_>>>()?;
        if self.adapters > 0 {
            let scales: Vec<f32> = (0..self.adapters).map(|adapter| f32::from(u8::from(task == Some(adapter)))).collect();
            inputs.push(Value::Tensor(Tensor::from_slice(&scales, &[self.adapters]).map_err(unfit)?));
        }
        let outputs = self.method.run(&inputs)?;
        let found = || {
            Error::NoEncoder(format!("its method `{METHOD}` gave {}", outputs.first().map_or("nothing".into(), Value::describe)))
        };
        let (expected, each) = match self.rows {
            Rows::OfTexts => (vec![texts.len(), self.width], self.width),
            Rows::OfTokens => (vec![texts.len(), longest, self.width], longest * self.width),
        };
        let rows = outputs.first().and_then(Value::as_tensor).filter(|rows| rows.shape() == expected);
        let rows = cast(rows.ok_or_else(found)?, DType::F32).map_err(unfit)?.aligned();
        let values = rows.as_slice::<f32>().map_err(unfit)?;
        let own = |ids: &[u32]| if self.rows == Rows::OfTexts { each } else { ids.len() * self.width };
        Ok(values.chunks_exact(each).zip(texts).map(|(row, (ids, _))| row[..own(ids)].to_vec()).collect())
    }
}

/// A size above 0 that the program states.
pub(super) fn size(program: &Program, name: &str) -> Result<usize> {
    let size = program.constant_int(name).and_then(|size| usize::try_from(size).ok()).filter(|&size| size > 0);
    size.ok_or_else(|| Error::NoEncoder(format!("it does not state `{name}`")))
}

/// The names of the numbers in a row, which the program states as a JSON list.
pub(super) fn labels(program: &Program, name: &str) -> Result<Vec<String>> {
    let list = text(program, name).ok_or_else(|| Error::NoEncoder(format!("it does not state `{name}`")))?;
    read_labels(name, &list)
}

fn read_labels(name: &str, list: &str) -> Result<Vec<String>> {
    let labels: Vec<String> = serde_json::from_str(list).map_err(|e| Error::NoEncoder(format!("`{name}`: {e}")))?;
    if labels.is_empty() { Err(Error::NoEncoder(format!("`{name}` has no label"))) } else { Ok(labels) }
}

/// A text that the program states.
pub(super) fn text(program: &Program, name: &str) -> Option<String> {
    match program.constant(name)?.pop()? {
        Value::String(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_at_least_one_label() {
        assert_eq!(read_labels("get_labels", r#"["a", "b"]"#).unwrap(), ["a", "b"]);
        for list in ["[]", "[1]", "{"] {
            let error = read_labels("get_labels", list).unwrap_err().to_string();
            assert!(error.contains("`get_labels`"), "{error}");
        }
    }
}
