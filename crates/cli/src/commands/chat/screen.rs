//! Displays an answer while it is generated.

use std::{
    borrow::Cow,
    env,
    io::{self, IsTerminal, Write},
};

use console::Term;
use flambeau::runners::llm::{Answer, Part};
use indicatif::ProgressBar;

use super::wrap::Wrap;
use crate::progress;

/// A partly displayed answer. Thoughts are dimmed on a terminal; otherwise they go to stderr, so
/// that stdout contains only answers.
pub(super) struct Screen {
    answer: Answer,
    /// Text before and after thoughts; `None` if thoughts go to stderr.
    around: Option<(&'static str, &'static str)>,
    /// Cursor position, if stdout is a terminal.
    wrap: Option<Wrap>,
    /// Status line until the answer starts.
    waiting: Option<Waiting>,
    last: Option<Part>,
    failed: Option<io::Error>,
}

/// A line that is erased when dropped.
struct Waiting(ProgressBar);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

impl Screen {
    pub(super) fn new() -> Screen {
        let has_colour = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let around = if has_colour { ("\x1b[2m", "\x1b[0m") } else { ("[thinking]\n", "\n[answer]") };
        let is_terminal = io::stdout().is_terminal();
        Screen {
            answer: Answer::default(),
            around: is_terminal.then_some(around),
            wrap: is_terminal.then(Wrap::default),
            waiting: is_terminal.then(|| Waiting(progress::spinner("reading the prompt"))),
            last: None,
            failed: None,
        }
    }

    /// Prints text; false once stdout is closed.
    pub(super) fn show(&mut self, part: Part, text: &str) -> bool {
        match part {
            Part::Thinking => self.answer.thinking.push_str(text),
            Part::Answer => self.answer.content.push_str(text),
        }
        if self.failed.is_none() {
            self.failed = self.write(part, text).err();
        }
        self.failed.is_none()
    }

    fn write(&mut self, part: Part, text: &str) -> io::Result<()> {
        self.waiting = None;
        let changed = self.last.replace(part) != Some(part);
        let text = &*self.wrapped(text, changed);
        let mut out = io::stdout().lock();
        match (part, self.around) {
            (Part::Thinking, None) => eprint!("{text}"),
            (Part::Thinking, Some((before, _))) if changed => write!(out, "{before}{text}")?,
            (Part::Answer, Some((_, after))) if changed && !self.answer.thinking.is_empty() => write!(out, "{after}\n{text}")?,
            _ => out.write_all(text.as_bytes())?,
        }
        out.flush()
    }

    /// The text wrapped to the terminal's width, one part per line.
    fn wrapped<'t>(&mut self, text: &'t str, begins: bool) -> Cow<'t, str> {
        let Some(wrap) = &mut self.wrap else { return Cow::Borrowed(text) };
        if begins {
            *wrap = Wrap::default();
        }
        let columns = Term::stdout().size_checked().map_or(usize::MAX, |(_, columns)| usize::from(columns));
        Cow::Owned(wrap.put(text, columns))
    }

    /// Ends the last line and returns the answer.
    pub(super) fn end(mut self) -> io::Result<Answer> {
        self.waiting = None;
        if let Some(error) = self.failed {
            return Err(error);
        }
        let mut out = io::stdout().lock();
        if self.last == Some(Part::Thinking) {
            match self.around {
                Some((_, after)) => write!(out, "{after}")?,
                None => eprintln!(),
            }
        }
        if !self.answer.content.ends_with('\n') {
            writeln!(out)?;
        }
        out.flush()?;
        self.answer.thinking.truncate(self.answer.thinking.trim_end().len());
        Ok(self.answer)
    }
}
