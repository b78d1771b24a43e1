//! `flambeau tokenize`: texts to tokens, and back.

use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use flambeau::{text::Tokenizer, zoo::TokenizerSource};
use serde_json::json;

use super::template;
use crate::{checkpoint, failure::hint, file_kind::FileKind, files, prompt::PromptArgs, tokenizer};

/// Show the tokens of a text, or the text of tokens
///
/// Prints a line for each token: its id and its text. A model of the hub has to be in the local
/// cache; its tokenizer is read without exporting it.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "flambeau tokenize [OPTIONS] <MODEL> <PROMPT>",
    after_help = "Examples:\n  flambeau tokenize smollm2.pte 'Hello, world'\n  flambeau tokenize qwen3:0.6b --ids -p - < text.txt\n  \
    flambeau tokenize smollm2.pte --decode '19556 28 905'"
)]
pub(crate) struct Args {
    /// Program (.pte), model folder, GGUF file, tokenizer.json, or ORG/NAME in the local Hugging
    /// Face cache
    #[arg(value_name = "MODEL")]
    model: String,

    #[command(flatten)]
    text: PromptArgs,

    /// Do not add special tokens, such as one that begins a text
    #[arg(long)]
    no_special: bool,

    /// Turn ids into text: numbers with blanks or commas between them
    #[arg(long)]
    decode: bool,

    /// Print the ids alone, in a line
    #[arg(long, conflicts_with = "decode")]
    ids: bool,

    /// Print a JSON object
    #[arg(long, conflicts_with = "ids")]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let tokenizer = find(&args.model)?;
    let text = args.text.read()?;
    if args.decode {
        let (ids, size) = (ids(&text)?, tokenizer.vocab_size());
        if let Some(unknown) = ids.iter().find(|id| **id as usize >= size) {
            bail!("the model has no token {unknown}; its ids are below {size}");
        }
        let text = tokenizer.decode(&ids, false)?;
        if args.json {
            files::print_json(&json!({ "text": text }))?;
        } else {
            files::print_line(text)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let ids = if args.no_special { tokenizer.encode(&text, false)? } else { tokenizer.encode_prompt(&text)? };
    let piece = |id: u32| match tokenizer.token_bytes(id) {
        Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        None => tokenizer.id_to_token(id).unwrap_or_default(),
    };
    if args.json {
        let tokens: Vec<_> = ids.iter().map(|&id| json!({ "id": id, "text": piece(id) })).collect();
        files::print_json(&json!({ "count": ids.len(), "ids": ids, "tokens": tokens }))?;
    } else if args.ids {
        files::print_line(ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "))?;
    } else {
        ids.iter().try_for_each(|&id| files::print_line(format_args!("{id:>7}  {:?}", piece(id))))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The ids in a text.
fn ids(text: &str) -> Result<Vec<u32>> {
    let words = text.split(|c: char| c == ',' || c.is_whitespace() || c == '[' || c == ']').filter(|word| !word.is_empty());
    words.map(|word| word.parse().with_context(|| format!("`{word}` is no token id"))).collect()
}

/// The tokenizer of a model or file.
fn find(model: &str) -> Result<Tokenizer> {
    let path = &template::resolve(model)?;
    match FileKind::of_file(path) {
        Some(FileKind::Program) => Ok(tokenizer::find(&flambeau::runtime::Program::open(path)?, path, None)?.tokenizer),
        Some(FileKind::Gguf) => match checkpoint::open_path(path)?.tokenizer() {
            TokenizerSource::Gguf(vocab) | TokenizerSource::Pieces(vocab) => {
                let advice = "give the path of the model's tokenizer.json instead of the GGUF file";
                Tokenizer::from_gguf(vocab).context("the file's tokenizer").map_err(|error| hint(error, advice))
            }
            TokenizerSource::Files(_) => Err(anyhow!("{} has no tokenizer", path.display())),
        },
        _ => Ok(tokenizer::at(path)?.tokenizer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_from_lists() {
        assert_eq!(ids("[1, 2,3] 4\n5").unwrap(), [1, 2, 3, 4, 5]);
        assert!(ids("1 x").is_err());
    }
}
