//! `flambeau pull`: model files from the Hugging Face hub, or from its local cache.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};

use crate::{
    files,
    hub::{Hub, ModelName},
};

/// Get the files of a model: from the local Hugging Face cache, or from the hub
///
/// Reads HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE as Hugging Face's own
/// tools do.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flambeau pull HuggingFaceTB/SmolLM2-135M-Instruct -o ./smollm2")]
pub(crate) struct Args {
    /// Model as ORG/NAME, with @REVISION for another than `main`
    #[arg(value_name = "NAME")]
    name: String,

    /// Folder for the files; by default the last part of the name
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Only this file instead of config, tokenizer and safetensors weights; repeat it for more
    #[arg(long = "file", value_name = "PATH")]
    files: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let name = ModelName::parse(&args.name)?;
    let folder = args.output.clone().unwrap_or_else(|| PathBuf::from(&name.model));
    let hub = Hub::from_environment();
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let list = match hub.cached(&name)? {
        Some(snapshot) if args.files.iter().all(|f| snapshot.join(f).is_file()) => {
            hub.copy_cached(&snapshot, &folder, &args.files)?
        }
        _ => hub.download(&name, &folder, &args.files)?,
    };
    for path in list {
        files::print_line(path.display())?;
    }
    Ok(ExitCode::SUCCESS)
}
