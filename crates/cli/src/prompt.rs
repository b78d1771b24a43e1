//! Text arguments: prompts, stop strings and chat templates.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use flambeau::text::ChatTemplate;

use crate::{files, tokenizer::TextModel};

/// Prompt flags.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct PromptArgs {
    /// Text to continue or to answer; `-` reads stdin
    #[arg(value_name = "PROMPT")]
    text: Option<String>,

    /// Same as PROMPT
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,

    /// File with the text; `-` reads stdin
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
}

impl PromptArgs {
    /// The prompt. Line breaks at the end of a file are removed.
    pub(crate) fn read(&self) -> Result<String> {
        let is_stdin = |text: &&String| files::is_standard(Path::new(text));
        let given = self.text.as_ref().or(self.prompt.as_ref());
        let text = match (given.filter(|text| !is_stdin(text)), &self.prompt_file) {
            (Some(text), _) => return Ok(text.clone()),
            (None, Some(path)) if !files::is_standard(path) => {
                fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?
            }
            (None, _) => {
                let mut text = String::new();
                io::stdin().lock().read_to_string(&mut text).context("cannot read the prompt from stdin")?;
                text
            }
        };
        Ok(text.trim_end_matches(['\n', '\r']).to_owned())
    }
}

/// A chat template that replaces the model's.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TemplateArgs {
    /// Chat template in Jinja that replaces the model's
    #[arg(long, value_name = "JINJA", conflicts_with = "chat_template_file")]
    chat_template: Option<String>,

    /// File with a chat template that replaces the model's
    #[arg(long, value_name = "FILE")]
    chat_template_file: Option<PathBuf>,
}

impl TemplateArgs {
    /// Whether a template is given.
    pub(crate) fn is_given(&self) -> bool {
        self.chat_template.is_some() || self.chat_template_file.is_some()
    }

    /// Replaces the template of a model if another one is given.
    ///
    /// # Errors
    /// Fails if the file is unreadable or the template is invalid.
    pub(crate) fn apply(&self, text: &mut TextModel) -> Result<()> {
        let (source, flag) = match (&self.chat_template, &self.chat_template_file) {
            (Some(source), _) => (source.clone(), "--chat-template"),
            (None, Some(path)) => {
                let source = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
                (source, "--chat-template-file")
            }
            (None, None) => return Ok(()),
        };
        let template = ChatTemplate::new(&source, text.tokenizer.special()).context(flag)?;
        text.template = Ok(Some(template));
        Ok(())
    }
}

/// Parses a stop string: `\n`, `\r`, `\t`, `\\` and `\xHH` are escapes; other backslashes are
/// literal.
pub(crate) fn unescape(text: &str) -> Result<String, String> {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let behind = &rest[at + 1..];
        let hex =
            behind.strip_prefix('x').and_then(|digits| digits.get(..2)).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let (character, length) = match behind.chars().next() {
            Some('n') => ('\n', 1),
            Some('r') => ('\r', 1),
            Some('t') => ('\t', 1),
            Some('\\') => ('\\', 1),
            Some('x') if hex.is_some_and(|byte| byte.is_ascii()) => (char::from(hex.unwrap_or_default()), 3),
            _ => ('\\', 0),
        };
        out.push(character);
        rest = &behind[length..];
    }
    out.push_str(rest);
    if out.is_empty() { Err("a stop string has at least one character".into()) } else { Ok(out) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_stand_for_characters() {
        for (text, expected) in
            [("a\\nb", "a\nb"), ("\\t\\\\n", "\t\\n"), ("\\x41\\d", "A\\d"), ("\\", "\\"), ("\\xzz\\xff", "\\xzz\\xff")]
        {
            assert_eq!(unescape(text).unwrap(), expected, "{text}");
        }
        assert!(unescape("").is_err());
    }
}
