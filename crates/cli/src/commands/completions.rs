//! `flambeau completions`: prints a shell's completion script.

use std::process::ExitCode;

use anyhow::Result;
use clap_complete::Shell;

use crate::files;

/// Print a script that completes the command line in a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  flambeau completions bash > ~/.local/share/bash-completion/completions/flambeau\n  \
    flambeau completions zsh > ~/.zfunc/_flambeau\n  flambeau completions fish > ~/.config/fish/completions/flambeau.fish")]
pub(crate) struct Args {
    /// Shell that reads the script
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn run(args: &Args, mut command: clap::Command) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "flambeau", &mut script);
    files::print_bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}
