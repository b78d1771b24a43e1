//! Streaming parser that separates calls from text by a format.

use serde_json::Value as Json;

use super::{
    Piece, Tools,
    format::{Arguments, Field, Format, Head, Ids, Pairs},
    json::{self, JsonReader},
    literal,
    marker::{Found, meet},
    pairs::{PairReader, begins},
};

/// Separates calls from text as an answer arrives. Anything but a call of a known tool stays text.
#[derive(Clone, Debug)]
pub(crate) struct Parser {
    format: &'static Format,
    tools: Tools,
    place: ParserState,
    /// Text that may still become a call or the end of one.
    held: String,
    /// Whether leading whitespace is dropped.
    trims: bool,
    calls: usize,
    /// Number of calls in the conversation before this answer.
    before: usize,
    /// Whether only the first call is returned.
    single: bool,
    /// Whether the format's other ways to write calls count.
    reads_others: bool,
    /// Bytes of the held text that the prompt ends with.
    led: usize,
}

/// Parser state.
#[derive(Clone, Debug)]
enum ParserState {
    /// Before the first non-whitespace character. A call may start here.
    Start,
    Text,
    Arguments(ArgumentReader),
    /// Before the marker after the arguments.
    End,
    /// After a call: another call, the end of the section, or text.
    Between,
    /// The rest of the answer is ignored.
    Over,
}

#[derive(Clone, Debug)]
enum ArgumentReader {
    Json(JsonReader),
    Pairs(PairReader),
    /// Code up to the answer's end, which is one text.
    Code,
}

/// Start of a call.
struct Begun {
    /// Format of the call.
    format: &'static Format,
    /// Length up to the arguments in bytes.
    length: usize,
    name: String,
    id: Option<String>,
    arguments: Begin,
}

enum Begin {
    /// JSON; true if it is inside an object.
    Json(bool),
    Pairs(&'static Pairs),
    /// Code, as the text of this argument.
    Code(String),
    /// All of the arguments.
    Whole(String),
}

impl Parser {
    /// Creates a parser of an answer to a conversation with `before` calls.
    pub(crate) fn new(format: &'static Format, tools: Tools, before: usize, single: bool) -> Parser {
        let place = if format.is_whole { ParserState::Start } else { ParserState::Text };
        let held = String::new();
        Parser { format, tools, place, held, trims: false, calls: 0, before, single, reads_others: true, led: 0 }
    }

    /// Reads calls in the format of the model alone, and in no other.
    pub(super) fn own_format_only(self) -> Parser {
        Parser { reads_others: false, ..self }
    }

    /// Reads an answer that continues a prompt.
    pub(crate) fn after(mut self, prompt: &str) -> Parser {
        let leads = self.format.leads;
        if !leads.is_empty() && prompt.ends_with(leads) {
            self.held = leads.to_owned();
            self.led = leads.len();
        }
        self
    }

    pub(crate) fn format(&self) -> &'static Format {
        self.format
    }

    /// Number of calls so far.
    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    /// Whether a call's arguments are incomplete.
    pub(crate) fn is_in_call(&self) -> bool {
        matches!(self.place, ParserState::Arguments(_))
    }

    /// Appends text and emits the parts that are final.
    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        self.held.push_str(text);
        while self.advance(out) {}
    }

    /// Ends the text. Held text becomes text or the rest of a call.
    pub(crate) fn finish(&mut self, out: &mut Vec<Piece>) {
        match std::mem::replace(&mut self.place, ParserState::Over) {
            ParserState::Arguments(ArgumentReader::Pairs(reader)) => reader.finish(self.calls - 1, out),
            ParserState::Arguments(ArgumentReader::Code) => {
                out.push(Piece::Arguments { number: self.calls - 1, text: "\"}".to_owned() })
            }
            ParserState::Start | ParserState::Text => {
                self.held.drain(..std::mem::take(&mut self.led));
                self.show(self.held.len(), out);
            }
            ParserState::Between if self.format.section.1.is_empty() && !self.format.is_whole => self.show(self.held.len(), out),
            _ => {}
        }
        self.held.clear();
    }

    /// Emits the first bytes of the held text.
    fn show(&mut self, length: usize, out: &mut Vec<Piece>) {
        let text: String = self.held.drain(..length).collect();
        let text = if self.trims { text.trim_start() } else { &text };
        if !text.is_empty() {
            self.trims = false;
            out.push(Piece::Text(text.to_owned()));
        }
    }

    /// Advances the state; true if it may advance further.
    fn advance(&mut self, out: &mut Vec<Piece>) -> bool {
        match &mut self.place {
            ParserState::Start => self.begin(out),
            ParserState::Text => self.find_call(out),
            ParserState::Arguments(reader) => {
                let (held, number) = (std::mem::take(&mut self.held), self.calls - 1);
                let rest = match reader {
                    ArgumentReader::Json(reader) => reader.push(&held, number, out),
                    ArgumentReader::Pairs(reader) => reader.push(&held, &self.tools, number, out),
                    ArgumentReader::Code if held.is_empty() => None,
                    ArgumentReader::Code => {
                        let quoted = Json::from(held).to_string();
                        out.push(Piece::Arguments { number, text: quoted[1..quoted.len() - 1].to_owned() });
                        None
                    }
                };
                let Some(rest) = rest else { return false };
                self.held = rest;
                self.place = ParserState::End;
                true
            }
            ParserState::End => self.end(),
            ParserState::Between => self.between(out),
            ParserState::Over => {
                self.held.clear();
                false
            }
        }
    }

    /// Start of an answer: calls, or only text.
    fn begin(&mut self, out: &mut Vec<Piece>) -> bool {
        let blank = self.held.len() - self.held.trim_start().len();
        if blank == self.held.len() {
            return false;
        }
        match self.start(&self.held[blank..], false) {
            Found::Yes(begun) => self.enter(blank, begun, out),
            Found::More => return false,
            Found::No => self.place = ParserState::Text,
        }
        true
    }

    /// Text up to the next call. Whitespace before the call is dropped.
    fn find_call(&mut self, out: &mut Vec<Piece>) -> bool {
        if self.format.is_whole {
            self.show(self.held.len(), out);
            return false;
        }
        let mut undecided = self.held.len();
        for (at, _) in self.held.char_indices() {
            let begun = self.start(&self.held[at..], false);
            let mut waits = matches!(begun, Found::More);
            if let Found::Yes(begun) = begun {
                let shown = self.held[..at].trim_end().len();
                self.led = 0;
                self.show(shown, out);
                self.enter(at - shown, begun, out);
                return true;
            }
            let text = first([self.text_marker(&self.held[at..]), self.address(&self.held[at..])].into_iter());
            if let Found::Yes(length) = text {
                let shown = self.held[..at].trim_end().len();
                self.led = 0;
                self.show(shown, out);
                self.held.drain(..at - shown + length);
                self.trims = true;
                return true;
            }
            waits |= text == Found::More;
            if waits {
                undecided = at;
                break;
            }
            if at == 0 && self.led > 0 {
                // The end of the prompt belongs neither to a call nor to the text.
                self.held.drain(..std::mem::take(&mut self.led));
                return true;
            }
        }
        self.show(self.held[..undecided].trim_end().len(), out);
        false
    }

    /// Whether a text begins with the marker before text, and a blank; the marker's length.
    fn text_marker(&self, text: &str) -> Found<usize> {
        match self.format.text_marker {
            "" => Found::No,
            marker => meet(marker, text).and_then(|met| match text[met.length..].chars().next() {
                None => Found::More,
                Some(c) if c.is_whitespace() => Found::Yes(met.length),
                Some(_) => Found::No,
            }),
        }
    }

    /// Whether a text begins with the name of a message's reader; the length with its markers.
    fn address(&self, text: &str) -> Found<usize> {
        let (open, close) = self.format.address;
        if open.is_empty() {
            return Found::No;
        }
        meet(open, text).and_then(|met| {
            let name = &text[met.length..];
            let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
            match name.find(|c| !is_part(c)) {
                None => Found::More,
                Some(end) => meet(close, &name[end..]).map(|closed| met.length + end + closed.length),
            }
        })
    }

    /// Enters a call that begins after some bytes of the held text.
    fn enter(&mut self, at: usize, begun: Begun, out: &mut Vec<Piece>) {
        let number = self.calls;
        let id = self.id(&begun);
        // The next calls are written in the same way.
        self.format = begun.format;
        self.held.drain(..at + begun.length);
        out.push(Piece::Call { number, id, name: begun.name.clone() });
        self.calls += 1;
        self.place = match begun.arguments {
            Begin::Json(is_inside) => ParserState::Arguments(ArgumentReader::Json(JsonReader::new(is_inside))),
            Begin::Pairs(pairs) => ParserState::Arguments(ArgumentReader::Pairs(PairReader::new(pairs, &begun.name))),
            Begin::Code(argument) => {
                out.push(Piece::Arguments { number, text: format!("{{{}:\"", Json::from(argument)) });
                ParserState::Arguments(ArgumentReader::Code)
            }
            Begin::Whole(text) => {
                out.push(Piece::Arguments { number, text });
                ParserState::End
            }
        };
    }

    /// ID of the call for the client, if the format has IDs.
    fn id(&self, begun: &Begun) -> Option<String> {
        match self.format.ids {
            Ids::Free => None,
            Ids::Written => begun.id.clone(),
            Ids::Nine => {
                let written = begun.id.clone().filter(|id| id.len() == 9);
                Some(written.unwrap_or_else(|| std::iter::repeat_with(fastrand::alphanumeric).take(9).collect()))
            }
            Ids::Counted => Some(format!("functions.{}:{}", begun.name, self.before + self.calls)),
        }
    }

    /// Parses the marker after a call's arguments.
    fn end(&mut self) -> bool {
        let length = self.held.len() - self.held.trim_start().len();
        self.held.drain(..length);
        match meet(self.format.close, &self.held) {
            Found::Yes(met) => {
                self.held.drain(..met.length);
                self.place = if self.single { ParserState::Over } else { ParserState::Between };
                true
            }
            Found::More => false,
            Found::No => match self.follows() {
                Found::Yes(()) => {
                    self.place = if self.single { ParserState::Over } else { ParserState::Between };
                    true
                }
                Found::More => false,
                // Faulty output here is neither text nor a call, so it is skipped.
                Found::No => self.held.chars().next().is_some_and(|c| {
                    self.held.drain(..c.len_utf8());
                    true
                }),
            },
        }
    }

    /// Checks whether the held text starts another call or ends the section.
    fn follows(&self) -> Found<()> {
        let ends = match self.format.section.1 {
            "" => Found::No,
            section => meet(section, &self.held).map(|_| ()),
        };
        first([ends, self.start(&self.held, true).map(|_| ())].into_iter())
    }

    fn between(&mut self, out: &mut Vec<Piece>) -> bool {
        let length = self.held.len() - self.held.trim_start().len();
        self.held.drain(..length);
        if self.held.is_empty() {
            return false;
        }
        let between = self.format.between.trim();
        match meet(between, &self.held) {
            Found::Yes(met) if met.length > 0 => {
                self.held.drain(..met.length);
                return true;
            }
            Found::More => return false,
            _ => {}
        }
        let mut waits = false;
        for in_section in [true, false] {
            match self.start(&self.held, in_section) {
                Found::Yes(begun) => {
                    self.enter(0, begun, out);
                    return true;
                }
                Found::More => waits = true,
                Found::No => {}
            }
        }
        let (mut ended, section) = (0, self.format.section.1);
        if !section.is_empty() {
            match meet(section, &self.held) {
                Found::Yes(met) => ended = met.length,
                Found::More => waits = true,
                Found::No => {}
            }
        }
        if ended == 0 && waits {
            return false;
        }
        self.held.drain(..ended);
        self.trims = true;
        self.place = if self.format.is_whole { ParserState::Over } else { ParserState::Text };
        true
    }

    /// Matches the start of a call in any of the model's formats.
    fn start(&self, text: &str, in_section: bool) -> Found<Begun> {
        let others = if self.reads_others { self.format.also } else { &[] };
        let formats = std::iter::once(self.format).chain(others);
        // Anything may be code, so other calls come first.
        match first(formats.map(|format| self.start_in(format, text, in_section))) {
            Found::No => self.start_code(text),
            found => found,
        }
    }

    /// Whether a text begins raw code for a tool.
    fn start_code(&self, text: &str) -> Found<Begun> {
        let ways = self.tools.of_code().flat_map(|tool| self.format.code.iter().map(move |marker| (tool, marker)));
        first(ways.map(|((name, argument), marker)| {
            meet(&marker.replace("{tool}", name), text).and_then(|met| match text[met.length..].is_empty() {
                true => Found::More,
                false => Found::Yes(Begun {
                    format: self.format,
                    length: met.length,
                    name: name.to_owned(),
                    id: None,
                    arguments: Begin::Code(argument.to_owned()),
                }),
            })
        }))
    }

    fn start_in(&self, format: &'static Format, text: &str, in_section: bool) -> Found<Begun> {
        let section = format.section.0;
        let sections: &[&str] = match () {
            () if in_section => &[""],
            () if format.omits_section => &[section, ""],
            () => &[section],
        };
        let ways = sections.iter().flat_map(|section| format.open.iter().map(move |open| (section, open)));
        first(ways.map(|(section, open)| {
            meet(section, text).and_then(|met| {
                let rest = &text[met.length..];
                let rest = if section.is_empty() { rest } else { rest.trim_start() };
                meet(open, rest).and_then(|met| {
                    let head = &rest[met.length..];
                    self.head(format, head, text.len() - head.len(), met.id)
                })
            })
        }))
    }

    /// Matches the start of a call; `before` bytes precede it.
    fn head(&self, format: &'static Format, text: &str, before: usize, id: Option<&str>) -> Found<Begun> {
        let id = id.map(str::to_owned);
        match &format.head {
            Head::Object(fields) => {
                let key = fields.iter().find_map(|field| if let Field::Name(key) = field { Some(*key) } else { None });
                match json::head(text, key.unwrap_or("name")) {
                    Ok(Some(head)) if self.tools.has(&head.name) => {
                        let length = before + head.arguments;
                        Found::Yes(Begun { format, length, name: head.name, id, arguments: Begin::Json(true) })
                    }
                    Ok(None) => Found::More,
                    _ => Found::No,
                }
            }
            Head::Name(middles, arguments) => {
                // A name that continues another comes first.
                let ways = self.tools.names().rev().flat_map(|name| middles.iter().map(move |middle| (name, middle)));
                first(ways.map(|(name, middle)| {
                    let Some(rest) = text.strip_prefix(name) else {
                        return if name.starts_with(text) { Found::More } else { Found::No };
                    };
                    meet(middle, rest).and_then(|met| {
                        let rest = &rest[met.length..];
                        let at = before + text.len() - rest.len();
                        let id = met.id.map(str::to_owned).or_else(|| id.clone());
                        arguments_at(format, arguments, rest).map(|(skipped, arguments)| Begun {
                            format,
                            length: at + skipped,
                            name: name.to_owned(),
                            id,
                            arguments,
                        })
                    })
                }))
            }
        }
    }
}

/// Matches the start of arguments; returns the number of bytes to skip and the parser.
fn arguments_at(format: &Format, arguments: &'static Arguments, text: &str) -> Found<(usize, Begin)> {
    let blank = text.len() - text.trim_start().len();
    let rest = &text[blank..];
    if rest.is_empty() {
        return Found::More;
    }
    // A call without arguments ends here; the first word of the marker tells.
    let ends = || match format.close.split_whitespace().next() {
        Some(word) => meet(word, rest).map(|_| (0, Begin::Whole("{}".to_owned()))),
        None => Found::No,
    };
    match arguments {
        Arguments::Json if rest.starts_with(['{', '"']) => Found::Yes((blank, Begin::Json(false))),
        Arguments::Json => ends(),
        Arguments::Pairs(pairs) => match begins(pairs, rest) {
            Found::Yes(_) => Found::Yes((blank, Begin::Pairs(pairs))),
            Found::More => Found::More,
            Found::No => ends(),
        },
        Arguments::Python => literal::python(rest).map(|(length, text)| (blank + length, Begin::Whole(text))),
        Arguments::Quoted(quote) => literal::quoted(rest, quote).map(|(length, text)| (blank + length, Begin::Whole(text))),
    }
}

/// The first match, or else an incomplete match.
fn first<T>(ways: impl Iterator<Item = Found<T>>) -> Found<T> {
    let mut found = Found::No;
    for way in ways {
        match way {
            Found::Yes(_) => return way,
            Found::More => found = Found::More,
            Found::No => {}
        }
    }
    found
}
