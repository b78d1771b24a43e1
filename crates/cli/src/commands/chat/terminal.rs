//! A terminal that echoes typed text only while the program prompts for it.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    thread,
};

use anyhow::{Context, Result};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use signal_hook::{consts::SIGINT, flag, iterator::Signals, low_level};

use crate::{failure::INTERRUPTED, interrupt::Interrupts};

/// Disables the terminal's echo until dropped. Text typed meanwhile stays in the input buffer.
pub(super) struct Quiet {
    before: Termios,
}

impl Quiet {
    /// # Errors
    /// Fails if the terminal mode cannot be set.
    pub(super) fn new() -> io::Result<Quiet> {
        let before = tcgetattr(io::stdin())?;
        let mut modes = before.clone();
        // Without lines, too: text without an end of line would otherwise wait for one.
        modes.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON);
        modes.special_codes[SpecialCodeIndex::VMIN] = 1;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(io::stdin(), OptionalActions::Now, &modes)?;
        Ok(Quiet { before })
    }

    /// Flags that Ctrl-C sets. Like [`interrupt::flag`](crate::interrupt::flag), a second Ctrl-C
    /// before they are cleared ends the process at once, after restoring the terminal.
    ///
    /// # Errors
    /// Fails if Ctrl-C cannot be handled.
    pub(super) fn interrupts(&self) -> Result<Interrupts> {
        let interrupts = Interrupts::default();
        flag::register(SIGINT, Arc::clone(&interrupts.flag)).context("cannot watch for Ctrl-C")?;
        let mut signals = Signals::new([SIGINT]).context("cannot watch for Ctrl-C")?;
        let (is_last, before) = (Arc::clone(&interrupts.is_last), self.before.clone());
        thread::spawn(move || {
            for _ in &mut signals {
                if is_last.swap(true, Ordering::Relaxed) {
                    // There is nothing to be done about a terminal that cannot be set.
                    let _ = tcsetattr(io::stdin(), OptionalActions::Now, &before);
                    low_level::exit(i32::from(INTERRUPTED));
                }
            }
        });
        Ok(interrupts)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // As above.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}
