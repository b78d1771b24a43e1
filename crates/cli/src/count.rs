//! Numbers on the command line.

/// A count, or -1 for no limit.
pub(crate) fn or_all(text: &str) -> Result<usize, String> {
    match text {
        "-1" => Ok(usize::MAX),
        _ => text.parse().map_err(|_| "expected a whole number from 0, or -1 for as many as possible".to_owned()),
    }
}

/// A count of at least 1.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| "expected a whole number from 1".to_owned())
}
