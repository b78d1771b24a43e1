//! `flambeau embed`: computes text embeddings.

use std::process::ExitCode;

use anyhow::{Context, Result};
use flambeau::{
    runners::embed::{Embedder, Prompt, Tokens, shorten, truncate},
    text::Tokenizer,
};
use flambeau_serve::EmbeddingList;

use super::text_model::{TextModelArgs, texts};
use crate::{
    count::positive,
    failure::{hint, usage},
    files,
};

/// Compute embeddings of texts with a text encoder, such as all-MiniLM-L6-v2
///
/// Texts with similar meaning get vectors with similar directions. Prints JSON in the format of
/// OpenAI's embeddings; `flambeau serve` answers the same at /v1/embeddings. Encoders exported from
/// a folder keep its pooling, normalization and prompts.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  flambeau embed sentence-transformers/all-MiniLM-L6-v2 'A man is eating food.' 'Somebody eats.'\n  \
    flambeau embed Qwen/Qwen3-Embedding-0.6B --prompt-name query --dimensions 256 'capital of France'\n  \
    flambeau embed ./all-MiniLM-L6-v2 --truncate - < sentences.txt > vectors.json\n  \
    flambeau export ./all-MiniLM-L6-v2 -o minilm.pte --qlinear 8w && flambeau embed minilm.pte 'Hello'"
)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: TextModelArgs,

    /// Texts; `-` reads one text per line from stdin
    #[arg(value_name = "TEXT", required = true)]
    texts: Vec<String>,

    #[command(flatten)]
    how: VectorArgs,
}

/// How texts become vectors.
#[derive(Debug, clap::Args)]
pub(crate) struct VectorArgs {
    /// Put one of the model's own prompts before every text, by its name, such as query. A task of
    /// this name, as in Jina Embeddings 3, applies as well
    #[arg(long, value_name = "NAME", conflicts_with = "prompt")]
    prompt_name: Option<String>,

    /// Prefix every text with this text
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,

    /// Truncate vectors to their first N elements and normalize them again, for models trained for
    /// it (Matryoshka)
    #[arg(long, value_name = "N", value_parser = positive)]
    dimensions: Option<usize>,

    /// Truncate texts that are too long for the model instead of failing
    #[arg(long)]
    truncate: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let texts = texts(&args.texts)?;
    let (mut embedder, tokenizer) = args.flags.encoder(&args.flags.engine.engine(false)?)?;
    let (vectors, tokens) = vectors(&mut embedder, &tokenizer, &texts, &args.how)?;
    files::print_line(serde_json::to_string(&EmbeddingList::of_floats(args.flags.model.name(), &vectors, tokens))?)?;
    Ok(ExitCode::SUCCESS)
}

/// A vector of each text, and the number of tokens of all texts.
///
/// # Errors
/// A text is too long, or an argument does not fit the model.
pub(crate) fn vectors(
    embedder: &mut Embedder,
    tokenizer: &Tokenizer,
    texts: &[String],
    how: &VectorArgs,
) -> Result<(Vec<Vec<f32>>, usize)> {
    let Prompt { text: prompt, task } = prompt(how, embedder)?;
    if let Some(n) = how.dimensions.filter(|&n| n > embedder.dimension()) {
        return Err(usage(format!("--dimensions {n}: the model's vectors have {} elements", embedder.dimension())));
    }
    let mut list = Vec::with_capacity(texts.len());
    for (number, text) in texts.iter().map(String::as_str).enumerate() {
        let mut ids = tokenizer.encode(&[&prompt, text].concat(), true)?;
        if how.truncate {
            truncate(&mut ids, embedder.max_tokens(), tokenizer);
        }
        let checked = embedder.check(&ids).with_context(|| format!("text {}", number + 1));
        checked.map_err(|error| hint(error, "--truncate leaves out what is too much"))?;
        list.push(Tokens { task, ..Tokens::from(ids) });
    }
    let mut vectors = embedder.embed_tasks(&list.iter().collect::<Vec<_>>())?;
    if let Some(size) = how.dimensions {
        vectors.iter_mut().for_each(|vector| shorten(vector, size));
    }
    Ok((vectors, list.iter().map(|text| text.ids.len()).sum()))
}

/// The prompt before every text.
fn prompt(how: &VectorArgs, embedder: &Embedder) -> Result<Prompt> {
    let Some(name) = &how.prompt_name else {
        return Ok(how.prompt.clone().map_or_else(|| embedder.prompts().default_prompt(), Prompt::from));
    };
    let names: Vec<&str> = embedder.prompts().texts().keys().map(String::as_str).collect();
    let unknown = || match names.is_empty() {
        true => usage(format!("--prompt-name {name}: the model has no prompts")),
        false => usage(format!("--prompt-name {name}: the model's prompts are {}", names.join(", "))),
    };
    embedder.prompts().named(name).ok_or_else(unknown)
}
