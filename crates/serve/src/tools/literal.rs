//! Arguments as literals: Python keyword arguments, and objects with unquoted keys.

use serde_json::{Map, Number, Value as Json};

use super::marker::Found;

/// Maximum nesting depth of values.
const MAX_DEPTH: usize = 64;

/// Parses keyword arguments up to and including the closing parenthesis; returns their length and
/// JSON.
pub(super) fn python(text: &str) -> Found<(usize, String)> {
    read(text, Style { quote: None, assign: '=', close: ')' })
}

/// Parses `key:value` pairs up to and including the closing brace; returns their length and JSON.
pub(super) fn quoted(text: &str, quote: &'static str) -> Found<(usize, String)> {
    read(text, Style { quote: Some(quote), assign: ':', close: '}' })
}

/// Parses a whole text as a Python or JSON list or object; `None` if it is something else.
pub(super) fn collection(text: &str) -> Option<Json> {
    let text = text.trim();
    if !text.starts_with(['[', '{', '(']) {
        return None;
    }
    let mut reader = LiteralReader { text, at: 0, style: Style { quote: None, assign: ':', close: '}' } };
    let value = reader.value(1).ok()?;
    reader.rest().is_empty().then_some(value)
}

fn read(text: &str, style: Style) -> Found<(usize, String)> {
    let mut reader = LiteralReader { text, at: 0, style };
    match reader.pairs(style.assign, style.close, 0) {
        Ok(map) => Found::Yes((reader.at, Json::Object(map).to_string())),
        Err(Stop::More) => Found::More,
        Err(Stop::No) => Found::No,
    }
}

/// Quotes of strings, and separators of the outermost pairs.
#[derive(Clone, Copy)]
struct Style {
    /// Quote of strings without escapes; `None`: strings follow Python or JSON.
    quote: Option<&'static str>,
    assign: char,
    close: char,
}

/// Reason why a text is not a value.
#[derive(Clone, Copy)]
enum Stop {
    More,
    No,
}

/// Whether a character may be part of an unquoted key or value.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '+' | '$')
}

struct LiteralReader<'a> {
    text: &'a str,
    at: usize,
    style: Style,
}

impl LiteralReader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// The next non-whitespace character.
    fn peek(&mut self) -> Result<char, Stop> {
        self.at += self.rest().len() - self.rest().trim_start().len();
        self.rest().chars().next().ok_or(Stop::More)
    }

    /// Whether an argument ends at this offset of the rest.
    fn ends_argument(&self, at: usize) -> Result<bool, Stop> {
        let after = self.rest()[at..].trim_start();
        match after.chars().next().ok_or(Stop::More)? {
            ',' => {
                let name = after[1..].trim_start();
                let end = name.find(|c: char| !is_word(c)).ok_or(Stop::More)?;
                let next = name[end..].trim_start().chars().next().ok_or(Stop::More)?;
                Ok(next == if end == 0 { self.style.close } else { self.style.assign })
            }
            next => Ok(next == self.style.close),
        }
    }

    fn take(&mut self, wanted: char) -> Result<(), Stop> {
        if self.peek()? != wanted {
            return Err(Stop::No);
        }
        self.at += wanted.len_utf8();
        Ok(())
    }

    /// Pairs of keys and values up to a closing delimiter.
    fn pairs(&mut self, assign: char, close: char, depth: usize) -> Result<Map<String, Json>, Stop> {
        let mut map = Map::new();
        loop {
            match self.peek()? {
                c if c == close => {
                    self.at += close.len_utf8();
                    return Ok(map);
                }
                ',' if !map.is_empty() => self.take(',')?,
                _ if map.is_empty() => {}
                _ => return Err(Stop::No),
            }
            if self.peek()? == close {
                continue;
            }
            let key = self.key()?;
            self.take(assign)?;
            let value = self.value(depth)?;
            map.insert(key, value);
        }
    }

    fn key(&mut self) -> Result<String, Stop> {
        if self.begins_text()? {
            return self.quoted_text(false);
        }
        let word = self.word()?;
        if word.is_empty() { Err(Stop::No) } else { Ok(word) }
    }

    /// A run of characters: an unquoted key, a number or a constant.
    fn word(&mut self) -> Result<String, Stop> {
        let end = self.rest().find(|c| !is_word(c)).ok_or(Stop::More)?;
        let word = self.rest()[..end].to_owned();
        self.at += end;
        Ok(word)
    }

    fn value(&mut self, depth: usize) -> Result<Json, Stop> {
        if depth > MAX_DEPTH {
            return Err(Stop::No);
        }
        if self.begins_text()? {
            return self.quoted_text(depth == 0).map(Json::from);
        }
        match self.peek()? {
            '{' => {
                self.take('{')?;
                self.pairs(':', '}', depth + 1).map(Json::Object)
            }
            open @ ('[' | '(') => {
                self.take(open)?;
                self.items(if open == '[' { ']' } else { ')' }, depth + 1)
            }
            _ => match self.word()?.as_str() {
                "true" | "True" => Ok(true.into()),
                "false" | "False" => Ok(false.into()),
                "null" | "None" | "none" => Ok(Json::Null),
                word => match serde_json::from_str::<Number>(word.trim_start_matches('+')) {
                    Ok(number) => Ok(Json::Number(number)),
                    Err(_) => Err(Stop::No),
                },
            },
        }
    }

    fn items(&mut self, close: char, depth: usize) -> Result<Json, Stop> {
        let mut items = Vec::new();
        loop {
            match self.peek()? {
                c if c == close => {
                    self.at += close.len_utf8();
                    return Ok(items.into());
                }
                ',' if !items.is_empty() => self.take(',')?,
                _ if items.is_empty() => {}
                _ => return Err(Stop::No),
            }
            if self.peek()? != close {
                items.push(self.value(depth)?);
            }
        }
    }

    /// Whether a string starts here.
    fn begins_text(&mut self) -> Result<bool, Stop> {
        let first = self.peek()?;
        match self.style.quote {
            None => Ok(matches!(first, '"' | '\'')),
            Some(quote) if self.rest().starts_with(quote) => Ok(true),
            Some(quote) if quote.starts_with(self.rest()) => Err(Stop::More),
            Some(_) => Ok(first == '"'),
        }
    }

    /// A string. Models leave quotes inside a string as they are. So the quote before the next
    /// argument or the end ends an argument.
    fn quoted_text(&mut self, is_argument: bool) -> Result<String, Stop> {
        if let Some(quote) = self.style.quote.filter(|quote| self.rest().starts_with(quote)) {
            let inside = &self.rest()[quote.len()..];
            let (text, _) = inside.split_once(quote).ok_or(Stop::More)?;
            let text = text.to_owned();
            self.at += text.len() + 2 * quote.len();
            return Ok(text);
        }
        let mut chars = self.rest().char_indices();
        let Some((_, quote)) = chars.next() else { return Err(Stop::More) };
        let mut text = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote && (!is_argument || self.ends_argument(at + c.len_utf8())?) => {
                    self.at += at + c.len_utf8();
                    return Ok(text);
                }
                '\\' => escape(&mut chars, &mut text)?,
                c => text.push(c),
            }
        }
        Err(Stop::More)
    }
}

/// The character after a backslash, as in Python and JSON.
fn escape(chars: &mut std::str::CharIndices<'_>, text: &mut String) -> Result<(), Stop> {
    let (_, kind) = chars.next().ok_or(Stop::More)?;
    let plain = match kind {
        'n' => Some("\n"),
        't' => Some("\t"),
        'r' => Some("\r"),
        'b' => Some("\u{8}"),
        'f' => Some("\u{c}"),
        '\n' => Some(""),
        _ => None,
    };
    let digits = match kind {
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => 0,
    };
    if digits == 0 {
        match plain {
            Some(plain) => text.push_str(plain),
            None if matches!(kind, '\\' | '\'' | '"' | '/') => text.push(kind),
            None => text.extend(['\\', kind]),
        }
        return Ok(());
    }
    let first = hex(chars, digits)?;
    // A pair of JSON's escapes may stand for one character.
    let mut ahead = chars.clone();
    let second = match ((0xd800..0xdc00).contains(&first), ahead.next(), ahead.next()) {
        (true, Some((_, '\\')), Some((_, 'u'))) => Some(hex(&mut ahead, 4)?),
        _ => None,
    };
    let code = match second.filter(|low| (0xdc00..0xe000).contains(low)) {
        Some(low) => {
            *chars = ahead;
            0x1_0000 + ((first - 0xd800) << 10) + (low - 0xdc00)
        }
        None => first,
    };
    text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
    Ok(())
}

fn hex(chars: &mut std::str::CharIndices<'_>, digits: usize) -> Result<u32, Stop> {
    let mut code = 0;
    for _ in 0..digits {
        let (_, c) = chars.next().ok_or(Stop::More)?;
        code = code << 4 | c.to_digit(16).ok_or(Stop::No)?;
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(found: Found<(usize, String)>, length: usize, json: &str) {
        assert_eq!(found, Found::Yes((length, json.to_owned())));
    }

    #[test]
    fn keyword_arguments_become_json() {
        check(python(") x"), 1, "{}");
        let text = r#"a="x\"\n\u00e9", b = 'it's 'ok', (a'b)', c=-1.5e3)"#;
        check(python(text), text.len(), r#"{"a":"x\"\né","b":"it's 'ok', (a'b)","c":-1500.0}"#);
        check(
            python(r#"a='it\'s', b=True, c=None, d=[1, {'k': "v"}], e=(2,),)"#),
            54,
            r#"{"a":"it's","b":true,"c":null,"d":[1,{"k":"v"}],"e":[2]}"#,
        );
        check(python(r#"a="\ud83d\ude00")"#), 17, "{\"a\":\"😀\"}");
        for begun in ["", "a", "a=", "a=\"x", "a=\"x\"", "a=[1", "a=tru"] {
            assert_eq!(python(begun), Found::More, "{begun}");
        }
        for none in ["1)", "a b", "a=x y)", "a=b)"] {
            assert_eq!(python(none), Found::No, "{none}");
        }
    }

    #[test]
    fn lists_and_objects_may_be_pythons() {
        let read = |text: &str| collection(text).map(|value| value.to_string());
        assert_eq!(read("[{'a': True, 'b': (None, 1.5)}]\n").as_deref(), Some(r#"[{"a":true,"b":[null,1.5]}]"#));
        assert_eq!(read("{\"it's\": 'x'}").as_deref(), Some(r#"{"it's":"x"}"#));
        for other in ["[1", "[1] and", "1", "'a'", "", "{1, 2}", "[f(x)]"] {
            assert_eq!(read(other), None, "{other}");
        }
    }

    #[test]
    fn texts_between_quotes_have_no_escapes() {
        let text = "k:<|\"|>a\"\\n}<|\"|>,n:3,o:{p:[true,<|\"|>x<|\"|>]}}!";
        check(quoted(text, "<|\"|>"), text.len() - 1, r#"{"k":"a\"\\n}","n":3,"o":{"p":[true,"x"]}}"#);
        assert_eq!(quoted("k:<|", "<|\"|>"), Found::More);
    }
}
