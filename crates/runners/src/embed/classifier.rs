//! Scores of texts and of pairs of texts: classifiers and rerankers.

use std::sync::Arc;

use flambeau_runtime::{Engine, Program};
use flambeau_text::Tokenizer;

use super::{
    Tokens,
    texts::{Rows, Texts, labels, text},
    truncate,
};
use crate::{Error, Result};

/// The instruction with which a language model judges documents unless the caller gives another.
pub const INSTRUCTION: &str = "Given a web search query, retrieve relevant passages that answer the query";

const LABELS: &str = "get_labels";

/// A loaded classifier of texts. Its program returns one score per label, [b, labels].
#[derive(Debug)]
pub struct Classifier {
    texts: Texts,
    scoring: Scoring,
}

/// Input and output of a classifier: how texts become tokens, and names of the scores.
#[derive(Clone, Debug)]
pub struct Scoring {
    labels: Vec<String>,
    template: Option<Template>,
    max_tokens: usize,
}

/// The text around a query and a document.
#[derive(Clone, Debug)]
struct Template {
    /// Text before the instruction, between the three values, and after the document.
    parts: [String; 4],
}

impl Classifier {
    /// Whether a program is a classifier of texts: it states its labels.
    pub fn is_in(program: &Program) -> bool {
        program.constant(LABELS).is_some()
    }

    /// Loads a classifier exported by this project.
    ///
    /// # Errors
    /// Returns [`Error::NoEncoder`] for any other program, or an error of the engine if the method
    /// cannot be loaded.
    pub fn load(program: &Program, engine: &Arc<dyn Engine>) -> Result<Classifier> {
        let labels = labels(program, LABELS)?;
        let template = text(program, "get_pair_template").map(|text| Template::read(&text)).transpose()?;
        let texts = Texts::load(program, engine, labels.len(), Rows::OfTexts)?;
        let scoring = Scoring { labels, template, max_tokens: texts.max_tokens };
        Ok(Classifier { texts, scoring })
    }

    /// Input and output of the classifier.
    pub fn scoring(&self) -> &Scoring {
        &self.scoring
    }

    /// Checks whether a text or pair can be computed.
    ///
    /// # Errors
    /// As [`Embedder::check`](super::Embedder::check).
    pub fn check(&self, tokens: &Tokens) -> Result<()> {
        self.texts.check(&tokens.ids)
    }

    /// Scores of texts or pairs, one per label, before a sigmoid or softmax.
    ///
    /// # Errors
    /// Fails if [`check`](Self::check) rejects a text, or if the method fails.
    pub fn scores(&mut self, texts: &[&Tokens]) -> Result<Vec<Vec<f32>>> {
        let takes_types = self.texts.takes_types();
        let types = |text: &Tokens| if takes_types { text.types.len() } else { 0 };
        let inputs: Vec<_> = texts.iter().map(|text| (&text.ids[..], &text.types[..types(text)])).collect();
        self.texts.compute(&inputs, None)
    }
}

impl Scoring {
    /// Names of the scores.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Maximum number of tokens per text or pair, special tokens included.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Whether the model can rank documents: it has one score, or two and the last means relevance.
    pub fn ranks(&self) -> bool {
        self.labels.len() <= 2
    }

    /// Whether the model judges by an instruction.
    pub fn takes_instruction(&self) -> bool {
        self.template.is_some()
    }

    /// The relevance of a document by its scores, from 0 to 1.
    pub fn relevance(&self, scores: &[f32]) -> f32 {
        probabilities(scores).pop().unwrap_or_default()
    }

    /// Tokens of a query and a document. The end of the document is left out if both exceed `most`
    /// tokens. A model that judges by an instruction reads it before them.
    ///
    /// # Errors
    /// The tokenizer cannot represent the texts.
    pub fn pair(&self, tokenizer: &Tokenizer, [query, document]: [&str; 2], instruction: &str, most: usize) -> Result<Tokens> {
        if let Some(Template { parts: [start, to_query, to_document, end] }) = &self.template {
            let (mut ids, end) = (tokenizer.encode(start, false)?, tokenizer.encode(end, false)?);
            let mut body = tokenizer.encode_plain(&[instruction, to_query, query, to_document, document].concat())?;
            body.truncate(most.saturating_sub(ids.len() + end.len()));
            ids.append(&mut body);
            ids.extend(end);
            return Ok(Tokens::from(ids));
        }
        let (mut ids, mut types) = tokenizer.encode_pair(query, document)?;
        truncate(&mut ids, most, tokenizer);
        // The last tokens all belong to the document.
        types.truncate(ids.len());
        Ok(Tokens { ids, types, task: None })
    }
}

/// Probabilities of labels by their scores: a sigmoid of a single score, else a softmax.
pub fn probabilities(scores: &[f32]) -> Vec<f32> {
    if let [one] = scores {
        return vec![(1.0 + (-f64::from(*one)).exp()).recip() as f32];
    }
    softmax(scores)
}

/// The softmax of scores.
pub(super) fn softmax(scores: &[f32]) -> Vec<f32> {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shares: Vec<f64> = scores.iter().map(|score| f64::from(score - most).exp()).collect();
    let total: f64 = shares.iter().sum();
    shares.iter().map(|share| (share / total) as f32).collect()
}

impl Template {
    fn read(text: &str) -> Result<Template> {
        let mut rest = text;
        let mut parts = [const { String::new() }; 4];
        for (part, name) in parts.iter_mut().zip(["{instruction}", "{query}", "{document}"]) {
            let (before, after) =
                rest.split_once(name).ok_or_else(|| Error::NoEncoder(format!("`get_pair_template` lacks {name}")))?;
            (*part, rest) = (before.to_owned(), after);
        }
        parts[3] = rest.to_owned();
        Ok(Template { parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_score_is_a_chance_and_several_share_it() {
        assert_eq!(probabilities(&[0.0]), [0.5]);
        assert!((probabilities(&[2.0])[0] - 0.880_797).abs() < 1e-6);
        assert_eq!(probabilities(&[1000.0, 1000.0]), [0.5, 0.5]);
        let three = probabilities(&[1.0, 2.0, 3.0]);
        assert!((three[2] - 0.665_241).abs() < 1e-6 && (three.iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn templates_name_all_three_values() {
        let template = Template::read("a {instruction} b {query} c {document} d").unwrap();
        assert_eq!(template.parts, ["a ", " b ", " c ", " d"]);
        assert!(Template::read("{query} {document}").unwrap_err().to_string().contains("{instruction}"));
    }
}
