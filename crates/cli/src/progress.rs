//! Progress bars, shown only on a terminal.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// Whether progress bars are shown.
pub(crate) fn is_shown() -> bool {
    std::io::stderr().is_terminal()
}

fn bar(length: u64, template: &str) -> ProgressBar {
    if !is_shown() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style)
}

/// A progress bar for a count.
pub(crate) fn count(length: u64) -> ProgressBar {
    bar(length, "{bar:40} {pos}/{len} {wide_msg}")
}

/// A progress bar for seconds of a recording; hidden if the length is unknown.
pub(crate) fn seconds(length: f64) -> ProgressBar {
    if length <= 0.0 {
        return ProgressBar::hidden();
    }
    bar(length.ceil() as u64, "{bar:30} {pos}/{len} s, {per_sec} real time, {eta} left")
}

/// A spinner for work of unknown length.
pub(crate) fn spinner(what: &'static str) -> ProgressBar {
    let bar = bar(0, "{spinner} {msg} ({elapsed})");
    bar.set_message(what);
    bar.enable_steady_tick(std::time::Duration::from_millis(100));
    bar
}

/// A progress bar for bytes.
pub(crate) fn bytes(length: u64) -> ProgressBar {
    bar(length, "{bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {wide_msg}")
}
