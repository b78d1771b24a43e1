//! `flambeau pull`: model files from the Hugging Face hub, or from its local cache.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use glob::Pattern;

use crate::{
    failure::usage,
    files,
    hub::{Hub, ModelName, Wanted},
};

/// Get the files of a model from the Hugging Face hub, into its local cache or a folder
///
/// Every command that takes ORG/NAME finds the files in the cache, without the network, and so do
/// Python's programs. QUANT names one GGUF file of a repository, in any case of letters; the
/// default is Q4_K_M. A download that broke off continues.
///
/// Reads HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH and HF_HUB_OFFLINE as Hugging
/// Face's own tools do.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  flambeau pull HuggingFaceTB/SmolLM2-135M-Instruct\n  flambeau pull unsloth/Qwen3-0.6B-GGUF:Q8_0\n  \
    flambeau pull qwen3:0.6b -o ./qwen3"
)]
pub(crate) struct Args {
    /// Model as ORG/NAME or a short name, with :QUANT for a GGUF file, and with @REVISION for
    /// another revision than `main`
    #[arg(value_name = "NAME")]
    name: String,

    /// Branch, tag or commit, as @REVISION behind the name
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,

    /// Folder for the files; by default they stay in the cache
    #[arg(short, long, value_name = "DIR", alias = "local-dir")]
    output: Option<PathBuf>,

    /// Only this file instead of those that the model needs to run; repeat it for more
    #[arg(long = "file", value_name = "PATH")]
    files: Vec<String>,

    /// Only files whose paths are like this, such as '*.json'; repeat it for more
    #[arg(long, value_name = "PATTERN")]
    include: Vec<Pattern>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let name = match &args.revision {
        Some(_) if args.name.contains('@') => return Err(usage("--revision and @REVISION say the same: give one of them")),
        Some(revision) => ModelName::parse(&format!("{}@{revision}", ModelName::parse(&args.name)?))?,
        None => ModelName::parse(&args.name)?,
    };
    let hub = Hub::from_environment();
    let wanted = Wanted { files: args.files.clone(), include: args.include.clone() };
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
