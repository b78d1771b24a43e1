//! `flambeau classify`: labels of texts, and entities in them.

use std::process::ExitCode;

use anyhow::{Context, Result};
use flambeau::{
    runners::embed::{Classifier, Entity, Tagger, Tokens, probabilities, truncate},
    text::{Placed, Tokenizer, argmax},
};
use flambeau_serve::{entities_entry, label_entry};
use serde_json::{Value as Json, json};

use super::text_model::{Labeller, TextModelArgs, texts};
use crate::{failure::hint, files};

/// Label texts, or the names in them, with a classifier such as bert-base-NER
///
/// A classifier of texts gives each text a label: prints its probability, the label and the text.
/// A classifier of tokens finds entities, such as persons and places: prints the mean probability
/// of their tokens, the label, the entity, and where it stands in the text, in characters. Adjacent
/// tokens of one label form an entity.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  flambeau classify dslim/bert-base-NER 'My name is Wolfgang and I live in Berlin.'\n  \
    flambeau classify distilbert/distilbert-base-uncased-finetuned-sst-2-english --json - < reviews.txt")]
pub(crate) struct Args {
    #[command(flatten)]
    flags: TextModelArgs,

    /// Texts; `-` takes a text from each line of stdin
    #[arg(value_name = "TEXT", required = true)]
    texts: Vec<String>,

    /// Print JSON in the form of /v1/classify, with the probabilities of all labels
    #[arg(long)]
    json: bool,

    /// Leave out the end of texts that are too long for the model, in place of an error
    #[arg(long)]
    truncate: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let texts = texts(&args.texts)?;
    let (model, tokenizer) = args.flags.labeller(&args.flags.engine.engine(false)?)?;
    let (data, tokens) = match model {
        Labeller::OfTexts(model) => labels(args, model, &tokenizer, &texts)?,
        Labeller::OfTokens(model) => entities(args, model, &tokenizer, &texts)?,
    };
    if args.json {
        let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
        let list = json!({ "object": "list", "model": args.flags.model.name(), "data": data, "usage": usage });
        files::print_line(list.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Labels of texts, and the number of tokens; prints the labels unless JSON is asked for.
fn labels(args: &Args, mut model: Classifier, tokenizer: &Tokenizer, texts: &[String]) -> Result<(Vec<Json>, usize)> {
    let scoring = model.scoring().clone();
    let mut list = Vec::with_capacity(texts.len());
    for (number, text) in texts.iter().enumerate() {
        let mut ids = tokenizer.encode(text, true)?;
        if args.truncate {
            truncate(&mut ids, scoring.max_tokens(), tokenizer);
        }
        let tokens = Tokens::from(ids);
        checked(model.check(&tokens), number)?;
        list.push(tokens);
    }
    let rows = model.scores(&list.iter().collect::<Vec<_>>())?;
    let mut data = Vec::with_capacity(rows.len());
    for (index, (row, text)) in rows.iter().zip(texts).enumerate() {
        let shares = probabilities(row);
        if !args.json {
            let (best, share) = argmax(&shares).context("the model computes no probabilities")?;
            files::print_line(format!("{share:.4}\t{}\t{text}", scoring.labels()[best as usize]))?;
        }
        data.push(label_entry(index, scoring.labels(), &shares));
    }
    Ok((data, list.iter().map(|tokens| tokens.ids.len()).sum()))
}

/// Entities in texts, and the number of tokens; prints the entities unless JSON is asked for.
fn entities(args: &Args, mut model: Tagger, tokenizer: &Tokenizer, texts: &[String]) -> Result<(Vec<Json>, usize)> {
    let tagging = model.tagging().clone();
    let mut list: Vec<Placed> = Vec::with_capacity(texts.len());
    for (number, text) in texts.iter().enumerate() {
        let mut tokens = tokenizer.encode_with_places(text)?;
        if args.truncate {
            tokens.truncate(tagging.max_tokens());
        }
        checked(model.check(&tokens.ids), number)?;
        list.push(tokens);
    }
    let rows = model.scores(&list.iter().map(|tokens| &tokens.ids[..]).collect::<Vec<_>>())?;
    let mut data = Vec::with_capacity(rows.len());
    for (index, (tokens, scores)) in list.iter().zip(&rows).enumerate() {
        let entities = tagging.entities(tokens, scores, tokenizer)?;
        if !args.json {
            for Entity { entity_group, score, word, start, end } in &entities {
                files::print_line(format!("{score:.4}\t{entity_group}\t{word}\t{start}..{end}"))?;
            }
        }
        data.push(entities_entry(index, &entities));
    }
    Ok((data, list.iter().map(|tokens| tokens.ids.len()).sum()))
}

fn checked(found: Result<(), flambeau::runners::Error>, number: usize) -> Result<()> {
    let found = found.with_context(|| format!("text {}", number + 1));
    found.map_err(|error| hint(error, "--truncate leaves out what is too much"))
}
