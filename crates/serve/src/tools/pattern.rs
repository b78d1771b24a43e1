//! Converts a schema's restrictions on strings to regular expressions in Lark's notation.

use serde_json::Value as Json;

/// Maximum `minLength` and `maxLength` in a grammar.
const MAX_LENGTH: u64 = 2000;
/// Any text.
const ANY: &str = "(?s:.*)";

/// An expression for the allowed strings of a schema. `None` if the schema allows all strings, or
/// uses a construct without a form in grammars.
pub(super) fn of_texts(schema: &Json) -> Option<String> {
    if let Some(pattern) = schema["pattern"].as_str() {
        return anchored(pattern);
    }
    let (least, most) = (schema["minLength"].as_u64(), schema["maxLength"].as_u64());
    if least.is_none() && most.is_none() || least.max(most) > Some(MAX_LENGTH) {
        return None;
    }
    let most = most.map(|most| most.to_string()).unwrap_or_default();
    Some(format!("(?s:.{{{},{most}}})", least.unwrap_or(0)))
}

/// Converts a pattern of a JSON schema to an expression for the whole string. A pattern may match a
/// part of a string.
fn anchored(pattern: &str) -> Option<String> {
    let alternatives = PatternReader::new(pattern).alternatives()?;
    Some(alternatives.join("|"))
}

/// Reads the subset of JavaScript's expressions that means the same in grammars.
struct PatternReader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    out: String,
    depth: usize,
    /// Whether a repetition may follow the last part, and whether the last part is repeated.
    repeats: [bool; 2],
    /// Whether `^` began the alternative, and whether `$` ended it.
    begins: bool,
    ends: bool,
}

impl PatternReader<'_> {
    fn new(pattern: &str) -> PatternReader<'_> {
        PatternReader {
            rest: pattern.chars().peekable(),
            out: String::new(),
            depth: 0,
            repeats: [false; 2],
            begins: false,
            ends: false,
        }
    }

    fn alternatives(mut self) -> Option<Vec<String>> {
        let mut done = Vec::new();
        while let Some(c) = self.rest.next() {
            // Only another alternative may follow `$`.
            if self.ends && c != '|' {
                return None;
            }
            if matches!(c, '*' | '+' | '?' | '{') {
                match self.repeats {
                    // Lazy repetitions allow the same texts.
                    [_, true] if c == '?' => {
                        self.repeats = [false; 2];
                        continue;
                    }
                    [true, false] => self.repeats = [false, true],
                    _ => return None,
                }
            } else {
                self.repeats = [!matches!(c, '^' | '$' | '|' | '('), false];
            }
            match c {
                '^' if self.out.is_empty() && self.depth == 0 && !self.begins => self.begins = true,
                '$' if self.depth == 0 => self.ends = true,
                '^' | '$' => return None,
                '|' if self.depth == 0 => done.push(self.alternative()),
                '\\' => {
                    self.escape(false)?;
                }
                '[' => self.class()?,
                '(' => self.group()?,
                ')' => {
                    self.depth = self.depth.checked_sub(1)?;
                    self.out.push(')');
                }
                '{' => self.count()?,
                '}' | ']' => self.out.extend(['\\', c]),
                c => self.push(c),
            }
        }
        if self.depth > 0 {
            return None;
        }
        done.push(self.alternative());
        Some(done)
    }

    /// Ends an alternative.
    fn alternative(&mut self) -> String {
        let inside = std::mem::take(&mut self.out);
        let [before, after] = [self.begins, self.ends].map(|is_anchored| if is_anchored { "" } else { ANY });
        (self.begins, self.ends) = (false, false);
        format!("{before}({inside}){after}")
    }

    /// Writes a character. Slashes and line breaks, which would end the expression, are escaped.
    fn push(&mut self, c: char) {
        match c {
            '/' => self.out.push_str("\\/"),
            '\n' => self.out.push_str("\\n"),
            '\r' => self.out.push_str("\\r"),
            c => self.out.push(c),
        }
    }

    /// Reads an escape sequence after its backslash. Returns whether it is a class, such as `\d`.
    fn escape(&mut self, in_class: bool) -> Option<bool> {
        let c = self.rest.next()?;
        let inside = match c {
            'd' | 'D' => "0-9",
            'w' | 'W' => "a-zA-Z0-9_",
            's' | 'S' => "\\s",
            c if matches!(c, 'n' | 't' | 'r' | 'f' | 'v') || c.is_ascii_punctuation() => {
                self.out.extend(['\\', c]);
                return Some(false);
            }
            _ => return None,
        };
        match (in_class, c.is_ascii_lowercase()) {
            (true, true) => self.out.push_str(inside),
            (true, false) => return None,
            (false, true) => self.out.push_str(&format!("[{inside}]")),
            (false, false) => self.out.push_str(&format!("[^{inside}]")),
        }
        Some(true)
    }

    /// Reads a class of characters after its opening bracket.
    fn class(&mut self) -> Option<()> {
        self.out.push('[');
        if self.rest.next_if_eq(&'^').is_some() {
            self.out.push('^');
        }
        // JavaScript's empty class matches nothing, which grammars cannot express.
        if self.rest.peek() == Some(&']') {
            return None;
        }
        // Whether the last part is a class such as `\d`, and whether the part before a `-` is one.
        let (mut left, mut joined) = (None, None);
        loop {
            let is_class = match self.rest.next()? {
                ']' => break,
                '\\' => self.escape(true)?,
                '-' if self.rest.peek() == Some(&'-') => return None,
                '-' if left.is_some() && self.rest.peek() != Some(&']') => {
                    joined = left.take();
                    // After a class such as `\d`, `-` is a plain character and not a range.
                    self.out.push_str(if joined == Some(true) { "\\-" } else { "-" });
                    continue;
                }
                c @ ('-' | '[' | '&' | '~') => {
                    self.out.extend(['\\', c]);
                    false
                }
                c => {
                    self.push(c);
                    false
                }
            };
            match joined.take() {
                Some(false) if is_class => return None,
                Some(_) => {}
                None => left = Some(is_class),
            }
        }
        self.out.push(']');
        Some(())
    }

    fn group(&mut self) -> Option<()> {
        self.depth += 1;
        self.out.push('(');
        if self.rest.next_if_eq(&'?').is_some() {
            // Lookarounds and named groups are not supported.
            self.rest.next_if_eq(&':')?;
            self.out.push_str("?:");
        }
        Some(())
    }

    /// Reads a number of repetitions after its opening brace.
    fn count(&mut self) -> Option<()> {
        let mut inside = String::new();
        loop {
            match self.rest.next()? {
                '}' => break,
                c if c.is_ascii_digit() || c == ',' => inside.push(c),
                _ => return None,
            }
        }
        let fits = |text: &str| text.parse::<u64>().is_ok_and(|number| number <= MAX_LENGTH);
        let (least, most) = inside.split_once(',').unwrap_or((&inside, ""));
        if !fits(least) || !(most.is_empty() || fits(most)) {
            return None;
        }
        self.out.push_str(&format!("{{{inside}}}"));
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn patterns_become_expressions_of_whole_texts() {
        for (pattern, expected) in [
            ("^[A-Z]{3}$", "([A-Z]{3})"),
            ("^a|b$", "(a)(?s:.*)|(?s:.*)(b)"),
            ("x", "(?s:.*)(x)(?s:.*)"),
            (r"^\d+\.\w$", r"([0-9]+\.[a-zA-Z0-9_])"),
            (r"^(?:a|b)/[\d/]$", r"((?:a|b)\/[0-9\/])"),
            ("^[[&]$", r"([\[\&])"),
            ("^a+?b{2,}$", "(a+b{2,})"),
            (r"^[\w-\.]$", r"([a-zA-Z0-9_\-\.])"),
            (r"^[\w-z]$", r"([a-zA-Z0-9_\-z])"),
            (r"^[\d-a-z]$", r"([0-9\-a\-z])"),
            (r"^[\s-\d]$", r"([\s\-0-9])"),
            (r"^[+-9a-z]$", r"([+-9a-z])"),
            (r"^[-\w]+[\w-]$", r"([\-a-zA-Z0-9_]+[a-zA-Z0-9_\-])"),
            (r"^\D\W\S$", r"([^0-9][^a-zA-Z0-9_][^\s])"),
        ] {
            assert_eq!(anchored(pattern).as_deref(), Some(expected), "{pattern}");
        }
        for pattern in [
            "(?=a)", r"\bword", r"(a)\1", "a^b", "(^a)", "[]", "a{x}", "(a", "a)", r"\p{L}", "a{9999}", "$a", "*a", "a**", "(?:+)",
            r"[a-\d]", r"[\D]",
        ] {
            assert_eq!(anchored(pattern), None, "{pattern}");
        }
    }

    #[test]
    fn lengths_bound_texts() {
        assert_eq!(of_texts(&json!({ "minLength": 2, "maxLength": 5 })).as_deref(), Some("(?s:.{2,5})"));
        assert_eq!(of_texts(&json!({ "maxLength": 5 })).as_deref(), Some("(?s:.{0,5})"));
        assert_eq!(of_texts(&json!({ "minLength": 1 })).as_deref(), Some("(?s:.{1,})"));
        assert_eq!(of_texts(&json!({ "maxLength": 100_000 })), None);
        assert_eq!(of_texts(&json!({ "type": "string" })), None);
    }
}
