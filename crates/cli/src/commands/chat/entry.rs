//! User input: messages and commands.

use std::path::PathBuf;

use anyhow::{Result, bail};

/// Delimiter of a message of several lines.
const BLOCK: &str = "\"\"\"";

/// A parsed entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Nothing,
    Message(String),
    Command(Command),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    Reset,
    Undo,
    Retry,
    /// A new system message; `None` removes it.
    System(Option<String>),
    /// A setting and its new value.
    Set(String, String),
    /// Shows the settings, or the named part.
    Show(String),
    /// Adapters to apply; an empty text lists them.
    Lora(String),
    Save(PathBuf),
    Load(PathBuf),
    Exit,
}

/// Commands by their primary names.
pub(super) const COMMANDS: [&str; 11] =
    ["/help", "/reset", "/undo", "/retry", "/system", "/set", "/show", "/lora", "/save", "/load", "/exit"];

/// Whether a command takes a file name.
pub(super) fn takes_file(name: &str) -> bool {
    matches!(name, "/save" | "/load")
}

/// Whether the entry continues on the next line.
pub(super) fn is_open(text: &str) -> bool {
    match text.trim().strip_prefix(BLOCK) {
        Some(rest) => !rest.ends_with(BLOCK),
        None => text.ends_with('\\'),
    }
}

/// Parses an entry. An entry that starts with a slash is a command, unless it is a text block.
pub(super) fn parse(text: &str) -> Result<Entry> {
    let trimmed = text.trim();
    if let Some(rest) = trimmed.strip_prefix(BLOCK) {
        let block = rest.strip_suffix(BLOCK).unwrap_or(rest).trim_matches('\n');
        return Ok(if block.is_empty() { Entry::Nothing } else { Entry::Message(block.to_owned()) });
    }
    if !trimmed.starts_with('/') {
        let message = text.replace("\\\n", "\n");
        let message = message.trim();
        return Ok(if message.is_empty() { Entry::Nothing } else { Entry::Message(message.to_owned()) });
    }
    let (name, rest) = trimmed.split_once(char::is_whitespace).unwrap_or((trimmed, ""));
    let rest = rest.trim();
    let file = || match rest {
        "" => bail!("{name} needs a file: {name} FILE"),
        rest => Ok(PathBuf::from(rest)),
    };
    Ok(Entry::Command(match name {
        "/help" | "/?" => Command::Help,
        "/reset" | "/clear" => Command::Reset,
        "/undo" => Command::Undo,
        "/retry" => Command::Retry,
        "/system" => Command::System(Some(rest).filter(|rest| !rest.is_empty()).map(str::to_owned)),
        "/set" => set(rest)?,
        "/show" => Command::Show(rest.to_owned()),
        "/lora" => Command::Lora(rest.to_owned()),
        "/save" => Command::Save(file()?),
        "/load" => Command::Load(file()?),
        "/exit" | "/quit" | "/bye" => Command::Exit,
        _ => {
            let [others @ .., last] = &COMMANDS;
            bail!("there is no command {name}; there are {} and {last}", others.join(", "))
        }
    }))
}

/// Parses a setting. Ollama's names are accepted.
fn set(rest: &str) -> Result<Command> {
    let rest = rest.strip_prefix("parameter ").unwrap_or(rest).trim();
    let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let value = value.trim();
    Ok(match name {
        "" => bail!("/set needs a setting: /set NAME VALUE; /show lists them"),
        "system" => {
            let text = value.trim_matches('"');
            Command::System(Some(text).filter(|text| !text.is_empty()).map(str::to_owned))
        }
        "nothink" => Command::Set("think".into(), "off".into()),
        "verbose" => Command::Set("stats".into(), "on".into()),
        "quiet" => Command::Set("stats".into(), "off".into()),
        _ => Command::Set(name.to_owned(), value.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        assert!(!is_open(text), "{text}");
        match parse(text).unwrap() {
            Entry::Message(message) => message,
            other => panic!("{text} is {other:?}"),
        }
    }

    #[test]
    fn lines_go_on_after_a_backslash() {
        assert!(is_open("a\\") && is_open("a\\\nb\\"));
        assert_eq!(message("a\\\nb"), "a\nb");
        assert_eq!(message(" a \n"), "a");
    }

    #[test]
    fn blocks_have_any_lines() {
        assert!(is_open("\"\"\"") && is_open("\"\"\"a\n/undo") && is_open("\"\"\"\n\"a\""));
        assert_eq!(message("\"\"\"\n/undo\nb\\\nc\n\"\"\""), "/undo\nb\\\nc");
        assert_eq!(message("\"\"\"a\"\"\""), "a");
        assert_eq!(parse("\"\"\"\n\"\"\"").unwrap(), Entry::Nothing);
    }

    #[test]
    fn commands_take_what_follows_them() {
        let command = |text| match parse(text).unwrap() {
            Entry::Command(command) => command,
            other => panic!("{text} is {other:?}"),
        };
        assert_eq!(command("/undo"), Command::Undo);
        assert_eq!(command("/system  be brief "), Command::System(Some("be brief".into())));
        assert_eq!(command("/system"), Command::System(None));
        assert_eq!(command("/lora calm:0.5 facts"), Command::Lora("calm:0.5 facts".into()));
        assert_eq!(command("/save a b.json"), Command::Save("a b.json".into()));
        assert_eq!(command("/set parameter top_k 5"), Command::Set("top_k".into(), "5".into()));
        assert_eq!(command("/set nothink"), Command::Set("think".into(), "off".into()));
        assert_eq!(command("/set system \"be brief\""), Command::System(Some("be brief".into())));
        assert_eq!(command("/show"), Command::Show(String::new()));
    }

    #[test]
    fn what_is_no_command_is_said() {
        assert!(parse("/frob x").unwrap_err().to_string().contains("no command /frob; there are /help"));
        assert!(parse("/save").unwrap_err().to_string().contains("/save FILE"));
        assert_eq!(parse("  ").unwrap(), Entry::Nothing);
    }
}
