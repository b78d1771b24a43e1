//! Text arguments: prompts, stop strings and chat templates.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use flambeau::text::ChatTemplate;

use crate::{
    failure::{hint, usage},
    files,
    tokenizer::TextModel,
};

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
    #[arg(short = 'f', long, value_name = "FILE", alias = "file")]
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

/// The template of ChatML, which many models were trained with.
const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Whether a text has expressions or statements of Jinja. A template without them would leave out
/// the conversation.
fn is_jinja(text: &str) -> bool {
    text.contains("{{") || text.contains("{%")
}

/// A chat template that replaces the model's.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TemplateArgs {
    /// Chat template that replaces the model's: Jinja, a file of it, or `chatml`
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
        let read = |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
        let (source, flag) = match (&self.chat_template, &self.chat_template_file) {
            (Some(given), _) if is_jinja(given) => (given.clone(), "--chat-template"),
            (Some(given), _) if Path::new(given).is_file() => (read(Path::new(given))?, "--chat-template"),
            (Some(given), _) if given.eq_ignore_ascii_case("chatml") => (CHATML.to_owned(), "--chat-template"),
            (Some(given), _) => {
                let refused = format!("--chat-template {given}: it is no template, because it has no {{{{ }}}} and no {{% %}}");
                return Err(hint(usage(refused), "give a template in Jinja, its file, or `chatml`"));
            }
            (None, Some(path)) => (read(path)?, "--chat-template-file"),
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
