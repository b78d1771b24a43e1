//! `flambeau cache`: lists and clears the programs that were exported from checkpoints.

use std::{process::ExitCode, time::SystemTime};

use anyhow::Result;
use clap::Subcommand;
use serde_json::json;

use super::rm::confirm;
use crate::{
    files,
    memory::human,
    shelf::{ago, programs, seconds, table},
};

/// Show or clear the cache of exported programs
///
/// Each checkpoint is exported at its first use; later uses open the cached program. The cache
/// holds at most 64 GiB, or FLAMBEAU_CACHE_SIZE GiB (0 sets no limit). Beyond that, the least
/// recently used programs are removed. `flambeau rm` removes the files of models.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  flambeau cache\n  flambeau cache --json\n  flambeau cache clear --yes")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,

    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Remove all exported programs; the next use exports them again
    Clear {
        /// Remove without confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let folder = programs::folder()?;
    let list = programs::list(&folder);
    let bytes: u64 = list.iter().map(|program| program.bytes).sum();
    if let Some(Action::Clear { yes }) = args.action {
        eprintln!("{} programs, {}", list.len(), human(bytes));
        if !list.is_empty() && !yes && !confirm()? {
            eprintln!("nothing was removed");
            return Ok(ExitCode::FAILURE);
        }
        list.iter().try_for_each(programs::remove)?;
        return Ok(ExitCode::SUCCESS);
    }
    let limit = programs::limit()?;
    if args.json {
        let programs: Vec<_> = list
            .iter()
            .map(|program| json!({ "name": program.label, "path": program.path, "bytes": program.bytes, "used": seconds(program.used) }))
            .collect();
        files::print_json(&json!({ "folder": folder, "bytes": bytes, "limit": limit, "programs": programs }))?;
        return Ok(ExitCode::SUCCESS);
    }
    // The most recently used first.
    let row =
        |program: &programs::CachedProgram| vec![program.label.clone(), human(program.bytes), ago(program.used, SystemTime::now())];
    table(&["PROGRAM", "SIZE", "USED"], list.iter().rev().map(row))?;
    let limit = limit.map_or_else(|| "no limit".to_owned(), |limit| format!("at most {}", human(limit)));
    files::print_line(format!("{} in {} ({limit})", human(bytes), folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
