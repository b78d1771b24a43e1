//! Streaming parser of a call in the form of a JSON object with a name and arguments.

use super::Piece;

/// Parses the JSON value of a call's arguments and the rest of the object around it.
#[derive(Clone, Debug)]
pub(super) struct JsonReader {
    value: ValueEnd,
    /// Whether arguments are encoded as a string. They are then emitted when complete.
    quoted: Option<String>,
    has_begun: bool,
    is_done: bool,
    /// The object around the value, until it ends.
    around: Option<ValueEnd>,
}

impl JsonReader {
    /// Creates a parser of a value. Inside an object, it also parses the object to its end.
    pub(super) fn new(is_inside: bool) -> JsonReader {
        // The object's own brace is open.
        let around = is_inside.then(|| ValueEnd { depth: 1, ..ValueEnd::default() });
        JsonReader { value: ValueEnd::default(), quoted: None, has_begun: false, is_done: false, around }
    }

    /// Appends text. `Some` contains the text after the value or object.
    pub(super) fn push(&mut self, text: &str, number: usize, out: &mut Vec<Piece>) -> Option<String> {
        let mut at = 0;
        if !self.is_done {
            at = self.take(text, number, out)?;
        }
        match &mut self.around {
            None => Some(text[at..].to_owned()),
            Some(around) => around.find(&text[at..]).map(|end| text[at + end..].to_owned()),
        }
    }

    /// Parses the value; returns the offset of its end.
    fn take(&mut self, text: &str, number: usize, out: &mut Vec<Piece>) -> Option<usize> {
        let blank = if self.has_begun { 0 } else { text.len() - text.trim_start().len() };
        let text = &text[blank..];
        if !self.has_begun && !text.is_empty() {
            self.has_begun = true;
            self.quoted = text.starts_with('"').then(String::new);
        }
        let end = self.value.find(text);
        let at = end.unwrap_or(text.len());
        self.is_done = end.is_some();
        match &mut self.quoted {
            None if at > 0 => out.push(Piece::Arguments { number, text: text[..at].to_owned() }),
            None => {}
            Some(quoted) => {
                quoted.push_str(&text[..at]);
                if self.is_done {
                    let text = serde_json::from_str(quoted).unwrap_or_else(|_| quoted.clone());
                    out.push(Piece::Arguments { number, text });
                }
            }
        }
        end.map(|at| blank + at)
    }
}

/// Text before a call's arguments.
pub(super) struct Head {
    pub(super) name: String,
    /// Offset of the arguments' value.
    pub(super) arguments: usize,
}

/// Parses the start of a call with its name in the field `name_key`; `None` if it is incomplete.
///
/// # Errors
/// Fails if the text is not an object with a name and arguments.
pub(super) fn head(text: &str, name_key: &str) -> Result<Option<Head>, ()> {
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
        if key == name_key {
            name = Some(serde_json::from_str::<String>(&text[at..at + end]).map_err(|_| ())?);
        }
        at += end;
        if let (Some(name), Some(arguments)) = (&name, arguments) {
            return Ok(Some(Head { name: String::clone(name), arguments }));
        }
    }
}

/// Offset of the end of the JSON value at the start of a text.
fn value_end(text: &str) -> Option<usize> {
    ValueEnd::default().find(text)
}

/// Incremental search for the end of a JSON value.
#[derive(Clone, Debug, Default)]
struct ValueEnd {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    /// Whether the value is a number or a word. It ends before the next delimiter.
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
