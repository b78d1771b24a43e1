//! Flags of the store for files and batches.

use std::path::PathBuf;

use anyhow::{Context, Result};
use flambeau_serve::{BatchConfig, Server};

use crate::{count::positive, environment};

const MIB: usize = 1 << 20;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BatchArgs {
    /// Folder for files and batches, which survive restarts. Its files contain prompts and answers;
    /// only their owner can read them [default: flambeau/batches in the user's cache]
    #[arg(help_heading = "Batches", long, value_name = "DIR")]
    batch_dir: Option<PathBuf>,

    /// Maximum total size of the files in the batch folder in MiB; 0 disables files and batches
    #[arg(help_heading = "Batches", long, value_name = "N", default_value_t = 4096)]
    batch_disk: usize,

    /// Maximum size of a batch input file in MiB
    #[arg(help_heading = "Batches", long, value_name = "N", default_value_t = 200, value_parser = positive)]
    max_batch_file: usize,
}

impl BatchArgs {
    /// Enables the store on a server, with `at_once` concurrent batch requests. An unusable default
    /// folder is only logged.
    ///
    /// # Errors
    /// Fails if the folder of the flag is unusable.
    pub(super) fn attach(&self, server: Server, at_once: usize) -> Result<Server> {
        if self.batch_disk == 0 {
            return Ok(server);
        }
        let config = |folder| BatchConfig {
            folder,
            bytes: self.batch_disk.saturating_mul(MIB) as u64,
            file_bytes: self.max_batch_file.saturating_mul(MIB),
            at_once,
        };
        match &self.batch_dir {
            Some(folder) => {
                server.with_batches(config(folder.clone())).with_context(|| format!("cannot keep batches in {}", folder.display()))
            }
            None => match environment::cache("batches") {
                Ok(folder) => Ok(server.with_default_batches(config(folder))),
                Err(_) => Ok(server),
            },
        }
    }
}
