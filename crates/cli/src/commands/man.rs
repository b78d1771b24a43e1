//! `flambeau man`: manual pages.

use std::process::ExitCode;

use anyhow::Result;
use clap_mangen::Man;

use crate::{failure::usage, files, reference};

/// Print the manual page of flambeau or of one of its commands, in the format of man(1)
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  flambeau man > ~/.local/share/man/man1/flambeau.1\n  flambeau man generate | man -l -")]
pub(crate) struct Args {
    /// Command whose page to print; by default flambeau itself
    #[arg(value_name = "COMMAND")]
    name: Option<String>,

    /// Print the help of all commands as one Markdown page
    #[arg(long, conflicts_with = "name")]
    markdown: bool,
}

pub(crate) fn run(args: &Args, mut command: clap::Command) -> Result<ExitCode> {
    if args.markdown {
        files::print_bytes(reference::markdown(command).as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    command.build();
    let page = match &args.name {
        None => command,
        Some(name) => {
            let found = command.find_subcommand(name).ok_or_else(|| usage(format!("there is no command `{name}`; see --help")))?;
            found.clone()
        }
    };
    let mut text = Vec::new();
    Man::new(page).render(&mut text)?;
    files::print_bytes(&text)?;
    Ok(ExitCode::SUCCESS)
}
