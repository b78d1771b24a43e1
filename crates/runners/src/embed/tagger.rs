//! Labels of tokens, and the entities that they form, such as names of persons and places.

use std::{ops::Range, sync::Arc};

use flambeau_runtime::{Engine, Program};
use flambeau_text::{Placed, Tokenizer};

use super::{
    classifier::softmax,
    texts::{Rows, Texts, labels},
};
use crate::Result;

const LABELS: &str = "get_token_labels";

/// The label of tokens outside of all entities.
const OUTSIDE: &str = "O";

/// A loaded classifier of tokens. Its program returns a score per token and label, [b, s, labels].
#[derive(Debug)]
pub struct Tagger {
    texts: Texts,
    tagging: Tagging,
}

/// Input and output of a classifier of tokens.
#[derive(Clone, Debug)]
pub struct Tagging {
    labels: Vec<String>,
    max_tokens: usize,
}

/// A part of a text whose tokens share a label.
#[derive(Clone, Debug, PartialEq)]
pub struct Entity {
    /// The label without `B-` or `I-`.
    pub entity_group: String,
    /// Mean probability of the labels of its tokens.
    pub score: f32,
    /// The text of its tokens as the tokenizer decodes them.
    pub word: String,
    /// Its first character in the text.
    pub start: usize,
    /// The character after its last one.
    pub end: usize,
}

impl Tagger {
    /// Whether a program is a classifier of tokens: it states their labels.
    pub fn is_in(program: &Program) -> bool {
        program.constant(LABELS).is_some()
    }

    /// Loads a classifier of tokens exported by this project.
    ///
    /// # Errors
    /// Returns [`crate::Error::NoEncoder`] for any other program, or an error of the engine if the
    /// method cannot be loaded.
    pub fn load(program: &Program, engine: &Arc<dyn Engine>) -> Result<Tagger> {
        let labels = labels(program, LABELS)?;
        let texts = Texts::load(program, engine, labels.len(), Rows::OfTokens)?;
        let tagging = Tagging { labels, max_tokens: texts.max_tokens };
        Ok(Tagger { texts, tagging })
    }

    /// Input and output of the classifier.
    pub fn tagging(&self) -> &Tagging {
        &self.tagging
    }

    /// Checks whether a text can be computed.
    ///
    /// # Errors
    /// As [`Embedder::check`](super::Embedder::check).
    pub fn check(&self, ids: &[u32]) -> Result<()> {
        self.texts.check(ids)
    }

    /// Scores of the tokens of texts before a softmax: a row of labels for each token, one after
    /// the other.
    ///
    /// # Errors
    /// Fails if [`check`](Self::check) rejects a text, or if the method fails.
    pub fn scores(&mut self, texts: &[&[u32]]) -> Result<Vec<Vec<f32>>> {
        self.texts.compute(&texts.iter().map(|text| (*text, &[][..])).collect::<Vec<_>>(), None)
    }
}

impl Tagging {
    /// Names of the scores.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Maximum number of tokens per text, special tokens included.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// The entities of a text by its `tokens` and their `scores`, as [`Tagger::scores`] gives them.
    /// Adjacent tokens of one label form an entity, and a label with `B-` starts another. These are
    /// the rules of transformers' aggregation strategy `simple`.
    ///
    /// # Errors
    /// The tokenizer's decoder fails.
    pub fn entities(&self, tokens: &Placed, scores: &[f32], tokenizer: &Tokenizer) -> Result<Vec<Entity>> {
        let rows = scores.chunks_exact(self.labels.len());
        let mut groups: Vec<Group<'_>> = Vec::new();
        for (at, row) in rows.enumerate().filter(|(at, _)| !tokens.special[*at]) {
            let (label, share) = self.best(row);
            let (starts, name) = match label.split_once('-') {
                Some(("B", name)) => (true, name),
                Some(("I", name)) => (false, name),
                _ => (false, label),
            };
            match groups.last_mut() {
                Some(group) if group.name == name && !starts => {
                    group.tokens.push(at);
                    group.shares.push(share);
                }
                _ => groups.push(Group { label, name, tokens: vec![at], shares: vec![share] }),
            }
        }
        groups.iter().filter(|group| group.label != OUTSIDE).map(|group| group.entity(tokens, tokenizer)).collect()
    }

    /// The label of the largest score, the first of equals, and its probability.
    fn best(&self, row: &[f32]) -> (&str, f32) {
        let shares = softmax(row);
        let best = (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best });
        (&self.labels[best], shares[best])
    }
}

/// Adjacent tokens of one label.
struct Group<'a> {
    /// Label of the first token.
    label: &'a str,
    name: &'a str,
    tokens: Vec<usize>,
    shares: Vec<f32>,
}

impl Group<'_> {
    fn entity(&self, tokens: &Placed, tokenizer: &Tokenizer) -> Result<Entity> {
        let ids: Vec<u32> = self.tokens.iter().map(|&at| tokens.ids[at]).collect();
        let places: Vec<&Range<usize>> = self.tokens.iter().map(|&at| &tokens.places[at]).collect();
        let total: f64 = self.shares.iter().copied().map(f64::from).sum();
        Ok(Entity {
            entity_group: self.label.split_once('-').map_or(self.label, |(_, name)| name).to_owned(),
            score: (total / self.shares.len() as f64) as f32,
            word: tokenizer.decode(&ids, false)?,
            start: places.first().map_or(0, |place| place.start),
            end: places.last().map_or(0, |place| place.end),
        })
    }
}
