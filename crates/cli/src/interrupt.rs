//! Handling of Ctrl-C.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, Result};
use signal_hook::{consts::SIGINT, flag};

use crate::failure::INTERRUPTED;

/// A flag that Ctrl-C sets. A second Ctrl-C ends the process at once, without destructors: an
/// engine on another thread may still use their data.
pub(crate) fn flag() -> Result<Arc<AtomicBool>> {
    let set = Arc::new(AtomicBool::new(false));
    // This order keeps the first signal from seeing the flag that it sets.
    flag::register_conditional_shutdown(SIGINT, i32::from(INTERRUPTED), Arc::clone(&set))
        .and_then(|_| flag::register(SIGINT, Arc::clone(&set)))
        .context("cannot watch for Ctrl-C")?;
    Ok(set)
}

/// Flag of a Ctrl-C press that can be reset.
#[derive(Clone, Default)]
pub(crate) struct Interrupts {
    pub(crate) flag: Arc<AtomicBool>,
    /// Whether the next press ends the process, unless the [flag](flag()) does so itself.
    pub(crate) is_last: Arc<AtomicBool>,
}

impl Interrupts {
    /// Flags that behave as [`flag`](flag()) does.
    pub(crate) fn watched() -> Result<Interrupts> {
        Ok(Interrupts { flag: flag()?, ..Interrupts::default() })
    }

    /// Resets the flag.
    pub(crate) fn clear(&self) {
        self.flag.store(false, Ordering::Relaxed);
        self.is_last.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        io::Write,
        process::{Command, Output},
        sync::atomic::Ordering,
    };

    use signal_hook::low_level::raise;

    use super::*;

    /// Names the number of times that the test below interrupts its own process.
    const TIMES: &str = "FLAMBEAU_TEST_INTERRUPTS";

    #[test]
    fn interrupts_itself() {
        let Some(times) = env::var(TIMES).ok().and_then(|times| times.parse::<u32>().ok()) else { return };
        let flag = flag().unwrap();
        // A line that is not whole is written when a process ends in the usual way.
        std::io::stdout().write_all(b"unfinished").unwrap();
        assert!(!flag.load(Ordering::Relaxed));
        for _ in 0..times {
            raise(SIGINT).unwrap();
        }
        assert!(flag.load(Ordering::Relaxed));
    }

    fn interrupted(times: u32) -> Output {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "interrupt::tests::interrupts_itself"]).env(TIMES, times.to_string()).output().unwrap()
    }

    #[test]
    fn the_first_interruption_sets_a_flag_and_the_second_ends_the_process_without_ado() {
        let (once, twice) = (interrupted(1), interrupted(2));
        let text = |out: &Output| String::from_utf8_lossy(&out.stdout).contains("unfinished");
        assert_eq!((once.status.code(), text(&once)), (Some(0), true));
        assert_eq!((twice.status.code(), text(&twice)), (Some(i32::from(INTERRUPTED)), false));
    }
}
