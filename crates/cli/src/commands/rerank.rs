//! `flambeau rerank`: ranks documents by their relevance to a query.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use flambeau::{
    runners::embed::{Classifier, INSTRUCTION, Tokens},
    text::Tokenizer,
};
use flambeau_serve::RerankList;

use super::text_model::TextModelArgs;
use crate::{count::positive, failure::usage, files};

/// Rank documents by their relevance to a query, with a reranker such as bge-reranker-v2-m3
///
/// Prints the relevance of each document, from 0 to 1, and its name, most relevant first. Documents
/// that are too long for the model are truncated. Classifiers of text pairs and Qwen3-Reranker are
/// rerankers.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  flambeau rerank BAAI/bge-reranker-v2-m3 --query 'How do I renew a passport?' notes/*.md\n  \
    flambeau rerank Qwen/Qwen3-Reranker-0.6B --query 'capital of France' --top-n 3 --json - < lines.txt")]
pub(crate) struct Args {
    #[command(flatten)]
    flags: TextModelArgs,

    /// The query
    #[arg(short, long, value_name = "TEXT")]
    query: String,

    /// Files with one document each; `-` reads one document per line from stdin
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Read one document per line of the files
    #[arg(long)]
    lines: bool,

    /// Print only the N most relevant documents
    #[arg(short = 'n', long, value_name = "N", value_parser = positive)]
    top_n: Option<usize>,

    /// Instruction for a language model such as Qwen3-Reranker: how to judge documents
    #[arg(long, value_name = "TEXT")]
    instruction: Option<String>,

    /// Print JSON in the format of /v1/rerank
    #[arg(long)]
    json: bool,
}

/// A document with its name.
struct Document {
    name: String,
    text: String,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let documents = documents(&args.files, args.lines)?;
    let (mut model, tokenizer) = args.flags.classifier(&args.flags.engine.engine(false)?)?;
    let texts: Vec<&str> = documents.iter().map(|document| document.text.as_str()).collect();
    let judged = relevance(&mut model, &tokenizer, &args.query, &texts, args.instruction.as_deref());
    let (relevance, tokens) = judged.with_context(|| args.flags.model.name().to_owned())?;
    let list = RerankList::new(args.flags.model.name(), &relevance, Some(&texts), args.top_n, tokens);
    if args.json {
        files::print_line(serde_json::to_string(&list)?)?;
    } else {
        for (index, relevance) in list.order() {
            files::print_line(format!("{relevance:.4}\t{}", documents[index].name))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The relevance of each document to a query, from 0 to 1, and the number of tokens of all pairs.
///
/// # Errors
/// The model cannot rank documents, or reads no instruction.
pub(crate) fn relevance(
    model: &mut Classifier,
    tokenizer: &Tokenizer,
    query: &str,
    documents: &[&str],
    instruction: Option<&str>,
) -> Result<(Vec<f32>, usize)> {
    let scoring = model.scoring().clone();
    if !scoring.ranks() {
        bail!("the model has {} labels: only models with one or two can rank documents", scoring.labels().len());
    }
    if instruction.is_some() && !scoring.takes_instruction() {
        return Err(usage("--instruction: the model does not read one"));
    }
    let instruction = instruction.unwrap_or(INSTRUCTION);
    let pair = |(number, document): (usize, &&str)| {
        let tokens = scoring.pair(tokenizer, [query, document], instruction, scoring.max_tokens())?;
        model.check(&tokens).with_context(|| format!("document {}", number + 1))?;
        Ok(tokens)
    };
    let pairs: Vec<Tokens> = documents.iter().enumerate().map(pair).collect::<Result<_>>()?;
    let scores = model.scores(&pairs.iter().collect::<Vec<_>>())?;
    let relevance = scores.iter().map(|scores| scoring.relevance(scores)).collect();
    Ok((relevance, pairs.iter().map(|pair| pair.ids.len()).sum()))
}

/// The documents, with the lines of stdin in the place of `-`.
fn documents(paths: &[PathBuf], lines: bool) -> Result<Vec<Document>> {
    if paths.iter().filter(|path| *path == Path::new("-")).count() > 1 {
        return Err(usage("stdin can be read only once: `-` stands for all of its lines"));
    }
    let of_line = |line: String| Document { name: line.clone(), text: line };
    let mut documents = Vec::new();
    for path in paths {
        if path == Path::new("-") {
            for line in io::stdin().lines() {
                documents.push(of_line(line.context("stdin")?));
            }
            continue;
        }
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        if lines {
            documents.extend(text.lines().map(|line| of_line(line.to_owned())));
        } else {
            documents.push(Document { name: path.display().to_string(), text });
        }
    }
    Ok(documents)
}
