//! Error output: one line, and a hint if available.

use std::{fmt, io, process::ExitCode};

use flambeau::runners;

/// Exit code for wrong usage.
pub(crate) const USAGE: u8 = 2;

/// Exit code after an interruption, as shells use it.
pub(crate) const INTERRUPTED: u8 = 130;

/// A usage error that the argument parser cannot detect.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// An error with advice.
#[derive(Debug)]
struct Hinted {
    error: anyhow::Error,
    hint: String,
}

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(&self.error))
    }
}

impl std::error::Error for Hinted {}

/// Creates a usage error.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    Usage(message.into()).into()
}

/// Adds advice to an error.
pub(crate) fn hint(error: impl Into<anyhow::Error>, hint: impl Into<String>) -> anyhow::Error {
    Hinted { error: error.into(), hint: hint.into() }.into()
}

/// The messages of an error and its causes, without repetitions.
pub(crate) fn text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// [`text`], with advice on its own line.
pub(crate) fn with_hint(error: &anyhow::Error) -> String {
    let hinted = error.downcast_ref::<Hinted>().map(|hinted| hinted.hint.clone());
    let hint = hinted.or_else(|| error.chain().find_map(|cause| advice(cause.downcast_ref()?)).map(|advice| advice.to_string()));
    text(error) + &hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default()
}

/// Whether the error is a closed stdout, which is not reported.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
}

/// The flag that helps against a language model's error.
fn advice(error: &runners::Error) -> Option<&'static str> {
    match error {
        runners::Error::PromptTooLong { .. } => Some(
            "-c N gives a checkpoint's program room for N tokens; that of a .pte file was decided when it was exported, by the same flag",
        ),
        runners::Error::NoLogits { .. } => {
            Some("--dtype bf16 or --dtype f32 exports a checkpoint anew, to compute in a type of wider range")
        }
        _ => None,
    }
}

/// Prints an error to stderr and returns the exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {}", with_hint(error));
    let error = error.downcast_ref::<Hinted>().map_or(error, |hinted| &hinted.error);
    let usage = error.downcast_ref::<Usage>().is_some();
    ExitCode::from(if usage { USAGE } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        let inner = anyhow::anyhow!("disk full");
        assert_eq!(text(&inner.context("cannot write a.bin")), "cannot write a.bin: disk full");
        let twice = anyhow::anyhow!("disk full").context("cannot write: disk full");
        assert_eq!(text(&twice), "cannot write: disk full");
    }
}
