//! Streaming conversion of tagged arguments to JSON.

use serde_json::Value as Json;

use super::{
    Piece, Tools,
    format::{Middle, Pairs, Value},
    literal,
    marker::{Found, begun, meet},
    nested,
};

/// Maximum length of a key in bytes.
const MAX_KEY: usize = 512;

/// Parses the arguments of one call.
#[derive(Clone, Debug)]
pub(super) struct PairReader {
    pairs: &'static Pairs,
    function: String,
    place: PairState,
    /// End marker of the current value.
    close: String,
    held: String,
    count: usize,
}

/// Parser state.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PairState {
    /// Before a key or the end of the arguments.
    Between,
    /// In a string that is emitted as it arrives; true if nothing was emitted yet.
    Text(bool),
    /// In the value of this key, which is emitted when complete.
    Whole(String, Value),
}

/// Matches the start of a pair; returns the offset of its key.
pub(super) fn begins(pairs: &Pairs, text: &str) -> Found<usize> {
    meet(pairs.open, text).and_then(|met| match text[met.length..].chars().next() {
        None => Found::More,
        // The opening marker may be the beginning of a closing tag too.
        Some('/') => Found::No,
        Some(_) => Found::Yes(met.length),
    })
}

impl PairReader {
    pub(super) fn new(pairs: &'static Pairs, function: &str) -> PairReader {
        PairReader {
            pairs,
            function: function.to_owned(),
            place: PairState::Between,
            close: String::new(),
            held: String::new(),
            count: 0,
        }
    }

    /// Appends text. `Some` contains the text after the arguments.
    pub(super) fn push(&mut self, text: &str, tools: &Tools, number: usize, out: &mut Vec<Piece>) -> Option<String> {
        self.held.push_str(text);
        loop {
            let moves = match self.place.clone() {
                PairState::Between => match self.key(tools, number, out) {
                    Found::Yes(()) => true,
                    Found::More => false,
                    Found::No => {
                        self.finish(number, out);
                        return Some(std::mem::take(&mut self.held));
                    }
                },
                PairState::Text(is_first) => self.text(is_first, number, out),
                PairState::Whole(key, kind) => self.whole(&key, kind, tools, number, out),
            };
            if !moves {
                return None;
            }
        }
    }

    /// Closes the object if no argument is open.
    pub(super) fn finish(&self, number: usize, out: &mut Vec<Piece>) {
        if self.place == PairState::Between {
            let text = if self.count == 0 { "{}" } else { "}" };
            out.push(Piece::Arguments { number, text: text.to_owned() });
        }
    }

    /// Parses a key and starts its value.
    fn key(&mut self, tools: &Tools, number: usize, out: &mut Vec<Piece>) -> Found<()> {
        let begin = self.held.len() - self.held.trim_start().len();
        let met = match begins(self.pairs, &self.held[begin..]) {
            Found::Yes(length) => begin + length,
            Found::More => return Found::More,
            Found::No => return Found::No,
        };
        for (at, _) in self.held[met..].char_indices().take_while(|(at, _)| *at < MAX_KEY) {
            for middle in self.pairs.middles {
                match meet(middle.text, &self.held[met + at..]) {
                    Found::Yes(end) => {
                        let key = self.held[met..met + at].trim().to_owned();
                        self.held.drain(..met + at + end.length);
                        self.begin(key, middle, tools, number, out);
                        return Found::Yes(());
                    }
                    Found::More => return Found::More,
                    Found::No => {}
                }
            }
        }
        if self.held.len() < met + MAX_KEY { Found::More } else { Found::No }
    }

    fn begin(&mut self, key: String, middle: &Middle, tools: &Tools, number: usize, out: &mut Vec<Piece>) {
        let before = if self.count == 0 { "{" } else { "," };
        out.push(Piece::Arguments { number, text: format!("{before}{}:", Json::from(key.as_str())) });
        self.count += 1;
        self.close = middle.close.replace("{key}", &key);
        let kind = middle.value;
        let is_text = kind == Value::Text || kind == Value::Schema && tools.is_text(&self.function, &key);
        if is_text {
            out.push(Piece::Arguments { number, text: "\"".to_owned() });
        }
        self.place = if is_text { PairState::Text(true) } else { PairState::Whole(key, kind) };
    }

    fn text(&mut self, is_first: bool, number: usize, out: &mut Vec<Piece>) -> bool {
        if is_first && self.pairs.on_lines {
            if self.held.is_empty() {
                return false;
            }
            if self.held.starts_with('\n') {
                self.held.remove(0);
            }
        }
        self.place = PairState::Text(false);
        let found = self.held.find(&self.close);
        let end = found.unwrap_or_else(|| self.held.len() - begun(&self.held, &self.close));
        // The line break before the closing tag is the format's own.
        let is_own = self.pairs.on_lines && self.held[..end].ends_with('\n');
        let shown = end - usize::from(is_own);
        if shown > 0 {
            let quoted = Json::from(&self.held[..shown]).to_string();
            out.push(Piece::Arguments { number, text: quoted[1..quoted.len() - 1].to_owned() });
        }
        let Some(at) = found else {
            self.held.drain(..shown);
            return false;
        };
        self.held.drain(..at + self.close.len());
        out.push(Piece::Arguments { number, text: "\"".to_owned() });
        self.place = PairState::Between;
        true
    }

    fn whole(&mut self, key: &str, kind: Value, tools: &Tools, number: usize, out: &mut Vec<Piece>) -> bool {
        let found = match self.pairs.inner {
            Some(inner) => nested::end(&self.held, inner, key, &self.close),
            None => self.held.find(&self.close),
        };
        let Some(at) = found else { return false };
        let mut text = &self.held[..at];
        if self.pairs.on_lines {
            text = text.strip_prefix('\n').unwrap_or(text);
            text = text.strip_suffix('\n').unwrap_or(text);
        }
        let inside = self.pairs.inner.and_then(|inner| nested::value(text, inner));
        let value = match kind {
            _ if inside.is_some() => inside.unwrap_or_default(),
            Value::Json => {
                let json = serde_json::from_str(text.trim()).ok();
                json.or_else(|| literal::collection(text)).unwrap_or_else(|| Json::from(text))
            }
            _ => tools.value(&self.function, key, text),
        };
        out.push(Piece::Arguments { number, text: value.to_string() });
        self.held.drain(..at + self.close.len());
        self.place = PairState::Between;
        true
    }
}
