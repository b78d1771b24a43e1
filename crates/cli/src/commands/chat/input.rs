//! Where messages come from: a terminal with line editing, or lines of stdin.

use std::{
    io::{self, BufRead, IsTerminal},
    path::PathBuf,
};

use anyhow::{Context, Result};
use rustyline::{
    Completer, Config, Editor, Helper, Highlighter, Hinter,
    error::ReadlineError,
    history::FileHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};

use super::entry;
use crate::environment;

/// What the user did.
pub(super) enum Line {
    Text(String),
    Interrupted,
    End,
}

pub(super) enum Input {
    Terminal { editor: Box<Editor<Multiline, FileHistory>>, history: Option<PathBuf> },
    Lines,
}

/// Lets an entry go on over several lines.
#[derive(Completer, Helper, Highlighter, Hinter)]
pub(super) struct Multiline;

impl Validator for Multiline {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if entry::is_open(context.input()) { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Input {
    /// A terminal if stdin and stdout are one.
    pub(super) fn new() -> Result<Input> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(Input::Lines);
        }
        let config = Config::builder().auto_add_history(true).build();
        let past = FileHistory::with_config(&config);
        let mut editor = Editor::with_history(config, past).context("cannot use the terminal")?;
        editor.set_helper(Some(Multiline));
        let history = environment::state("chat-history");
        if let Some(path) = &history {
            // The first session has none.
            let _ = editor.load_history(path);
        }
        Ok(Input::Terminal { editor: Box::new(editor), history })
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal { .. })
    }

    /// Reads one entry, which may have several lines.
    pub(super) fn read(&mut self) -> Result<Line> {
        match self {
            Input::Terminal { editor, history } => match editor.readline("> ") {
                Ok(text) => {
                    if let Some(path) = history {
                        keep(editor, path);
                    }
                    Ok(Line::Text(text))
                }
                Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(error) => Err(error).context("cannot read from the terminal"),
            },
            Input::Lines => read_lines(&mut io::stdin().lock()),
        }
    }
}

/// Writes the history. Without it the next session lacks what was typed, which is no reason to end this one.
fn keep(editor: &mut Editor<Multiline, FileHistory>, path: &PathBuf) {
    let folder = path.parent().map(std::fs::create_dir_all);
    if folder.is_some_and(|made| made.is_ok()) {
        let _ = editor.append_history(path);
    }
}

fn read_lines(input: &mut dyn BufRead) -> Result<Line> {
    let mut text = String::new();
    loop {
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line).context("cannot read stdin")? == 0 {
            return Ok(if text.is_empty() { Line::End } else { Line::Text(text) });
        }
        // Bytes that are no UTF-8 become U+FFFD: one such line must not end the conversation.
        text.push_str(&String::from_utf8_lossy(&line));
        let entry = text.trim_end_matches(['\r', '\n']);
        if !entry::is_open(entry) {
            return Ok(Line::Text(entry.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_end_with_their_last_line() {
        let mut input = "a\nb\\\nc\r\n\"\"\"\nd\n\n\"\"\"\n\"\"\"e".as_bytes();
        for expected in ["a", "b\\\nc", "\"\"\"\nd\n\n\"\"\"", "\"\"\"e"] {
            let Line::Text(text) = read_lines(&mut input).unwrap() else { panic!("{expected} is missing") };
            assert_eq!(text, expected);
        }
        assert!(matches!(read_lines(&mut input).unwrap(), Line::End));
    }

    #[test]
    fn lines_that_are_no_text_do_not_end_the_conversation() {
        let mut input = &b"caf\xe9\nnext\n"[..];
        for expected in ["caf\u{fffd}", "next"] {
            let Line::Text(text) = read_lines(&mut input).unwrap() else { panic!("{expected} is missing") };
            assert_eq!(text, expected);
        }
    }
}
