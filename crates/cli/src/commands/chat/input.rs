//! Message input: a terminal with line editing, or lines of stdin.

use std::{
    io::{self, BufRead, IsTerminal},
    path::PathBuf,
};

use anyhow::{Context, Result};
use rustyline::{
    CompletionType, Config, Context as Place, Editor, Helper, Highlighter, Hinter,
    completion::{Completer, Pair},
    error::ReadlineError,
    history::FileHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};

use super::entry;
#[cfg(unix)]
use super::terminal::Quiet;
use crate::{environment, interrupt::Interrupts};

/// An input event.
pub(super) enum Line {
    Text(String),
    Interrupted,
    End,
}

pub(super) enum Input {
    Terminal {
        editor: Box<Editor<Entries, FileHistory>>,
        history: Option<PathBuf>,
        /// Fails if the terminal mode cannot be set.
        #[cfg(unix)]
        quiet: Option<Quiet>,
    },
    Lines,
}

/// Line editor settings: multi-line entries and command completion.
#[derive(Helper, Highlighter, Hinter)]
pub(super) struct Entries;

impl Completer for Entries {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &Place<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        Ok(completions(&line[..at]))
    }
}

/// Start of the last word of a line, and its completions: command names, or file names after a
/// command that takes one.
fn completions(line: &str) -> (usize, Vec<Pair>) {
    let pair = |text: String, shown: String| Pair { display: shown, replacement: text };
    let Some((name, file)) = line.split_once(' ') else {
        let known = entry::COMMANDS.iter().filter(|name| line.starts_with('/') && name.starts_with(line));
        return (0, known.map(|name| pair(format!("{name} "), (*name).to_owned())).collect());
    };
    if !entry::takes_file(name) {
        return (line.len(), Vec::new());
    }
    let start = file.rfind('/').map_or(0, |slash| slash + 1);
    let (folder, begun) = file.split_at(start);
    let there = std::fs::read_dir(if folder.is_empty() { "." } else { folder });
    let mut found: Vec<Pair> = there
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let mut name = entry.file_name().into_string().ok()?;
            let fits = name.starts_with(begun) && (!name.starts_with('.') || begun.starts_with('.'));
            if entry.path().is_dir() {
                name.push('/');
            }
            fits.then(|| pair(name.clone(), name))
        })
        .collect();
    found.sort_by(|a, b| a.display.cmp(&b.display));
    (line.len() - begun.len(), found)
}

impl Validator for Entries {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if entry::is_open(context.input()) { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Input {
    /// Uses the terminal if both stdin and stdout are one.
    pub(super) fn new() -> Result<Input> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(Input::Lines);
        }
        let config = Config::builder().auto_add_history(true).completion_type(CompletionType::List).build();
        let past = FileHistory::with_config(&config);
        let mut editor = Editor::with_history(config, past).context("cannot use the terminal")?;
        editor.set_helper(Some(Entries));
        let history = environment::state("chat-history");
        if let Some(path) = &history {
            // The first session has none.
            let _ = editor.load_history(path);
        }
        Ok(Input::Terminal {
            editor: Box::new(editor),
            history,
            #[cfg(unix)]
            quiet: Quiet::new().ok(),
        })
    }

    /// The flags that Ctrl-C sets between entries.
    ///
    /// # Errors
    /// Fails if Ctrl-C cannot be handled.
    pub(super) fn interrupts(&self) -> Result<Interrupts> {
        #[cfg(unix)]
        if let Input::Terminal { quiet: Some(quiet), .. } = self {
            return quiet.interrupts();
        }
        Interrupts::watched()
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal { .. })
    }

    /// Reads one entry, which may have several lines.
    pub(super) fn read(&mut self) -> Result<Line> {
        match self {
            Input::Terminal { editor, history, .. } => match editor.readline("> ") {
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

/// Saves the history. A failure only loses this session's entries, so the session goes on.
fn keep(editor: &mut Editor<Entries, FileHistory>, path: &PathBuf) {
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
    fn commands_and_their_files_are_completed() {
        let offered = |line: &str| {
            let (start, pairs) = completions(line);
            pairs.into_iter().map(|pair| format!("{}{}", &line[..start], pair.replacement)).collect::<Vec<_>>()
        };
        assert_eq!(offered("/re"), ["/reset ", "/retry "]);
        assert_eq!(offered("/s"), ["/system ", "/set ", "/show ", "/save "]);
        assert_eq!(offered("/"), entry::COMMANDS.map(|name| format!("{name} ")));
        assert_eq!((offered("re"), offered("/system be"), offered("")), (Vec::new(), Vec::new(), Vec::new()));
        let folder = tempfile::tempdir().unwrap();
        for name in ["one talk.json", "one.txt", "two", ".hidden"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::fs::create_dir(folder.path().join("once")).unwrap();
        let at = folder.path().to_str().unwrap();
        let expected = ["once/", "one talk.json", "one.txt"].map(|name| format!("/load {at}/{name}"));
        assert_eq!(offered(&format!("/load {at}/on")), expected);
        assert_eq!(offered(&format!("/save {at}/one t")), [format!("/save {at}/one talk.json")]);
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
