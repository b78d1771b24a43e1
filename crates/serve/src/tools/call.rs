//! A call that is a JSON object with `name` and `arguments` or `parameters`, read as it comes.

use super::{Piece, Tools};

/// Reads one call: first its head, up to where arguments begin, then arguments as they come.
#[derive(Clone, Debug)]
pub(super) struct CallReader {
    /// Everything so far, with what stood before the object.
    raw: String,
    /// Bytes of `raw` ahead of the object.
    prefix: usize,
    arguments: Option<Arguments>,
}

/// Where in the arguments' value the reader is.
#[derive(Clone, Debug)]
struct Arguments {
    value: ValueEnd,
    /// A value that is a text holds the arguments in itself; it is handed on when it is whole.
    quoted: Option<String>,
    is_done: bool,
    /// Depth of braces behind the value, until the object ends.
    rest: ValueEnd,
}

impl CallReader {
    /// A reader of the object that follows `before`, which is given back with it if it is no call.
    pub(super) fn new(before: &str) -> CallReader {
        CallReader { raw: before.to_owned(), prefix: before.len(), arguments: None }
    }

    /// Whether the call has been handed on.
    pub(super) fn has_begun(&self) -> bool {
        self.arguments.is_some()
    }

    /// All that was read.
    pub(super) fn into_raw(self) -> String {
        self.raw
    }

    /// Takes more text. `Some` is what follows the object.
    ///
    /// # Errors
    /// It is no call of one of the tools; all that was read.
    pub(super) fn push(
        &mut self,
        text: &str,
        tools: &Tools,
        number: usize,
        out: &mut Vec<Piece>,
    ) -> Result<Option<String>, String> {
        if self.arguments.is_some() {
            return Ok(self.follow(text, number, out));
        }
        self.raw.push_str(text);
        let head = match head(&self.raw[self.prefix..]) {
            Ok(Some(head)) if tools.has(&head.name) => head,
            Ok(None) => return Ok(None),
            _ => return Err(std::mem::take(&mut self.raw)),
        };
        out.push(Piece::Call { number, name: head.name });
        let from = self.prefix + head.arguments;
        let begun = self.raw[from..].to_owned();
        let quoted = begun.starts_with('"').then(String::new);
        // The object's own brace is open.
        let rest = ValueEnd { depth: 1, ..ValueEnd::default() };
        self.arguments = Some(Arguments { value: ValueEnd::default(), quoted, is_done: false, rest });
        Ok(self.follow(&begun, number, out))
    }

    fn follow(&mut self, text: &str, number: usize, out: &mut Vec<Piece>) -> Option<String> {
        let arguments = self.arguments.as_mut()?;
        let mut at = 0;
        if !arguments.is_done {
            let end = arguments.value.find(text);
            at = end.unwrap_or(text.len());
            arguments.is_done = end.is_some();
            match &mut arguments.quoted {
                None if at > 0 => out.push(Piece::Arguments { number, text: text[..at].to_owned() }),
                None => {}
                Some(quoted) => {
                    quoted.push_str(&text[..at]);
                    if arguments.is_done {
                        let text = serde_json::from_str(quoted).unwrap_or_else(|_| quoted.clone());
                        out.push(Piece::Arguments { number, text });
                    }
                }
            }
        }
        if !arguments.is_done {
            return None;
        }
        let end = arguments.rest.find(&text[at..])?;
        Some(text[at + end..].to_owned())
    }
}

/// Text ahead of a call's arguments.
struct Head {
    name: String,
    /// Where the arguments' value begins.
    arguments: usize,
}

/// The head of a call; `None` as long as it is not whole.
fn head(text: &str) -> Result<Option<Head>, ()> {
    let skip = |at: usize| at + (text[at..].len() - text[at..].trim_start().len());
    let mut at = skip(0);
    match text[at..].chars().next() {
        None => return Ok(None),
        Some('{') => at += 1,
        Some(_) => return Err(()),
    }
    let (mut name, mut arguments) = (None, None);
    loop {
        at = skip(at);
        match text[at..].chars().next() {
            None => return Ok(None),
            Some('"') => {}
            Some(',') => {
                at += 1;
                continue;
            }
            // The object ends without arguments, or is none.
            Some(_) => return Err(()),
        }
        let Some(end) = value_end(&text[at..]) else { return Ok(None) };
        let key: String = serde_json::from_str(&text[at..at + end]).map_err(|_| ())?;
        at = skip(at + end);
        match text[at..].chars().next() {
            None => return Ok(None),
            Some(':') => at = skip(at + 1),
            Some(_) => return Err(()),
        }
        if text[at..].is_empty() {
            return Ok(None);
        }
        if ["arguments", "parameters"].contains(&key.as_str()) {
            arguments = Some(at);
        }
        if let (Some(name), Some(arguments)) = (&name, arguments) {
            return Ok(Some(Head { name: String::clone(name), arguments }));
        }
        let Some(end) = value_end(&text[at..]) else { return Ok(None) };
        if key == "name" {
            name = Some(serde_json::from_str::<String>(&text[at..at + end]).map_err(|_| ())?);
        }
        at += end;
        if let (Some(name), Some(arguments)) = (&name, arguments) {
            return Ok(Some(Head { name: String::clone(name), arguments }));
        }
    }
}

/// Where the JSON value at the beginning of a text ends.
fn value_end(text: &str) -> Option<usize> {
    ValueEnd::default().find(text)
}

/// Looks for the end of a JSON value as its text comes.
#[derive(Clone, Debug, Default)]
struct ValueEnd {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    /// Whether it is a number or a word, which ends ahead of what follows.
    in_scalar: bool,
}

impl ValueEnd {
    fn find(&mut self, text: &str) -> Option<usize> {
        for (at, c) in text.char_indices() {
            let next = at + c.len_utf8();
            if self.in_string {
                match c {
                    _ if self.is_escaped => self.is_escaped = false,
                    '\\' => self.is_escaped = true,
                    '"' => {
                        self.in_string = false;
                        if self.depth == 0 {
                            return Some(next);
                        }
                    }
                    _ => {}
                }
                continue;
            }
            match c {
                '"' => self.in_string = true,
                '{' | '[' => self.depth += 1,
                '}' | ']' if self.depth <= 1 => {
                    let is_own = self.depth == 1;
                    self.depth = 0;
                    return Some(if is_own { next } else { at });
                }
                '}' | ']' => self.depth -= 1,
                ',' if self.depth == 0 => return Some(at),
                c if self.depth == 0 && c.is_whitespace() && self.in_scalar => return Some(at),
                c if self.depth == 0 && !c.is_whitespace() => self.in_scalar = true,
                _ => {}
            }
        }
        None
    }
}
