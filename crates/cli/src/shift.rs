//! Flags for texts that outgrow the context.

use crate::count::or_all;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ShiftArgs {
    /// When the context is full, drop the older half of the text and continue. `chat` first omits
    /// the oldest messages, except the system message
    #[arg(long)]
    pub(crate) context_shift: bool,

    /// Number of tokens at the prompt's beginning that --context-shift never drops; -1 for the
    /// whole prompt
    #[arg(long, value_name = "N", default_value_t = 0, requires = "context_shift", allow_negative_numbers = true, value_parser = or_all)]
    keep: usize,
}

impl ShiftArgs {
    /// Number of tokens that stay; `None` if a full context ends the text.
    pub(crate) fn shift(&self) -> Option<usize> {
        self.context_shift.then_some(self.keep)
    }
}
