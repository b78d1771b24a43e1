//! A classifier case: a tiny classifier or reranker in its published form, pairs of texts, and
//! their scores.

use std::{path::Path, sync::Arc};

use anyhow::{Context, Result, bail};
use flambeau::{
    engine::Engine,
    runners::embed::{Classifier, INSTRUCTION, Scoring, Tokens},
    tensor::{Tensor, Tolerance, compare},
    zoo,
};
use serde_json::Value as Json;

use super::{
    Outcome,
    checkpoint::{one, program_with, published},
};
use crate::tokenizer;

/// `case.json` of a classifier.
pub(super) struct ClassifierCase {
    tolerance: Tolerance,
    /// Pairs whose tokens are checked; empty if the checkpoint has numbered tokens only.
    pairs: Vec<[String; 2]>,
    /// The tokens of each pair. Types are left out where a model has no pairs.
    tokens: Vec<Tokens>,
    labels: Vec<String>,
}

impl ClassifierCase {
    pub(super) fn read(json: &Json, tolerance: Tolerance) -> Result<ClassifierCase> {
        let numbers =
            |list: &Json| -> Option<Vec<u32>> { list.as_array()?.iter().map(|id| id.as_u64()?.try_into().ok()).collect() };
        let text = |value: &Json| value.as_str().map(str::to_owned);
        let read = || -> Option<ClassifierCase> {
            let tokens = json["ids"].as_array()?.iter().zip(json["types"].as_array()?);
            Some(ClassifierCase {
                tolerance,
                pairs: json["pairs"]
                    .as_array()?
                    .iter()
                    .map(|pair| Some([text(&pair[0])?, text(&pair[1])?]))
                    .collect::<Option<_>>()?,
                tokens: tokens
                    .map(|(ids, types)| Some(Tokens { ids: numbers(ids)?, types: numbers(types)?, task: None }))
                    .collect::<Option<_>>()?,
                labels: json["labels"].as_array()?.iter().map(text).collect::<Option<_>>()?,
            })
        };
        read().context("case.json lacks pairs, their ids and types, or labels")
    }

    /// Exports the checkpoint in f32. Compares the scores of all pairs in one batch, and of each
    /// pair alone, with the case.
    pub(super) fn run(&self, folder: &Path, engine: &Arc<dyn Engine>) -> Result<Outcome> {
        let checkpoint = published(folder)?;
        let program = program_with(&checkpoint, &zoo::Options::default(), engine)?;
        let mut classifier = Classifier::load(&program, engine)?;
        let scoring = classifier.scoring().clone();
        if scoring.labels() != self.labels {
            bail!("the labels are {:?}, expected {:?}", scoring.labels(), self.labels);
        }
        if !self.pairs.is_empty() {
            self.check_tokens(&checkpoint, &scoring)?;
        }
        let texts: Vec<&Tokens> = self.tokens.iter().collect();
        let expected = one(folder, "scores.bin")?;
        let together = classifier.scores(&texts)?.concat();
        let alone = texts.iter().map(|text| classifier.scores(&[text])).collect::<Result<Vec<_>, _>>()?.concat().concat();
        for (how, found) in [("together", together), ("alone", alone)] {
            let found = Tensor::from_slice(&found, &[texts.len(), self.labels.len()])?;
            compare(&found, &expected, self.tolerance).with_context(|| format!("scores of pairs {how}"))?;
        }
        Ok(Outcome::Passed(Vec::new()))
    }

    fn check_tokens(&self, checkpoint: &Path, scoring: &Scoring) -> Result<()> {
        let tokenizer = tokenizer::at(checkpoint)?.tokenizer;
        for ([query, document], tokens) in self.pairs.iter().zip(&self.tokens) {
            let found = scoring.pair(&tokenizer, [query, document], INSTRUCTION, scoring.max_tokens())?;
            if found != *tokens {
                bail!("the tokens of {query:?} with {document:?} are {found:?}, expected {tokens:?}");
            }
        }
        Ok(())
    }
}
