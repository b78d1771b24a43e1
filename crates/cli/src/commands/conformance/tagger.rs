//! A case of a token classifier: a tiny model in its published form, texts, and the scores and
//! entities of their tokens.

use std::{path::Path, sync::Arc};

use anyhow::{Context, Result, bail};
use flambeau::{
    engine::Engine,
    runners::embed::{Entity, Tagger},
    tensor::{Tensor, Tolerance, compare},
    zoo,
};
use serde_json::Value as Json;

use super::{
    Outcome,
    checkpoint::{one, program_with, published},
};
use crate::tokenizer;

/// `case.json` of a classifier of tokens.
pub(super) struct TaggerCase {
    tolerance: Tolerance,
    texts: Vec<String>,
    ids: Vec<Vec<u32>>,
    labels: Vec<String>,
    /// The entities of each text.
    entities: Vec<Vec<Entity>>,
}

impl TaggerCase {
    pub(super) fn read(json: &Json, tolerance: Tolerance) -> Result<TaggerCase> {
        let texts = |list: &Json| list.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
        let ids = |list: &Json| list.as_array()?.iter().map(|id| id.as_u64()?.try_into().ok()).collect::<Option<Vec<u32>>>();
        let entity = |json: &Json| {
            Some(Entity {
                entity_group: json["entity_group"].as_str()?.to_owned(),
                score: json["score"].as_f64()? as f32,
                word: json["word"].as_str()?.to_owned(),
                start: json["start"].as_u64()?.try_into().ok()?,
                end: json["end"].as_u64()?.try_into().ok()?,
            })
        };
        let read = || {
            Some(TaggerCase {
                tolerance,
                texts: texts(&json["texts"])?,
                ids: json["ids"].as_array()?.iter().map(ids).collect::<Option<_>>()?,
                labels: texts(&json["labels"])?,
                entities: json["entities"]
                    .as_array()?
                    .iter()
                    .map(|list| list.as_array()?.iter().map(entity).collect::<Option<_>>())
                    .collect::<Option<_>>()?,
            })
        };
        read().context("case.json lacks texts, their ids, labels or entities")
    }

    /// Exports the checkpoint in f32. Compares the entities, and the scores of all texts in one
    /// batch and of each text alone, with the case.
    pub(super) fn run(&self, folder: &Path, engine: &Arc<dyn Engine>) -> Result<Outcome> {
        let checkpoint = published(folder)?;
        let tokenizer = tokenizer::at(&checkpoint)?.tokenizer;
        let program = program_with(&checkpoint, &zoo::Options::default(), engine)?;
        let mut tagger = Tagger::load(&program, engine)?;
        let tagging = tagger.tagging().clone();
        if tagging.labels() != self.labels {
            bail!("the labels are {:?}, expected {:?}", tagging.labels(), self.labels);
        }
        let tokens = self.texts.iter().map(|text| tokenizer.encode_with_places(text)).collect::<Result<Vec<_>, _>>()?;
        let ids: Vec<&[u32]> = tokens.iter().map(|tokens| &tokens.ids[..]).collect();
        if ids != self.ids {
            bail!("the tokens are {ids:?}, expected {:?}", self.ids);
        }
        let expected = one(folder, "scores.bin")?;
        let together = tagger.scores(&ids)?;
        let alone = ids.iter().map(|ids| tagger.scores(&[ids])).collect::<Result<Vec<_>, _>>()?.concat();
        for (how, found) in [("together", &together), ("alone", &alone)] {
            let found = found.concat();
            let found = Tensor::from_slice(&found, &[found.len() / self.labels.len(), self.labels.len()])?;
            compare(&found, &expected, self.tolerance).with_context(|| format!("scores of tokens {how}"))?;
        }
        for ((tokens, scores), expected) in tokens.iter().zip(&together).zip(&self.entities) {
            let found = tagging.entities(tokens, scores, &tokenizer)?;
            let is_close = |(a, b): (&Entity, &Entity)| {
                (a.score - b.score).abs() < 1e-3 && Entity { score: 0.0, ..a.clone() } == Entity { score: 0.0, ..b.clone() }
            };
            if found.len() != expected.len() || !found.iter().zip(expected).all(is_close) {
                bail!("the entities are {found:?}, expected {expected:?}");
            }
        }
        Ok(Outcome::Passed(Vec::new()))
    }
}
