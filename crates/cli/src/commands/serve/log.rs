//! The server's log on stderr.

use std::io::{IsTerminal, stderr};

use clap::ValueEnum;
use tracing_subscriber::filter::LevelFilter;

/// Log format.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum LogFormat {
    Text,
    Json,
}

impl LogFormat {
    /// Initializes the log, once per process.
    pub(super) fn start(self, level: LevelFilter) {
        let log = tracing_subscriber::fmt().with_writer(stderr).with_target(false).with_max_level(level);
        match self {
            LogFormat::Text => log.with_ansi(stderr().is_terminal()).init(),
            LogFormat::Json => log.json().flatten_event(true).with_current_span(false).with_span_list(false).init(),
        }
    }
}
