//! `flambeau pull`: downloads models from the Hugging Face hub.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use glob::Pattern;

use crate::{
    failure::usage,
    files,
    hub::{Hub, ModelName, Wanted},
};

/// Download a model from the Hugging Face hub into its local cache or a folder
///
/// Every command that takes ORG/NAME, and Hugging Face's Python libraries, then find the files in
/// the cache without the network. QUANT names one GGUF file of a repository, ignoring case; the
/// default is Q4_K_M. An interrupted download continues.
///
/// Reads HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH and HF_HUB_OFFLINE as Hugging
/// Face's own tools do.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  flambeau pull HuggingFaceTB/SmolLM2-135M-Instruct\n  flambeau pull unsloth/Qwen3-0.6B-GGUF:Q8_0\n  \
    flambeau pull qwen3:0.6b -o ./qwen3\n  \
    flambeau pull openai/whisper-tiny --include '*.json' --include '*.safetensors'"
)]
pub(crate) struct Args {
    /// Model as ORG/NAME or a short name, with :QUANT for a GGUF file, and with @REVISION for a
    /// revision other than `main`
    #[arg(value_name = "NAME")]
    name: String,

    /// Branch, tag or commit; same as @REVISION after the name
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,

    /// Output folder; by default the files stay in the cache
    #[arg(short, long, value_name = "DIR", alias = "local-dir")]
    output: Option<PathBuf>,

    /// Download only this file instead of the files needed to run; repeatable
    #[arg(long = "file", value_name = "PATH")]
    files: Vec<String>,

    /// Download only files whose paths match this pattern, such as '*.json'; repeatable
    #[arg(long, value_name = "PATTERN")]
    include: Vec<Pattern>,

    /// Leave out files whose paths match this pattern; repeatable. Without --include and --file,
    /// all other files of the repository are downloaded
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<Pattern>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let name = match &args.revision {
        Some(_) if args.name.contains('@') => return Err(usage("--revision and @REVISION say the same: give one of them")),
        Some(revision) => ModelName::parse(&format!("{}@{revision}", ModelName::parse(&args.name)?))?,
        None => ModelName::parse(&args.name)?,
    };
    let hub = Hub::from_environment();
    let wanted = Wanted { files: args.files.clone(), include: args.include.clone(), exclude: args.exclude.clone() };
    let list = match &args.output {
        Some(folder) => {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
            hub.download_to(&name, folder, &wanted)?
        }
        None => {
            let model = hub.download(&name, &wanted)?;
            model.selection.files.iter().map(|file| model.snapshot.join(file)).collect()
        }
    };
    for path in list {
        files::print_line(path.display())?;
    }
    Ok(ExitCode::SUCCESS)
}
