//! Validates a batch's input before it runs.

use std::{
    collections::BTreeSet,
    io::{self, BufRead, BufReader, Read},
};

use super::{MAX_LINES, line::Line};
use crate::storage::record::BatchError;

/// Maximum number of listed errors.
const MAX_ERRORS: usize = 100;

/// Non-empty lines of a file, without line breaks. A line longer than `most` bytes is truncated to
/// `most` + 1.
pub(crate) struct Lines<R> {
    reader: BufReader<R>,
    most: usize,
    number: usize,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(file: R, most: usize) -> Lines<R> {
        Lines { reader: BufReader::new(file), most, number: 0 }
    }

    /// The next line and its number, counted from 1.
    ///
    /// # Errors
    /// Fails if the file is unreadable.
    pub(crate) fn next(&mut self) -> io::Result<Option<(usize, Vec<u8>)>> {
        loop {
            let mut line = Vec::new();
            let limit = self.most as u64 + 1;
            if (&mut self.reader).take(limit).read_until(b'\n', &mut line)? == 0 {
                return Ok(None);
            }
            self.number += 1;
            if line.len() as u64 == limit && !line.ends_with(b"\n") {
                self.reader.skip_until(b'\n')?;
                return Ok(Some((self.number, line)));
            }
            while line.last().is_some_and(u8::is_ascii_whitespace) {
                line.pop();
            }
            if !line.is_empty() {
                return Ok(Some((self.number, line)));
            }
        }
    }
}

/// Returns the IDs of all requests in an input, or its errors. `endpoint` is the only allowed path,
/// if set. `most` is the maximum line length in bytes.
///
/// # Errors
/// Fails if the file is unreadable.
pub(crate) fn validate(
    file: impl Read,
    endpoint: Option<&str>,
    most: usize,
) -> io::Result<Result<BTreeSet<String>, Vec<BatchError>>> {
    let mut lines = Lines::new(file, most);
    let (mut names, mut errors) = (BTreeSet::new(), Vec::new());
    let error = |code: &str, message: String, param: Option<&str>, line| BatchError {
        code: code.to_owned(),
        message,
        param: param.map(str::to_owned),
        line,
    };
    while let Some((number, text)) = lines.next()? {
        let at = Some(number);
        if errors.len() >= MAX_ERRORS {
            break;
        }
        if names.len() >= MAX_LINES {
            errors.push(error("too_many_requests", format!("a batch has at most {MAX_LINES} requests"), None, at));
            break;
        }
        if text.len() > most {
            errors.push(error("line_too_long", format!("the line is longer than {most} bytes"), None, at));
            continue;
        }
        match Line::parse(&text) {
            Err(wrong) => errors.push(error("invalid_line", wrong.message, wrong.param.as_deref(), at)),
            Ok(line) if endpoint.is_some_and(|endpoint| endpoint != line.url) => {
                let message = format!("`url` is {:?}, and the batch is for {:?}", line.url, endpoint.unwrap_or_default());
                errors.push(error("mismatched_url", message, Some("url"), at));
            }
            Ok(line) => {
                if let Some(twice) = names.replace(line.custom_id) {
                    let message = format!("the `custom_id` {twice:?} stands twice in the file");
                    errors.push(error("duplicate_custom_id", message, Some("custom_id"), at));
                }
            }
        }
    }
    if names.is_empty() && errors.is_empty() {
        errors.push(error("empty_file", "the file has no requests".to_owned(), None, None));
    }
    Ok(if errors.is_empty() { Ok(names) } else { Err(errors) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(id: &str, url: &str) -> String {
        format!("{{\"custom_id\": \"{id}\", \"method\": \"POST\", \"url\": \"{url}\", \"body\": {{}}}}\n")
    }

    #[test]
    fn each_wrong_line_is_listed() {
        let (chat, text) = ("/v1/chat/completions", "/v1/completions");
        let check = |input: &str| validate(input.as_bytes(), Some(chat), 200).unwrap();
        let good = format!("{}\n \n{}", line("a", chat), line("b", chat).trim_end());
        assert_eq!(check(&good).unwrap().into_iter().collect::<Vec<_>>(), ["a", "b"]);
        let bad = [line("a", chat), "{}\n".into(), line("a", chat), line("b", text), format!("{}\n", " x".repeat(150))].concat();
        let found: Vec<_> = check(&bad).unwrap_err().into_iter().map(|error| (error.line.unwrap(), error.code)).collect();
        let expected = [(2, "invalid_line"), (3, "duplicate_custom_id"), (4, "mismatched_url"), (5, "line_too_long")]
            .map(|(n, code)| (n, code.to_owned()));
        assert_eq!(found, expected);
        assert_eq!(check("\n").unwrap_err()[0].code, "empty_file");
        let many: String = (0..=MAX_LINES).map(|i| line(&i.to_string(), chat)).collect();
        assert_eq!(check(&many).unwrap_err()[0].code, "too_many_requests");
        assert_eq!(check(&"{}\n".repeat(1000)).unwrap_err().len(), MAX_ERRORS);
    }
}
